"""What every method must keep, as checks that raise AssertionError.

`test_contract.py` runs them, `test_faults.py` breaks them.
"""

import functools
from collections import Counter
from typing import Any

import torch
from scipy import stats

from skipbench.decode.drafting import Drafter
from skipbench.decode.loop import generate
from skipbench.decode.method import Method, Verification
from skipbench.decode.sampling import Sampler
from skipbench.decode.state import State
from skipbench.decode.stopping import Fixed
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.skipset import SkipSet

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


def check_greedy(lm: LM, method: Method, prompt: list[int] = PROMPT, length: int = 24) -> None:
    """Greedy output equals the plain loop, counts add up, and the cache ends at its invariant."""
    out = generate(lm, method, prompt, length)
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
    method = FixedSet("empty", SkipSet.of(lm.layers), Drafter(Fixed(5), widths))
    out = generate(lm, method, PROMPT, 24)
    assert all(r.chain == r.steps for r in out.rounds)


@torch.inference_mode()
def check_draft_logits(lm: LM, skip: SkipSet) -> None:
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
def check_tree_logits(lm: LM, skip: SkipSet) -> None:
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


@functools.cache
@torch.inference_mode()
def _exact(model: Any, temperature: float, top_p: float) -> dict[tuple[int, ...], float]:
    """Probability of every three tokens behind the first three of the prompt."""
    sampler, exact = Sampler(temperature, top_p), {(): 1.0}
    for _ in range(3):
        longer: dict[tuple[int, ...], float] = {}
        for prefix, mass in exact.items():
            logits = model(torch.tensor([PROMPT[:3] + list(prefix)]), use_cache=False).logits[
                0, -1:
            ]
            for token, p in enumerate(sampler.probs(logits)[0].tolist()):
                if p > 0:
                    longer[(*prefix, token)] = mass * p
        exact = longer
    return exact


@torch.inference_mode()
def check_sampling(
    lm: LM, method: Method, runs: int = 1500, temperature: float = 0.8, top_p: float = 0.95
) -> None:
    """Three sampled tokens are distributed as the model says: chi-square of the last two against
    the exact joint.
    """
    exact = _exact(lm.model, temperature, top_p)
    found = Counter(
        tuple(
            generate(
                lm, method, PROMPT[:3], 3, sampler=Sampler(temperature, top_p, seed=seed)
            ).tokens
        )
        for seed in range(runs)
    )
    assert set(found) <= set(exact), "a token outside the support was emitted"
    common = [k for k, mass in exact.items() if mass * runs >= 5]
    observed = [found[k] for k in common] + [runs - sum(found[k] for k in common)]
    expected = [exact[k] * runs for k in common] + [runs * (1 - sum(exact[k] for k in common))]
    if expected[-1] < 5:
        observed, expected = (
            [*observed[:-2], sum(observed[-2:])],
            [*expected[:-2], sum(expected[-2:])],
        )
    assert len(common) > 5, "too peaked, or too flat for so few runs"
    assert stats.chisquare(observed, expected, sum_check=False).pvalue > 1e-4


class Guesser:
    """A method with wild guesses as a chain or a tree: what lookup methods propose, with no
    distribution behind it.
    """

    name, feature, needs_hidden_states = "guesser", "", True

    def __init__(self, vocab: int, tree: bool) -> None:
        self.vocab, self.tree = vocab, tree

    def begin(self, state: State) -> None:
        pass

    def propose(self, state: State, budget: int) -> Any:
        from skipbench.decode.method import Draft

        first, second = state.pending, (state.pending + 1) % self.vocab
        if self.tree and budget >= 2:
            return Draft([first, second, second, first, first], [-1, -1, 0, 1, 2], steps=3)
        return Draft([first, second][:budget], steps=min(2, budget))

    def adapt(self, state: State, verification: Verification) -> None:
        rows = len(verification.draft.tokens) + 1
        assert len(verification.hidden_states) == state.lm.sublayers + 1
        assert all(x.shape[0] == rows for x in verification.hidden_states)
