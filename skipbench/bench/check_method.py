"""The contract of one method as properties: each kept or broken, and then what its fault gains."""

import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from skipbench.bench import contract
from skipbench.bench.contract import PROMPT, must, plain_greedy, small_lm
from skipbench.bench.contract_sampling import check_sampling
from skipbench.decode.loop import Generation, generate
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.lm.model import LM
from skipbench.metrics.prices import Parts

Make = Callable[[LM], Method]
FAMILIES = "llama", "mistral"
"""Mistral's window of attention is shorter than the texts."""
LENGTHS = 96, 32, 32
"""New tokens of the prompts that one object decodes one after the other."""
GAIN_RUNS = 40
"""Sampled texts by which a made-up gain is measured."""
FEW_WORDS = 7
"""Vocabulary of the model that is sampled from: few runs show a wrong distribution."""


class Property(NamedTuple):
    """What a method must keep.

    Attributes:
        check: raises AssertionError where the method does not.
        advice: what to do then.
        sampled: whether the fault gains where tokens are sampled; `None` where it gains nothing.
    """

    name: str
    check: Callable[[Make], None]
    advice: str
    sampled: bool | None = None


class Outcome(NamedTuple):
    """A property of a method; `fault`: why it does not hold, `None` where it does."""

    name: str
    fault: str | None
    advice: str


def check_method(factory: Callable[..., Method]) -> Iterator[Outcome]:
    """Checks a method, one property after the other.

    Args:
        factory: makes the method; called with `layers=`.
    """

    def make(lm: LM) -> Method:
        method = factory(layers=lm.layers)
        if method.needs_latency:
            lm.prices.model = Parts(1e-4, 1e-7, 1e-4, 1e-4, lm.layers)
        return method

    _ = make(small_lm(FAMILIES[0])).variant  # a wrong setting is no fault of a property
    for one in PROPERTIES:
        fault, advice = None, one.advice
        try:
            one.check(make)
        except AssertionError as error:
            gain = "" if one.sampled is None else _gain(make, one.sampled)
            fault = " ".join(str(error).split()) + gain
        except Exception as error:  # of the method's own code
            last = traceback.extract_tb(error.__traceback__)[-1]
            fault, advice = f"{type(error).__name__}: {error}", f"{last.filename}:{last.lineno}"
        yield Outcome(one.name, fault, advice)


def _gain(make: Make, sampled: bool) -> str:
    """What a fault is worth: M as it is, and with drafts that are verified as they should be."""
    lm = small_lm(FAMILIES[0], FEW_WORDS if sampled else 61)
    prompt, length = (PROMPT[:3], 7) if sampled else (PROMPT, LENGTHS[0])
    plain = None if sampled else plain_greedy(lm.model, prompt, length)

    def tokens_per_round(honest: bool) -> float:
        method, rounds = make(lm), 0
        guesses = contract.changed_drafts(method, lambda state, budget, d: replace(d, q={}))
        with guesses if honest and sampled else nullcontext():
            for seed in range(GAIN_RUNS if sampled else 1):
                sampler = Sampler(0.8, 0.95, seed=seed) if sampled else None
                reference = plain if honest else None
                out = generate(lm, method, prompt, length, sampler=sampler, reference=reference)
                rounds += len(out.rounds)
        return (length - 1) * (GAIN_RUNS if sampled else 1) / rounds

    try:
        claimed, honest = (tokens_per_round(one) for one in (False, True))
    except Exception:  # the fault itself is told already
        return ""
    if claimed <= honest * 1.05:
        return ""
    return f"; it gains by that: M {claimed:.2f}, and {honest:.2f} if it were verified"


def _decoded(make: Make) -> Iterator[tuple[LM, Method, list[int], Generation]]:
    """Several prompts with one method, on every family."""
    for family in FAMILIES:
        lm = small_lm(family)
        method = make(lm)
        for first, length in enumerate(LENGTHS):
            prompt = [first, *PROMPT]
            yield lm, method, prompt, generate(lm, method, prompt, length)


def _greedy(make: Make) -> None:
    steps, drafts = 0, False
    for lm, method, prompt, out in _decoded(make):
        contract.check_tokens(out, plain_greedy(lm.model, prompt, len(out.tokens)))
        steps, drafts = steps + sum(r.steps for r in out.rounds), method.drafts
    must(steps > 0 or not drafts, "no token was drafted, so that nothing is proven")


def _rollback(make: Make) -> None:
    for lm, _, prompt, out in _decoded(make):
        contract.check_cache(lm, prompt + out.tokens[:-1])


def _ends(make: Make) -> None:
    method = make(lm := small_lm(FAMILIES[0]))
    contract.check_eos(lm, method)
    contract.check_limits(lm, method)


def _drafts(make: Make) -> None:
    for vocab, sampler in ((61, None), (FEW_WORDS, Sampler(0.8, 0.95, seed=1))):
        lm = small_lm(FAMILIES[0], vocab)
        contract.check_drafts(lm, make(lm), sampler)


def _sampled(make: Make) -> None:
    method = make(lm := small_lm(FAMILIES[0], FEW_WORDS))
    check_sampling(lm, method, drafts=method.drafts)


def _carried(make: Make) -> None:
    lm = small_lm(FAMILIES[0])
    contract.check_carried(lm, partial(make, lm))


def _telemetry(make: Make) -> None:
    for _, method, _, out in _decoded(make):
        contract.check_counts(out, method)


PROPERTIES = (
    Property(
        "greedy output",
        _greedy,
        "the tokens, the target's logits and the committed rows of the cache are the loop's alone; "
        "a method returns drafts",
        sampled=False,
    ),
    Property(
        "rollback",
        _rollback,
        "write only cache rows from state.lm.cache.length on, and leave that length as it is",
    ),
    Property(
        "end of text and limits",
        _ends,
        "draft at most `budget` tokens, also 0, and leave EOS and the length to the loop",
    ),
    Property(
        "drafts and tree masks",
        _drafts,
        "parents stand before their children; q[n] is the distribution [V] that the children of "
        "node n were drawn from, n=-1 for the pending token",
        sampled=True,
    ),
    Property(
        "sampled output",
        _sampled,
        "draw with state.sampler.pick and give in q what was drawn from; leave q out for a guess",
        sampled=True,
    ),
    Property(
        "state between prompts",
        _carried,
        "name in `carried` what lasts from prompt to prompt, set all else in begin, and keep "
        "nothing outside of the object",
    ),
    Property(
        "telemetry",
        _telemetry,
        "steps are the forward passes of a draft, one per token of a guess; log holds JSON values",
    ),
)
