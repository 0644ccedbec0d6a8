"""What every method must keep, as checks that raise AssertionError.

`test_contract.py` runs them, `test_faults.py` breaks them.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def plain_greedy(model: Any, prompt: list[int], length: int) -> list[int]:
    """Hugging Face's whole model without a cache, one token after the other."""
    return list(_plain_greedy(model, tuple(prompt), length))


@functools.cache  # many methods are held against one plain output
@torch.inference_mode()
def _plain_greedy(model: Any, prompt: tuple[int, ...], length: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def check_greedy(
    lm: LM, method: Method, prompt: list[int] = PROMPT, length: int = 24, drafts: bool = True
) -> None:
    """Greedy output equals the plain loop, counts add up, and the cache ends at its invariant.

    Args:
        drafts: whether the method must have drafted.
    """
    out = generate(lm, method, prompt, length)
    assert sum(r.steps for r in out.rounds) > 0 or not drafts, "no token was drafted"
    assert out.tokens == plain_greedy(lm.model, prompt, length)
    assert sum(r.emitted for r in out.rounds) == length - 1
    assert lm.cache.length == len(prompt) + length - 1
    check_cache(lm, prompt + out.tokens[:-1])


@torch.inference_mode()
def check_cache(lm: LM, tokens: list[int]) -> None:
    """The committed rows equal those of a plain prefix."""
    length = len(tokens)
    found = [rows[:length].clone() for rows in lm.cache.rows]
    lm.prefill(tokens)
    for got, rows in zip(found, lm.cache.rows, strict=True):
        torch.testing.assert_close(got, rows[:length], rtol=1e-3, atol=1e-4)


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
        return (
            (torch.zeros_like(output[0]), *output[1:])
            if isinstance(output, tuple)
            else torch.zeros_like(output)
        )

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
    depth, start = 9, len(PROMPT)
    paths = [[(3 * step + branch) % 61 for step in range(depth)] for branch in (1, 20)]
    tokens = [token for pair in zip(*paths, strict=True) for token in pair]
    parent = tuple(row - 2 if row >= 2 else -1 for row in range(2 * depth))
    lm.prefill(PROMPT)
    found = lm.logits(tokens, TokenRows.tree(start, parent), skip).clone()
    for branch, path in enumerate(paths):
        wanted = lm.logits(path, TokenRows.chain(start, depth), skip)
        torch.testing.assert_close(found[branch::2], wanted, rtol=1e-3, atol=1e-4)


def check_eos(lm: LM, method: Method) -> None:
    """Every token of the greedy output in turn as EOS, a second id that never occurs beside it: the
    output ends at the first.
    """
    plain = plain_greedy(lm.model, PROMPT, 16)
    unused = next(t for t in range(lm.config.vocab_size) if t not in plain)
    for eos in set(plain):
        out = generate(lm, method, PROMPT, 16, frozenset([eos, unused]))
        assert out.tokens == plain[: plain.index(eos) + 1]
        assert out.finish == "eos"


def check_limits(lm: LM, method: Method) -> None:
    """One new token; a prompt of one token; an output that ends inside a draft."""
    for prompt in (PROMPT, PROMPT[:1]):
        for length in (1, 2, 5):
            out = generate(lm, method, prompt, length)
            assert out.tokens == plain_greedy(lm.model, prompt, length)
            assert out.finish == "length"


@torch.inference_mode()
def _conditionals(model: Any, texts: list[list[int]], sampler: Sampler) -> np.ndarray:
    """The model's own distribution of every token of every text, given the tokens before it.

    Returns:
        [texts, length, V].
    """
    start, exact = PROMPT[:3], []
    for at in range(len(texts[0])):
        prefixes = {tuple(text[:at]): None for text in texts}
        ids = torch.tensor([[*start, *prefix] for prefix in prefixes])
        p = sampler.probs(model(ids, use_cache=False).logits[:, -1]).double().numpy()
        rows = dict(zip(prefixes, p, strict=True))
        exact.append(np.stack([rows[tuple(text[:at])] for text in texts]))
    return np.stack(exact, 1)


def p_value(p: np.ndarray, tokens: np.ndarray, groups: np.ndarray) -> float:
    """Chi-square of how often each group of tokens was emitted, against the model's conditionals.

    Given what stands before it, a token is in a group with the sum of its probabilities there. The
    residuals of all steps add up with the sum of their covariances.

    Args:
        p: [steps, V] the model's distribution at each step.
        tokens: [steps] what was emitted.
        groups: [steps, V] group of each token that might have been.
    """
    expected = np.bincount(groups.ravel(), p.ravel())
    kept = np.flatnonzero(expected >= 5)  # the others are one more group
    own = np.stack([np.where(groups == g, p, 0).sum(1) for g in kept], 1)
    emitted = groups[np.arange(len(tokens)), tokens]
    residual = (emitted[:, None] == kept).sum(0) - own.sum(0)
    covariance = np.diag(own.sum(0)) - own.T @ own
    inverse = np.linalg.pinv(covariance, hermitian=True)
    rank = np.linalg.matrix_rank(covariance, hermitian=True)
    from scipy import stats  # a machine with a GPU may not have it

    return float(stats.chi2.sf(residual @ inverse @ residual, rank))


def check_sampling(
    lm: LM,
    method: Method,
    runs: int = 300,
    length: int = 7,
    temperature: float = 0.8,
    top_p: float = 0.95,
    top_k: int = 0,
    drafts: bool = True,
) -> None:
    """Sampled tokens are distributed as the model says: by rank in its distribution, by token, and
    by token behind each token.

    Args:
        drafts: whether the method must have drafted; a check of a method that never does proves
            nothing.
    """
    texts, steps = [], 0
    for seed in range(runs):
        sampler = Sampler(temperature, top_p, top_k, seed=seed)
        out = generate(lm, method, PROMPT[:3], length, sampler=sampler)
        texts.append(out.tokens)
        steps += sum(r.steps for r in out.rounds)
    assert steps > 0 or not drafts, "no token was drafted"
    p = _conditionals(lm.model, texts, Sampler(temperature, top_p, top_k))
    tokens = np.array(texts)
    assert (np.take_along_axis(p, tokens[..., None], -1) > 0).all(), "outside of the support"
    # the first token is of the prefill, the same in every method
    p, before, tokens = p[:, 1:].reshape(-1, p.shape[-1]), tokens[:, :-1].ravel(), tokens[:, 1:]
    ids = np.broadcast_to(np.arange(p.shape[-1]), p.shape)
    groups = {
        "rank": p.argsort(1).argsort(1),
        "token": ids,
        "pair": ids + p.shape[-1] * before[:, None],
    }
    for name, of in groups.items():
        value = p_value(p, tokens.ravel(), of)
        assert value > 1e-4, f"p = {value:.1e} by {name}"


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
