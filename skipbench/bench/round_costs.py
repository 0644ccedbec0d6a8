"""Times draft steps and verifications inside the decoding loop, by skip set, rows and context, for
`project` to replay a run with.

Sub-layers that are timed apart leave out the loop's part: softmax and confidence per step, the
choice of tokens, rows of the mask.
"""

import itertools
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from skipbench.bench.latency_file import Advance
from skipbench.decode.draft import Draft, State
from skipbench.decode.drafting import Drafter
from skipbench.decode.loop import decode_round
from skipbench.decode.method import Method
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Fixed
from skipbench.lm.model import LM
from skipbench.metrics.costs import PLAIN
from skipbench.metrics.loop_costs import TimedRound
from skipbench.profile.clock import Clock
from skipbench.runs.record import Verified
from skipbench.skipset import SkipSet, fixed_set

ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 11, 13, 17, 25, 33, 49, 65, 97)
"""Rows of plain verifications; kernels take them in blocks, so that few would hide steps."""
DRAFTED_ROWS = (9, 17, 33)
"""Rows of verifications after a draft, beside those of as many rows as it has tokens."""
VARIED_ROWS = (2, 17, 81)
"""Rows at which kept states and top tokens are timed, too, and trees."""
ROUNDS = 3
"""Timed rounds per visit of a kind, after one that is not."""
STEPS = 4
WIDTHS = (10, 5, 3, 1)  # SWIFT's tree


@dataclass(frozen=True)
class Kind:
    """A round: `steps` draft steps without `skip`, then a verification of `rows`."""

    context: int
    rows: int
    steps: int
    skip: SkipSet
    how: Verified = PLAIN


class Scripted(Method):
    """A method whose rounds are all of one kind."""

    def __init__(self, kind: Kind) -> None:
        super().__init__(name="scripted")
        how = kind.how
        self.kind = kind
        self.needs_hidden_states, self.needs_top_tokens = how.hidden_states, how.top_tokens
        # the smallest threshold reads every confidence and ends no draft
        stop: Any = Fixed(max(1, kind.steps), threshold=1e-12)
        self.drafter = Drafter(stop, WIDTHS if how.tree else ())

    def begin(self, state: State) -> None:
        self.drafter.begin()

    def propose(self, state: State, budget: int) -> Draft:
        kind, exits = self.kind, self.kind.how.exit_sublayer
        if kind.steps:
            draft = self.drafter.propose(state, kind.skip, kind.steps, exits or None)
            if exits:
                return draft
        nodes = kind.rows - 1
        tree = [(n - 1) // 2 for n in range(nodes)]
        return Draft([state.pending] * nodes, [-1, *tree[1:]] if kind.how.tree and nodes else None)


def kinds(layers: int, contexts: Sequence[int]) -> Iterator[Kind]:
    """All kinds that are timed, at the first and the last context."""
    none, half = SkipSet.of(layers), fixed_set("uniform", layers, 0.5)
    attention = SkipSet.of(layers, range(0, 2 * layers, 2))
    mlp = SkipSet.of(layers, range(1, 2 * layers, 2))
    near, far = min(contexts), max(contexts)
    for context in dict.fromkeys((near, far)):
        for rows in ROWS:
            yield Kind(context, rows, 0, none)
        for skip in (none, half, attention, mlp):
            yield Kind(context, 1 + STEPS, STEPS, skip)
        for rows in DRAFTED_ROWS:
            yield Kind(context, rows, STEPS, half)
        yield Kind(context, 2, 1, half)
        yield Kind(context, 1 + 2 * STEPS, 2 * STEPS, half)
    for rows in VARIED_ROWS:
        yield Kind(near, rows, 0, none, Verified(tree=True))
        yield Kind(near, rows, 0, none, Verified(hidden_states=True))
        yield Kind(near, rows, 0, none, Verified(top_tokens=6))
        yield Kind(near, rows, 0, none, Verified(tree=True, top_tokens=6))
    yield Kind(near, 1 + STEPS, STEPS, half, Verified(tree=True))
    for exit_layer in sorted({1, max(1, layers // 2)}) if layers > 1 else ():
        late = SkipSet.of(layers, range(2 * exit_layer, 2 * layers))
        for states, steps in itertools.product((False, True), (1, STEPS)):
            how = Verified(exit_sublayer=2 * exit_layer, hidden_states=states)
            yield Kind(near, 1 + steps, steps, late, how)


@torch.inference_mode()
def measure_rounds(
    lm: LM, contexts: Sequence[int], visits: int, advance: Advance
) -> list[TimedRound]:
    """Times every kind of round: medians over so many visits, made in turns; empty if no context
    leaves space for the largest number of rows.

    Each visit is divided by rounds of vanilla just before and just after it, so that a machine that
    slows down slows both.
    """
    fitting = [c for c in contexts if c + max(ROWS) + 1 <= lm.max_positions]
    if not fitting:
        return []
    lm.allocate(max(fitting) + max(ROWS) + 1)
    tokens = [n % lm.config.vocab_size for n in range(max(fitting) + 1)]
    lm.prefill(tokens[:-1])
    timed: dict[Kind, list[tuple[float, ...]]] = {k: [] for k in kinds(lm.layers, fitting)}
    vanilla, seconds = Kind(min(fitting), 1, 0, SkipSet.of(lm.layers)), list[float]()
    for _ in range(visits):
        before = _visit(lm, tokens, vanilla)[2]
        for kind, ratios in timed.items():
            _, drafted, verified = _visit(lm, tokens, kind)
            first, _, after = _visit(lm, tokens, vanilla)
            one = (before + after) / 2
            # vanilla is the unit: 1 by definition, not within its own noise
            verified = one if kind == vanilla else verified
            ratios.append((drafted / one, verified / one, first / one))
            seconds.append(one)
            before = after
        advance()
    one = statistics.median(seconds)
    return [
        TimedRound(
            kind.context,
            kind.rows,
            kind.steps,
            lm.layers - len(kind.skip.attention),
            lm.layers - len(kind.skip.mlp),
            kind.how,
            *(one * statistics.median(r) for r in zip(*ratios, strict=True)),
        )
        for kind, ratios in timed.items()
    ]


def _visit(lm: LM, tokens: list[int], kind: Kind) -> tuple[float, float, float]:
    """Seconds of verifying in the first of some rounds of one kind; mean seconds of drafting and of
    verifying in the others.
    """
    state = State(lm, tokens[: kind.context + 1], Sampler(), 10**9, frozenset())
    method, clock = Scripted(kind), Clock(lm.output_device)
    method.begin(state)

    def run(rounds: int) -> dict[str, float]:
        clock.start()
        for _ in range(rounds):
            lm.cache.length = kind.context
            decode_round(state, method, clock)
        return clock.stop()

    first, others = run(1), run(ROUNDS)
    return first["verify"], others["draft"] / ROUNDS, others["verify"] / ROUNDS
