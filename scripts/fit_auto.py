r"""Priors of `method=auto`: the chances that its free tokens have before any try.

    python scripts/fit_auto.py --check

counted the values in contrib/auto/kinds.py, from `MATCH_CHANCE` to `BESIDE_A_MATCH`. `auto` decodes
prompts that no table reports, at the prices of rows in docs/auto.md and without skip sets. After
every token of an output, each token that a source proposes there counts as tried, whether the
tree holds it or not. A value is the share of them that was right, a mean over the models.

The models are SmolLM2-135M on `dataset=tuning` and the embedded one, which ends at once on those
prompts, on its own prompts of another seed without those of seed 0. With `--check`, the values of
the first half of the prompts decode the second, beside the values in use.
"""

import argparse
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from skipbench.bench.load import load_model, prepare
from skipbench.bench.prompts import eos_ids
from skipbench.config.compose import compose
from skipbench.contrib.auto import kinds
from skipbench.contrib.auto.auto import Auto
from skipbench.contrib.auto.free_tokens import Carried
from skipbench.contrib.auto.kinds import FREE, KINDS, NONE, RANKS, TOP
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.loop import generate
from skipbench.decode.tree import Child
from skipbench.lm.model import LM

MODELS = {
    "smollm2-135m model.dtype=float32": ["tuning"],
    "tiny": ["mini-code", "mini-math", "mini-stories", "mini-summary"],
}
PRICES = (1, 1.06, 1.07, 1.10, 1.18, 1.44)
TOKENS = 48
FEW = 30  # tries of a model that say too little beside those of another
Array = NDArray[np.float64]
Values = dict[str, Sequence[float] | float]  # constants of contrib/auto/kinds.py by their names


class Counted(Auto):
    """Counts every candidate after each token of the output, and what the rounds took."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.counts = np.zeros((2, FREE))
        """Tokens by kind that were right, and that were tried."""
        self.sums = np.zeros(4)
        """Rounds, tokens, expected tokens, passes."""

    def propose(self, state: State, budget: int) -> Draft:
        self._seen: dict[tuple[int, ...], list[Child]] = {}
        self._start = len(state.tokens)
        return super().propose(state, budget)

    def _children(self, path: list[int], carried: Carried) -> list[Child]:
        self._seen[tuple(path)] = children = super()._children(path, carried)
        return children

    def adapt(self, state: State, verification: Verification) -> None:
        emitted = state.tokens[self._start :]
        for n, token in enumerate(emitted):
            for _, candidate, kind, _ in self._seen.get(tuple(emitted[:n]), ()):
                self.counts[:, kind] += candidate == token, 1
        price = self.prices[1 + len(self.tree.tokens)]
        self.sums += 1, len(emitted), self.tree.expected + 1, price
        super().adapt(state, verification)


def decode(lm: LM, prompts: Sequence[list[int]], tokens: int, label: str) -> Array:
    """Decodes with the priors in use, prints what it took, and returns the counts."""
    method = Counted(name="auto", layers=lm.layers, row_prices=PRICES, explore=0.0)
    for prompt in prompts:
        generate(lm, method, prompt, tokens, eos_ids(lm))
    rounds, n, expected, passes = method.sums
    print(f"| {label} | {n / rounds:.3f} | {n / passes:.3f} | {expected / n:.3f} |", flush=True)
    return method.counts


def fit(counts: Sequence[Array]) -> Values:
    """The values that the counts of the models say, the models weighing equally."""
    shape = [len(counts), 2, *map(len, RANKS)]
    hits, tried = np.moveaxis(np.stack(counts).reshape(shape).sum(-1), 1, 0)

    def share(found: Array, expected: Array, tries: Array) -> Array:
        enough = tries >= FEW
        enough |= ~enough.any(0)
        ratio = (found + 0.5) / (expected + 1)
        mean: Array = (ratio * enough).sum(0) / enough.sum(0)
        return mean.round(3)

    falling = np.minimum.accumulate  # no later rank is likelier than an earlier one
    # Axes: the model, the match's class after none, the copy's rank, the recycled token's rank.
    copied, copies = (of[:, 1:, :NONE, 1:].sum(3) for of in (hits, tried))
    match = np.maximum.accumulate(share(copied[:, :, 0], copies[:, :, 0], copies[:, :, 0]))
    expected = (copies * match[:, None]).sum(1)
    later = falling(share(copied.sum(1), expected, copies.sum(1)))
    later[0] = 1.0
    both = tried[:, 1:, :NONE, 0]
    wrong, doubt = both - hits[:, 1:, :NONE, 0], both * (1 - match[:, None] * later)
    confirmed = share(wrong.sum((1, 2)), doubt.sum((1, 2)), both.sum((1, 2)))
    hits, tried = hits[:, :, NONE, :TOP], tried[:, :, NONE, :TOP]
    recycled = falling(share(hits[:, 0], tried[:, 0], tried[:, 0]))
    expected = (tried[:, 1:] * recycled).sum(2)
    beside = falling(share(hits[:, 1:].sum(2), expected, tried[:, 1:].sum(2)))
    names = ("MATCH_CHANCE", "LATER_SHARE", "CONFIRMED_DOUBT", "RECYCLED_CHANCE", "BESIDE_A_MATCH")
    found = (match, later, confirmed, recycled, beside)
    return {name: value.tolist() for name, value in zip(names, found, strict=True)}


def halves_of(model: str, datasets: Sequence[str], limit: int) -> tuple[LM, list[list[list[int]]]]:
    """The model and two halves of its prompts: of five kinds in turns, every other turn."""
    halves: list[list[list[int]]] = [[], []]
    for name in datasets:
        words, own = [*f"model={model}".split(), f"dataset={name}"], name != "tuning"
        config = compose([*words, *["dataset.seed=1"] * own])
        lm, tokenizer = load_model(config.model, config.engine)
        rows = config.dataset.rows(limit // len(datasets))
        if own:
            reported = {row.prompt for row in compose(words).dataset.rows(300)}
            rows = [row for row in rows if row.prompt not in reported]
        for n, prompt in enumerate(prepare(lm, tokenizer, rows, config.dataset)):
            halves[(n if own else n // 5) % 2].append(prompt.ids)
    return lm, halves


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=20, help="per model")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    print("| | tokens per round | speed | expected tokens / emitted |\n|---|---|---|---|")
    models = {model: halves_of(model, names, args.prompts) for model, names in MODELS.items()}

    def counts(half: int, label: str) -> list[Array]:
        return [
            decode(lm, halves[half], TOKENS, f"{model.split()[0]}, half {half + 1}, {label}")
            for model, (lm, halves) in models.items()
        ]

    first, second = counts(0, "in use"), counts(1, "in use")
    if args.check:
        vars(kinds).update(fit(first))
        kinds.PRIORS[:FREE] = [kind.prior for kind in KINDS]
        counts(1, "values of half 1")
    for name, value in fit([a + b for a, b in zip(first, second, strict=True)]).items():
        print(f"{name} = {value}")


if __name__ == "__main__":
    main()
