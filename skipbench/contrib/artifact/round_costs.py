"""Times draft steps and verifications inside the decoding loop, with its softmax, choice of tokens
and masks, by skip set, rows and context, for `project`.
"""

import itertools
import statistics
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import msgspec
import torch

from skipbench.contrib.artifact.costs import LoopCosts
from skipbench.decode.draft import Draft, State
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.method import Method
from skipbench.decode.rounds import in_turn
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import VARIANTS, DraftPlan
from skipbench.lm.model import LM
from skipbench.metrics.acceptance import PLAIN
from skipbench.metrics.host import host_of
from skipbench.metrics.prices import LOOP, Prices, TimedRound
from skipbench.profile.clock import Clock
from skipbench.profile.latency import Advance
from skipbench.runs.record import Verified
from skipbench.skipset import fixed_set

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 25, 33, 49, 65, 97)
"""Rows of plain verifications; kernels take them in blocks, so that few would hide steps."""
DRAFTED_ROWS = (9, 17, 33)
"""Rows of verifications after a draft, beside those of as many rows as it has tokens."""
VARIED_ROWS = (2, 17, 81)  # rows at which kept states and top tokens are timed, too, and trees
VARIED = (
    Verified(tree=True),
    Verified(hidden_states=True),
    Verified(top_tokens=6),
    Verified(tree=True, top_tokens=6),
)
ROUNDS = 3  # timed rounds per visit of a kind, after one that is not
STEPS = 4
WIDTHS = (10, 5, 3, 1)  # SWIFT's tree


@dataclass(frozen=True)
class Kind:
    """A round: `steps` draft steps by a plan, then a verification of `rows`."""

    context: int
    rows: int
    steps: int
    plan: DraftPlan
    how: Verified = PLAIN


class Scripted(SkipMethod):
    """A method whose rounds are all of one kind."""

    def __init__(self, kind: Kind) -> None:
        # the smallest threshold reads every confidence and ends no draft
        stop, how = Fixed(max(1, kind.steps), threshold=1e-12), kind.how
        tree, layers = WIDTHS if how.tree else (), kind.plan.layers
        super().__init__(name="scripted", layers=layers, stop=stop, tree=tree)
        self.kind, self.skip, self.exit_sublayer = kind, kind.plan, how.exit_sublayer or None
        self.needs_hidden_states, self.needs_top_tokens = how.hidden_states, how.top_tokens

    adapt = Method.adapt

    def propose(self, state: State, budget: int) -> Draft:
        kind, nodes = self.kind, self.kind.rows - 1
        if kind.steps:
            draft = self.draft(state, kind.steps)
            if self.exit_sublayer:
                return draft
        tree = [-1, *((n - 1) // 2 for n in range(1, nodes))]
        return Draft([state.pending] * nodes, tree if kind.how.tree and nodes else None)


def kinds(layers: int, contexts: Sequence[int], variants: Set[str]) -> Iterator[Kind]:
    """All kinds that are timed, at the first and the last context, drafts with `variants` too."""
    none, half = DraftPlan.of(layers), fixed_set("uniform", layers, 0.5)
    attention, mlp = (DraftPlan.of(layers, range(part, 2 * layers, 2)) for part in (0, 1))
    near, plans = min(contexts), list[DraftPlan]()
    for name in (name for name in VARIANTS if name in variants):
        plans += [DraftPlan(layers, p.skipped, name) for p in (none, half, attention, mlp)]
    for context in dict.fromkeys((near, max(contexts))):
        yield from (Kind(context, rows, 0, none) for rows in ROWS)
        plain = (none, half, attention, mlp)
        yield from (Kind(context, 1 + STEPS, STEPS, plan) for plan in (*plain, *plans))
        yield from (Kind(context, rows, STEPS, half) for rows in DRAFTED_ROWS)
        yield from (Kind(context, 1 + steps, steps, half) for steps in (1, 2 * STEPS))
    for rows, how in itertools.product(VARIED_ROWS, VARIED):
        yield Kind(near, rows, 0, none, how)
    yield Kind(near, 1 + STEPS, STEPS, half, Verified(tree=True))
    for exit_layer in sorted({1, max(1, layers // 2)}) if layers > 1 else ():
        late = DraftPlan.of(layers, range(2 * exit_layer, 2 * layers))
        for states, steps in itertools.product((False, True), (1, STEPS)):
            how = Verified(exit_sublayer=2 * exit_layer, hidden_states=states)
            yield Kind(near, 1 + steps, steps, late, how)


def add_rounds(
    lm: LM,
    prices: Prices,
    contexts: Sequence[int],
    visits: int,
    advance: Advance,
    variants: Set[str] = frozenset(),
) -> None:
    """Adds timed rounds to the prices of a profile, and what the host takes of any round and of a
    draft step; arguments as of `measure_rounds`.
    """
    prices.rounds += (timed := measure_rounds(lm, contexts, visits, advance, variants))
    plain = [one for one in timed if one.how == PLAIN and not one.steps]
    if host := host_of([one.rows for one in plain], [one.beside_s for one in plain]):
        head_s = prices.part_s("head", 1, 0.0)
        step_s = max(0.0, LoopCosts(lm.layers, timed).constant_step_s - head_s)
        prices.host[LOOP] = msgspec.structs.replace(host, step_s=step_s)


@torch.inference_mode()
def measure_rounds(
    lm: LM,
    contexts: Sequence[int],
    visits: int,
    advance: Advance,
    variants: Set[str] = frozenset(),
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
    timed: dict[Kind, list[tuple[float, ...]]] = {
        k: [] for k in kinds(lm.layers, fitting, variants)
    }
    vanilla, seconds = Kind(min(fitting), 1, 0, DraftPlan.of(lm.layers)), list[float]()
    for _ in range(visits):
        before = _visit(lm, tokens, vanilla)[2]
        for kind, ratios in timed.items():
            _, drafted, verified, beside = _visit(lm, tokens, kind)
            first, _, after, _ = _visit(lm, tokens, vanilla)
            seconds.append(one := (before + after) / 2)
            before = after
            # vanilla is the unit: 1 by definition, not within its own noise
            verified = one if kind == vanilla else verified
            ratios.append((drafted / one, verified / one, first / one, beside / one))
        advance()
    one, rounds = statistics.median(seconds), list[TimedRound]()
    for k, ratios in timed.items():
        parts = lm.layers - len(k.plan.attention), lm.layers - len(k.plan.mlp)
        columns = [one * statistics.median(column) for column in zip(*ratios, strict=True)]
        draft_s, verify_s, first_s, beside_s = columns
        seconds_of, text = (draft_s, verify_s, first_s), str(k.plan) if k.plan.variant else ""
        known = (k.context, k.rows, k.steps, *parts, k.how, *seconds_of, text)
        rounds.append(TimedRound(*known, beside_s))
    return rounds


def _visit(lm: LM, tokens: list[int], kind: Kind) -> tuple[float, float, float, float]:
    """Seconds of verifying in the first round; mean seconds of drafting, of verifying, and of all
    beside passes, in others.
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

    first, others = run(1), run(ROUNDS)
    beside_s = statistics.fmean(clock.beside_s([kind.steps] * ROUNDS))
    return first["verify"], others["draft"] / ROUNDS, others["verify"] / ROUNDS, beside_s
