"""Times rounds inside the decoding loop, with their softmax, choice of tokens and masks: draft
steps by skip set, verifications by rows and context. `predict` takes verifications from them;
methods take what the host does of every round and draft step.
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import torch

from skipbench.decode.draft import Draft, State
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.method import Method
from skipbench.decode.rounds import in_turn
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.metrics.host import Host, host_of
from skipbench.metrics.prices import LOOP, PARTS, Prices, TimedRound
from skipbench.profile.clock import Clock
from skipbench.profile.latency import Advance
from skipbench.skipset import fixed_set

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 25, 33, 49, 65, 97)
"""Rows of verifications without a draft; kernels take blocks of rows: a few would hide steps."""
DRAFTED_ROWS = (9, 17, 33)
"""Rows of verifications after a draft, beside those of as many rows as it has tokens."""
ROUNDS = 3  # timed rounds per visit of a kind, after one that is not
STEPS = 4


@dataclass(frozen=True)
class Kind:
    """A round: `steps` draft steps by a plan, then a verification of `rows`."""

    context: int
    rows: int
    steps: int
    plan: DraftPlan


class Scripted(SkipMethod):
    """A method whose rounds are all of one kind."""

    def __init__(self, kind: Kind) -> None:
        # the smallest threshold reads every confidence and ends no draft
        stop = Fixed(max(1, kind.steps), threshold=1e-12)
        super().__init__(name="scripted", layers=kind.plan.layers, stop=stop)
        self.kind, self.skip = kind, kind.plan

    adapt = Method.adapt

    def propose(self, state: State, budget: int) -> Draft:
        if self.kind.steps:
            self.draft(state, self.kind.steps)
        return Draft([state.pending] * (self.kind.rows - 1))


def kinds(layers: int, contexts: Sequence[int]) -> Iterator[Kind]:
    """All kinds that are timed, at the first and the last context."""
    none, half = DraftPlan.of(layers), fixed_set("uniform", layers, 0.5)
    attention, mlp = (DraftPlan.of(layers, range(part, 2 * layers, 2)) for part in (0, 1))
    for context in dict.fromkeys((min(contexts), max(contexts))):
        yield from (Kind(context, rows, 0, none) for rows in ROWS)
        yield from (Kind(context, 1 + STEPS, STEPS, plan) for plan in (none, half, attention, mlp))
        yield from (Kind(context, rows, STEPS, half) for rows in DRAFTED_ROWS)
        yield from (Kind(context, 1 + steps, steps, half) for steps in (1, 2 * STEPS))


def add_rounds(
    lm: LM, prices: Prices, contexts: Sequence[int], visits: int, advance: Advance
) -> None:
    """Adds timed rounds to the prices of a profile, and what the host takes of any round and of a
    draft step; arguments as of `measure_rounds`.
    """
    prices.rounds += measure_rounds(lm, contexts, visits, advance)
    if host := loop_host(prices):
        prices.host[LOOP] = host


def loop_host(prices: Prices) -> Host | None:
    """What the host takes of a round, by those without a draft, and of a draft step: the median of
    its seconds less those of its pass. None without rounds.

    A pass takes its part, by the prices, of what a whole one took in the loop. On a busy machine
    that is longer than the prices say, and so are draft steps.
    """
    alone = [r for r in prices.rounds if not r.steps]
    host = host_of([r.rows for r in alone], [r.beside_s for r in alone])
    whole_s = {r.context: r.verify_s - r.beside_s for r in alone if r.rows == 1}
    steps = [
        r.draft_s / r.steps - _share(prices, r) * whole_s[r.context]
        for r in prices.rounds
        if r.steps
    ]
    return host and msgspec.structs.replace(host, step_s=max(0.0, statistics.median(steps)))


def _share(prices: Prices, drafted: TimedRound) -> float:
    """A draft step's pass in whole passes, by the sub-layers that it runs."""
    attention_s, mlp_s, head_s = (prices.part_s(part, 1, drafted.context) for part in PARTS)
    pass_s = drafted.attention * attention_s + drafted.mlp * mlp_s + head_s
    return pass_s / prices.pass_s(1, drafted.context)


@torch.inference_mode()
def measure_rounds(
    lm: LM, contexts: Sequence[int], visits: int, advance: Advance
) -> list[TimedRound]:
    """Times every kind of round: medians over so many visits, made in turns, each over rounds of
    vanilla just before and after it; empty if no context leaves space for all rows.
    """
    fitting = [c for c in contexts if c + max(ROWS) + 1 <= lm.max_positions]
    if not fitting:
        return []
    lm.allocate(max(fitting) + max(ROWS) + 1)
    tokens = [n % lm.config.vocab_size for n in range(max(fitting) + 1)]
    lm.prefill(tokens[:-1])
    timed: dict[Kind, list[tuple[float, ...]]] = {k: [] for k in kinds(lm.layers, fitting)}
    vanilla, seconds = Kind(min(fitting), 1, 0, DraftPlan.of(lm.layers)), list[float]()
    for _ in range(visits):
        before = _visit(lm, tokens, vanilla)[1]
        for kind, ratios in timed.items():
            drafted, verified, beside = _visit(lm, tokens, kind)
            after = _visit(lm, tokens, vanilla)[1]
            seconds.append(one := (before + after) / 2)
            before = after
            # vanilla is the unit: 1 by definition, not within its own noise
            verified = one if kind == vanilla else verified
            ratios.append((drafted / one, verified / one, beside / one))
        advance()
    one, rounds = statistics.median(seconds), list[TimedRound]()
    for kind, ratios in timed.items():
        parts = lm.layers - len(kind.plan.attention), lm.layers - len(kind.plan.mlp)
        medians = [one * statistics.median(column) for column in zip(*ratios, strict=True)]
        rounds.append(TimedRound(kind.context, kind.rows, kind.steps, *parts, *medians))
    return rounds


def _visit(lm: LM, tokens: list[int], kind: Kind) -> tuple[float, float, float]:
    """Mean seconds of drafting, of verifying, and of all beside passes, after a round that is not
    timed.
    """
    state = State(lm, tokens[: kind.context + 1], Sampler(), 10**9, frozenset())
    method, clock = Scripted(kind), Clock(lm.output_device)
    method.begin(state)

    def run(rounds: int) -> dict[str, float]:
        clock.start()
        for _ in range(rounds):
            lm.cache.length = kind.context
            in_turn(state, method, clock)
        return clock.stop()

    run(1)
    seconds = run(ROUNDS)
    beside_s = statistics.fmean(clock.beside_s([kind.steps] * ROUNDS))
    return seconds["draft"] / ROUNDS, seconds["verify"] / ROUNDS, beside_s
