"""What every engine must keep, as checks that raise AssertionError, and beside them those of a
method, from the package.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from skipbench.bench.contract import PROMPT as PROMPT
from skipbench.bench.contract import check_cache as check_cache
from skipbench.bench.contract import check_carried as check_carried
from skipbench.bench.contract import check_drafts as check_drafts
from skipbench.bench.contract import check_ends as check_ends
from skipbench.bench.contract import check_greedy as check_greedy
from skipbench.bench.contract import check_sampling as check_sampling
from skipbench.bench.contract import plain_greedy as plain_greedy
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet


def check_empty_set(lm: LM, widths: tuple[int, ...] = ()) -> None:
    """A draft that skips nothing is always right."""
    method = FixedSet("empty", DraftPlan.of(lm.layers), Fixed(5), widths)
    out = generate(lm, method, PROMPT, 24)
    assert all(r.chain == r.steps for r in out.rounds)


@torch.inference_mode()
def check_draft_logits(lm: LM, skip: DraftPlan) -> None:
    """Logits of a drafted chain equal Hugging Face's, with the skipped modules silenced behind the
    full model's K/V.
    """
    from transformers import DynamicCache

    draft = [7, 8, 9, 10]
    cache = DynamicCache(config=lm.config)
    lm.model(torch.tensor([PROMPT]), past_key_values=cache)

    def silence(module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return torch.zeros_like(output[0]), *output[1:]
        return torch.zeros_like(output)

    layers = lm.model.model.layers
    silenced = [layers[i].self_attn for i in skip.attention] + [layers[i].mlp for i in skip.mlp]
    hooks = [module.register_forward_hook(silence) for module in silenced]
    try:
        wanted = [lm.model(torch.tensor([[t]]), past_key_values=cache).logits[0, 0] for t in draft]
    finally:
        for hook in hooks:
            hook.remove()
    lm.prefill(PROMPT)
    for step, (token, reference) in enumerate(zip(draft, wanted, strict=True)):
        got = lm.logits([token], TokenRows.chain(len(PROMPT) + step, 1), skip)[0]
        torch.testing.assert_close(got, reference, rtol=1e-3, atol=1e-4)


@torch.inference_mode()
def check_tree_logits(lm: LM, skip: DraftPlan) -> None:
    """Each node of a tree has the logits of its path as a chain; two branches, deeper than a
    window.
    """
    tokens = [(3 * step + branch) % 61 for step in range(9) for branch in (1, 20)]
    parent = tuple(row - 2 if row >= 2 else -1 for row in range(len(tokens)))
    lm.prefill(PROMPT)
    rows = TokenRows.tree(len(PROMPT), parent)
    got, paths = lm.logits(tokens, rows, skip).clone(), rows.paths()
    for path in (p for p in paths if not any(p == longer[:-1] for longer in paths)):
        chain = TokenRows.chain(rows.start, len(path))
        wanted = lm.logits([tokens[row] for row in path], chain, skip)
        torch.testing.assert_close(got[path], wanted, rtol=1e-3, atol=1e-4)


class Guesser(Method):
    """A method with wild guesses as a chain or a tree: what lookup methods propose, with no
    distribution behind it.
    """

    needs_hidden_states = True

    def __init__(self, vocab: int, tree: bool) -> None:
        super().__init__(name="guesser")
        self.vocab, self.tree = vocab, tree

    def propose(self, state: State, budget: int) -> Any:
        first, second = state.pending, (state.pending + 1) % self.vocab
        if self.tree and budget >= 2:
            return Draft([first, second, second, first, first], [-1, -1, 0, 1, 2], steps=3)
        return Draft([first, second][:budget], steps=min(2, budget))

    def adapt(self, state: State, verification: Verification) -> None:
        rows = len(verification.draft.tokens) + 1
        assert len(verification.hidden_states) == state.lm.sublayers + 1
        assert all(x.shape[0] == rows for x in verification.hidden_states)


def knapsack_plain(
    x: Tensor,
    run_sublayer: Callable[[int, Tensor], Tensor],
    weights: Sequence[int],
    budget: int,
    tau: float,
    free: Sequence[bool],
) -> tuple[list[int], list[frozenset[int]], list[float], Tensor]:
    """KnapSpec's Algorithm 1 as the paper writes it, one branch after the other; arguments and
    results of `knapspec.knapsack`.
    """

    def cosine(h: Tensor, i: int) -> float:
        return float(cosine_similarity(h.float(), x[i].float(), dim=-1).mean())

    g = {0: (cosine(x[0], 0), x[0], frozenset[int]())}  # g[0, 0] = X^(0)
    for i, w in enumerate(weights, 1):
        found: dict[int, tuple[float, Tensor, frozenset[int]]] = {}
        for j, (_, states, skipped) in g.items():
            # h_e of Eq. 7; Algorithm 2, line 6
            executed = run_sublayer(i - 1, states[None])[0] if j else x[i]
            sigma = cosine(executed, i) if j else 1.0
            if sigma >= tau and (j not in found or sigma >= found[j][0]):
                found[j] = sigma, executed, skipped
            sigma = cosine(states, i)  # h_s of Eq. 7
            fits = free[i - 1] and j + w <= budget
            if fits and sigma >= tau and (j + w not in found or sigma > found[j + w][0]):  # Eq. 8
                found[j + w] = sigma, states, skipped | {i - 1}
        g = dict(sorted(found.items()))
    last = [h for _, h, _ in g.values()]
    sets = [skipped for *_, skipped in g.values()]
    return [*g], sets, [s for s, *_ in g.values()], torch.stack(last) if last else x[:0]
