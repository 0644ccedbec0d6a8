r"""Settings of the methods that draft without a model, over `dataset=tuning`: tokens per round,
mean rows per round, and the speed that the price of rows makes of them; no wall clock of a run.

    python scripts/tune_baselines.py --only lookahead recycling --prompts 12 --ranks

This command counted `SIZES` and `CHANCES` of methods/lookahead.py and methods/recycling.py.
`speed` is in tokens per pass of one row. With `--ranks`, the share of recycling's nodes of each
rank that is accepted where the parent is.
"""

import argparse
from collections import Counter

from skipbench.bench.load import load_model, prepare
from skipbench.bench.prompts import eos_ids
from skipbench.config.compose import compose
from skipbench.decode.draft import State, Verification
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.lm.model import LM
from skipbench.profile.rows import ROWS, curve, verification_seconds

SIZES = [(2, 3, 2), (2, 4, 2), (2, 4, 4), (2, 5, 4), (4, 4, 4), (5, 5, 5), (7, 5, 7)]
GRID: dict[str, list[str]] = {
    "lookahead": [
        f"method.window={w} method.level={n} method.guesses={g} method.pool_from_prompt=true"
        for w, n, g in SIZES
    ],
    "recycling": [f"method.nodes={n}" for n in (31, 16, 8, 4)],
    "prompt-lookup": [f"method.length={n}" for n in (3, 5, 7, 10, 15)],
    "suffix": [f"method.factor={f} method.max_nodes={n}" for f in (1, 2) for n in (8, 16, 24)],
    "parallel": [f"method.block_size={n}" for n in (2, 3, 4, 8)],
}


class Counted:
    """Rounds of a method over all prompts."""

    def __init__(self, method: Method) -> None:
        self.method, self.rows, self.emitted = method, Counter[int](), 0
        self.tried, self.hits = Counter[int](), Counter[int]()
        """Nodes by their rank among the children of an accepted parent."""
        self._adapt = method.adapt
        method.adapt = self.adapt  # type: ignore[method-assign]  # of this run

    def adapt(self, state: State, verification: Verification) -> None:
        draft, accepted = verification.draft, verification.accepted
        self.rows[1 + len(draft.tokens)] += 1
        self.emitted += len(accepted) + 1
        ranks = Counter[int]()
        for node, parent in enumerate(draft.parents()):
            if parent < 0 or parent in accepted:
                self.tried[ranks[parent]] += 1
                self.hits[ranks[parent]] += node in accepted
                ranks[parent] += 1
        self._adapt(state, verification)

    def line(self, prices: list[float]) -> str:
        rounds = self.rows.total()
        mean_rows = sum(n * of for n, of in self.rows.items()) / rounds
        passes = sum(prices[min(n, len(prices) - 1)] * of for n, of in self.rows.items())
        return f"{self.emitted / rounds:.3f} | {mean_rows:.1f} | {self.emitted / passes:.3f}"


def run(lm: LM, words: list[str], prompts: list[list[int]], tokens: int) -> Counted:
    method = compose(words).method.factory()(layers=lm.layers)
    counted = Counted(method)
    for prompt in prompts:
        generate(lm, method, prompt, tokens, eos_ids(lm))
    return counted


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--prompts", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--only", nargs="+", choices=GRID, default=list(GRID))
    parser.add_argument("--prices", type=float, nargs=len(ROWS), help=f"of {ROWS} rows")
    parser.add_argument("--ranks", action="store_true")
    parser.add_argument("--more", nargs="*", default=[], help="overrides")
    args = parser.parse_args()
    base = [f"model={args.model}", "dataset=tuning", *args.more]
    config = compose(base)
    lm, tokenizer = load_model(config.model, config.engine)
    rows = config.dataset.rows(args.prompts)
    prompts = [prompt.ids for prompt in prepare(lm, tokenizer, rows, config.dataset)]
    lm.prefill(prompts[0])
    seconds = dict(zip(ROWS, args.prices, strict=True)) if args.prices else verification_seconds(lm)
    prices = curve(seconds, 100)
    print("prices:", *(f"{n}: {prices[n]:.2f}" for n in ROWS))
    print("| method | tokens per round | rows | speed |\n|---|---|---|---|")
    for name in args.only:
        for case in GRID[name]:
            words = [*base, f"method={name}", *case.split()]
            counted = run(lm, words, prompts, args.tokens)
            print(f"| {name} {case.replace('method.', '')} | {counted.line(prices)} |", flush=True)
            if args.ranks:
                shares = (counted.hits[rank] / n for rank, n in sorted(counted.tried.items()))
                print("ranks:", *(f"{share:.3f}" for share in shares))


if __name__ == "__main__":
    main()
