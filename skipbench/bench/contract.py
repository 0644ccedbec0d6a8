"""What every method must keep, as checks on small random models that raise AssertionError: of the
command `check`, and of the tests.
"""

import copy
import functools
import json
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch
from msgspec import structs
from torch.nn.functional import one_hot

from skipbench.decode.draft import Draft, State
from skipbench.decode.loop import Generation, generate
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.metrics.prices import Curve, Latencies
from skipbench.models.random_weights import random_model

PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]
Sampled = tuple[float, float, int]
FEW_WORDS = 7  # vocabulary of the model that is sampled from: few texts show what is wrong


def must(holds: bool, text: str) -> None:
    """Raises AssertionError with `text` unless `holds`."""
    if not holds:
        raise AssertionError(text)


@functools.cache
@torch.inference_mode(False)
def small_lm(family: str, vocab: int) -> LM:
    """A random model of 4 layers, with room for every check."""
    lm = LM(random_model(family, vocab))
    lm.allocate(480)  # committed tokens, and the widest tree of any method
    return lm


@functools.cache  # many methods are held against one plain output
@torch.inference_mode()
def _plain_greedy(model: Any, *prompt: int, length: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(length):
        tokens.append(int(model(torch.tensor([tokens]), use_cache=False).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


def plain_greedy(model: Any, prompt: list[int], length: int) -> list[int]:
    """Hugging Face's whole model without a cache, one token after the other."""
    return [*_plain_greedy(model, *prompt, length=length)]


def check_greedy(
    lm: LM, method: Method, prompt: list[int] = PROMPT, length: int = 24, drafts: bool = True
) -> None:
    """Counts of the rounds add up, the cache holds the rows of a plain prefix, and the output is
    the model's own; `drafts`: something must have been drafted.
    """
    out = generate(lm, method, prompt, length)
    check_counts(out, method)
    must(any(r.steps for r in out.rounds) or not drafts, "no token was drafted")
    check_cache(lm, prompt + out.tokens[:-1])
    check_tokens(out, plain_greedy(lm.model, prompt, length))


def check_tokens(out: Generation, plain: list[int]) -> None:
    """The output is the model's own greedy text."""
    for at, (got, own) in enumerate(zip(out.tokens, plain, strict=False), 1):
        must(got == own, f"token {at} is {got}, the model's own is {own}")
    must(out.tokens == plain, f"{len(out.tokens)} tokens, the model's own are {len(plain)}")


def check_counts(out: Generation, method: Method) -> None:
    """Counts of the rounds add up, and the trace can be recorded."""
    emitted, wanted = sum(r.emitted for r in out.rounds), len(out.tokens) - 1
    must(emitted == wanted, f"rounds emitted {emitted} of {wanted}")
    for n, r in enumerate(out.rounds, 1):
        must(r.steps > 0 or not r.nodes, f"round {n} drafted {r.nodes} tokens with steps=0")
        must(r.chain <= r.accepted <= r.nodes, f"round {n} counts {r}")
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
        row = f"row {int(same.int().argmin())} is not that of a plain prefix"
        must(bool(same.all()), f"{row}; write from state.lm.cache.length on")


def check_ends(lm: LM, method: Method, step: int = 1) -> None:
    """Every token of the greedy output in turn as EOS (every third with `step=3`), a second id that
    never occurs beside it; then outputs of 1, 2 and 5 tokens, of a prompt of one token, too.
    """
    plain = plain_greedy(lm.model, PROMPT, 16)
    unused = next(t for t in range(lm.config.vocab_size) if t not in plain)
    cases = [(PROMPT, 16, frozenset([eos, unused])) for eos in [*dict.fromkeys(plain)][::step]]
    cases += [(p, length, frozenset()) for p in (PROMPT, PROMPT[:1]) for length in (1, 2, 5)]
    for prompt, length, eos in cases:
        out, wanted = generate(lm, method, prompt, length, eos), "eos" if eos else "length"
        own = plain_greedy(lm.model, prompt, length)
        end = next((n for n, token in enumerate(own, 1) if token in eos), length)
        check_tokens(out, own[:end])
        must(out.finish == wanted, f"the output ended by {out.finish} in place of {wanted}")


def check_carried(lm: LM, method: Method) -> None:
    """A copy that goes on from a recorded state does as the method that never stopped, and another
    copy, which has decoded nothing, as the method did first.
    """
    before, after = copy.deepcopy(method), copy.deepcopy(method)
    firsts = [[generate(lm, m, [n, *PROMPT], 20).rounds for n in (0, 1)] for m in (method, before)]
    must(firsts[0] == firsts[1], "a new object does not decode as the first: something lasts")
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))

    def shown(one: Method) -> list[Any]:
        out = generate(lm, one, [2, *PROMPT], 20)
        return [out.tokens, out.rounds, one.trace(), str(one.skip), json.dumps(one.state_dict())]

    other = "after load_state_dict the next prompt has other rounds, or another trace, set or state"
    advice = "name in `carried` what lasts, set all else in begin"
    must(shown(method) == shown(after), f"{other}; {advice}")


def check_drafts(lm: LM, method: Method, sampler: Sampler | None = None) -> None:
    """Drafts are chains or trees of ids, no deeper than asked for, with distributions in `q`."""
    propose, vocabulary = method.propose, lm.vocabulary

    def judged(state: State, budget: int) -> Draft:
        draft, depth = propose(state, budget), [0]
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents(), strict=True)):
            must(0 <= token < vocabulary, f"token {token} is not in a vocabulary of {vocabulary}")
            must(-1 <= parent < node, f"node {node} has the parent {parent}, which stands behind")
            depth.append(depth[parent + 1] + 1)
        deepest = max(depth[: 1 + len(draft.tokens[: draft.num_verifiable])])
        must(deepest <= budget, f"a draft of {deepest} tokens where {budget} were asked for")
        for node, q in draft.q.items():
            must(len(q) == vocabulary, f"q[{node}] has {len(q)} chances, wanted {vocabulary}")
            total = float(q.float().sum())
            must(abs(total - 1) < 1e-2, f"q[{node}] adds up to {total:.2g} in place of 1")
        return draft

    vars(method)["propose"] = judged
    try:
        generate(lm, method, PROMPT[:3], 24, sampler=sampler)
    finally:
        del vars(method)["propose"]


@torch.inference_mode()
def check_sampling(
    lm: LM, method: Method, runs: int = 300, how: Sampled = (0.8, 0.95, 0), drafts: bool = True
) -> None:
    """Sampled tokens are distributed as a model of few words says: by token, by rank, and by token
    behind each token; `how`: temperature, top-p, top-k. Drafts are as `check_drafts` wants them.
    """
    check_drafts(lm, method, Sampler(*how))
    each = (Sampler(*how, seed=seed) for seed in range(runs))
    outs = [generate(lm, method, PROMPT[:3], 7, sampler=sampler) for sampler in each]
    must(any(r.steps for out in outs for r in out.rounds) or not drafts, "no token was drafted")
    texts = torch.tensor([PROMPT[:3] + out.tokens for out in outs])
    logits = lm.model(texts, use_cache=False).logits[:, 3:-1]  # the first token is of the prefill
    p = Sampler(*how).probs(logits.flatten(0, 1)).double()  # [steps, V]
    hot = one_hot(texts, p.shape[1])
    before, emitted = hot[:, 3:-1].flatten(0, 1), hot[:, 4:].flatten(0, 1)
    must(bool((p * emitted).sum(1).all()), "a token was emitted that top-p or top-k leaves out")
    order, behind = p.argsort(1), before[:, :, None]
    for by, (chance, seen) in {
        "token": (p, emitted),
        "rank": (p.gather(1, order), emitted.gather(1, order)),
        "token behind a token": (behind * p[:, None], behind * emitted[:, None]),
    }.items():
        variance = (chance * (1 - chance)).sum(0)
        off = float(((seen - chance).sum(0) / variance.sqrt())[variance > 5].abs().max())
        far = f"counts by {by} are {off:.1f} standard deviations from what the model says"
        must(off < 5, f"{far}; draw with state.sampler.pick, and give in q what was drawn from")


PROPERTIES: dict[str, Callable[[LM, Method], None]] = {
    "greedy output": lambda lm, method: check_greedy(lm, method, PROMPT, 96, method.drafts),
    "end of text and limits": check_ends,
    "drafts": check_drafts,
    "state between prompts": check_carried,
    "sampled output": lambda lm, method: check_sampling(lm, method, drafts=method.drafts),
}


def check_contract(factory: Callable[..., Method]) -> Iterator[tuple[str, str | None]]:
    """Names of the properties, each with what is wrong, `None` where it is kept; `factory` makes
    the method, called with `layers=`. Raises SkipbenchError for a setting that it refuses.
    """
    _ = factory(layers=small_lm("llama", FEW_WORDS).layers).variant
    for name, check in PROPERTIES.items():
        few = name == "sampled output"  # else Mistral, whose window is shorter than the texts
        lm = small_lm("llama", FEW_WORDS) if few else small_lm("mistral", 61)
        method, fault = factory(layers=lm.layers), None
        if method.needs_latency:
            full = Latencies(1e-4, 1e-7, 1e-4, 1e-4, lm.layers)
            lm.prices.model = structs.replace(full, variants={method.variant: full})
            lm.prices.curves = [Curve(0, {1: 1.0, 32: 2.0})]
        try:
            check(lm, method)
        except AssertionError as error:
            fault = " ".join(str(error).split())
        except Exception as error:  # of the method's own code
            last = traceback.extract_tb(error.__traceback__)[-1]
            fault = f"{type(error).__name__}: {error} ({last.filename}:{last.lineno})"
        yield name, fault
