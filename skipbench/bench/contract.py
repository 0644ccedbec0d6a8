"""What every method must keep, as checks on small random models that raise AssertionError: of the
command `check`, and of the tests.
"""

import functools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from skipbench.decode.draft import Draft, State
from skipbench.decode.loop import Generation, generate
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.models.random_weights import random_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
ROWS = 480
"""Of the cache: committed tokens, and the widest tree of any method."""
TREES = 3
"""Trees per prompt whose rows are compared with their paths."""
Make = Callable[[], Method]


def must(holds: bool, text: str) -> None:
    """Raises AssertionError with `text` unless `holds`."""
    if not holds:
        raise AssertionError(text)


@functools.cache
@torch.inference_mode(False)
def small_lm(family: str, vocab: int = 61) -> LM:
    """A random model of 4 layers, with room for every check."""
    lm = LM(random_model(family, vocab))
    lm.allocate(ROWS)
    return lm


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
    must(sum(r.steps for r in out.rounds) > 0 or not drafts, "no token was drafted")
    check_tokens(out, plain_greedy(lm.model, prompt, length))
    check_counts(out, method)
    check_cache(lm, prompt + out.tokens[:-1])


def check_tokens(out: Generation, plain: list[int]) -> None:
    """The output is the model's own greedy text."""
    if out.tokens != plain:
        pairs = enumerate(zip(out.tokens, plain, strict=False), 1)
        at, (got, own) = next(((n, pair) for n, pair in pairs if pair[0] != pair[1]), (0, (0, 0)))
        differs = f"token {at} is {got}, the model's own is {own}"
        many = f"{len(out.tokens)} tokens, the model's own are {len(plain)}"
        raise AssertionError(differs if at else many)


def check_counts(out: Generation, method: Method) -> None:
    """Counts of the rounds add up, and the trace can be recorded."""
    emitted = sum(r.emitted for r in out.rounds)
    must(emitted == len(out.tokens) - 1, f"rounds emitted {emitted} of {len(out.tokens) - 1}")
    for n, r in enumerate(out.rounds, 1):
        must(r.steps > 0 or not r.nodes, f"round {n} drafted {r.nodes} tokens with steps=0")
        counts = f"{r.chain} of the chain, {r.accepted} accepted, {r.nodes} drafted"
        must(r.chain <= r.accepted <= r.nodes, f"round {n}: {counts}")
    json.dumps(method.trace(), allow_nan=False)
    DraftPlan.parse(str(method.skip), method.layers or 1 << 10)


@torch.inference_mode()
def check_cache(lm: LM, tokens: list[int]) -> None:
    """The committed rows equal those of a plain prefix."""
    length = len(tokens)
    must(lm.cache.length == length, f"the cache has {lm.cache.length} rows for {length} tokens")
    committed = [rows[:length].clone() for rows in lm.cache.rows]
    lm.prefill(tokens)
    for got, rows in zip(committed, lm.cache.rows, strict=True):
        same = torch.isclose(got, rows[:length], rtol=1e-3, atol=1e-4).flatten(1).all(1)
        must(bool(same.all()), f"row {int(same.int().argmin())} is not that of a plain prefix")


def check_eos(lm: LM, method: Method, step: int = 1) -> None:
    """Every token of the greedy output in turn as EOS, a second id that never occurs beside it: the
    output ends at the first.

    Args:
        step: 3 takes every third token alone.
    """
    plain = plain_greedy(lm.model, PROMPT, 16)
    unused = next(t for t in range(lm.config.vocab_size) if t not in plain)
    for eos in [*dict.fromkeys(plain)][::step]:
        out = generate(lm, method, PROMPT, 16, frozenset([eos, unused]))
        check_tokens(out, plain[: plain.index(eos) + 1])
        must(out.finish == "eos", f"the output ended by {out.finish} in place of EOS")


def check_limits(lm: LM, method: Method) -> None:
    """One new token; a prompt of one token; an output that ends inside a draft."""
    for prompt in (PROMPT, PROMPT[:1]):
        for length in (1, 2, 5):
            out = generate(lm, method, prompt, length)
            check_tokens(out, plain_greedy(lm.model, prompt, length))
            must(out.finish == "length", f"the output ended by {out.finish} in place of its limit")


def check_carried(lm: LM, make: Make) -> None:
    """A method that goes on from a recorded state gives the rounds and the trace of one that never
    stopped; and one that is made anew those of the first.
    """
    prompts = [[first, *PROMPT] for first in range(3)]
    unbroken, before, after = (make() for _ in range(3))
    once, again = ([generate(lm, m, p, 20).rounds for p in prompts[:2]] for m in (unbroken, before))
    must(once == again, "a new object does not decode as the first: it keeps what is not its own")
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    wanted, got = (generate(lm, method, prompts[2], 20) for method in (unbroken, after))
    same = (got.tokens, got.rounds) == (wanted.tokens, wanted.rounds)
    must(same, "after state_dict and load_state_dict the next prompt has other rounds")
    must(after.trace() == unbroken.trace(), "... another trace")
    must(str(after.skip) == str(unbroken.skip), "... another skip set")
    states = (json.dumps(method.state_dict()) for method in (after, unbroken))
    must(len({*states}) == 1, "... another state_dict")


@contextmanager
def changed_drafts(method: Method, change: Callable[[State, int, Draft], Draft]) -> Iterator[None]:
    """Within it the loop gets what `change` makes of a draft."""
    propose = method.propose

    def changed(state: State, budget: int) -> Draft:
        return change(state, budget, propose(state, budget))

    vars(method)["propose"] = changed
    try:
        yield
    finally:
        del vars(method)["propose"]


def check_drafts(lm: LM, method: Method, sampler: Sampler | None = None) -> None:
    """Every draft is a chain or a tree of ids, no deeper than asked for, with distributions in `q`;
    and the rows of a tree see their own path alone.
    """
    left = TREES

    def judged(state: State, budget: int, draft: Draft) -> Draft:
        nonlocal left
        check_draft(draft, budget, lm.vocabulary)
        if draft.parent is not None and draft.tokens and left:
            left -= 1
            check_paths(lm, [state.pending, *draft.tokens], draft.token_rows(lm.cache.length))
        return draft

    with changed_drafts(method, judged):
        generate(lm, method, PROMPT[:3], 24, sampler=sampler)


def check_draft(draft: Draft, budget: int, vocabulary: int) -> None:
    """One draft by itself."""
    depth = [0]
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents(), strict=True)):
        must(0 <= token < vocabulary, f"token {token} is not in a vocabulary of {vocabulary}")
        must(-1 <= parent < node, f"node {node} has the parent {parent}, which stands behind it")
        depth.append(depth[parent + 1] + 1)
    deepest = max(depth[: 1 + len(draft.tokens[: draft.num_verifiable])])
    must(deepest <= budget, f"a draft of {deepest} tokens where {budget} were asked for")
    for node, q in draft.q.items():
        shape, total = tuple(q.shape), float(q.float().sum())
        must(shape == (vocabulary,), f"q[{node}] has the shape {shape}, wanted [{vocabulary}]")
        must(abs(total - 1) < 1e-2, f"q[{node}] adds up to {total:.2g} in place of 1")


@torch.inference_mode()
def check_paths(lm: LM, tokens: list[int], rows: TokenRows, skip: DraftPlan | None = None) -> None:
    """Each row of a tree has the logits of its path as a chain."""
    plan = skip or DraftPlan.of(lm.layers)
    got, paths = lm.logits(tokens, rows, plan).clone(), rows.paths()
    for path in (p for p in paths if not any(p == longer[:-1] for longer in paths)):
        chain = TokenRows.chain(rows.start, len(path))
        wanted = lm.logits([tokens[row] for row in path], chain, plan)
        torch.testing.assert_close(got[path], wanted, rtol=1e-3, atol=1e-4)
