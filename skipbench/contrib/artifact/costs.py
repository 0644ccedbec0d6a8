"""`Costs`: seconds of the draft steps and verifications of a round, by passes or timed rounds."""

import math
from collections.abc import Iterable, Sequence
from functools import cache
from itertools import groupby
from operator import itemgetter
from statistics import fmean

from skipbench.draft_plan import VARIANTS, DraftPlan
from skipbench.metrics.acceptance import PLAIN
from skipbench.metrics.lines import Line, interpolate, line_of
from skipbench.metrics.prices import Prices, TimedRound
from skipbench.runs.record import Verified

CONTEXT_STEP = 32  # costs are computed once per so many tokens of context
Lines = dict[int, Line]  # a line per context, or per sub-layer of an exit


class Costs:
    """Seconds of the parts of a round after `context` committed tokens: each draft step and each
    verification is one pass, without the host's work around it, unless a subclass knows more.
    """

    def __init__(self, passes: Prices) -> None:
        self.layers, self._passes = passes.layers, passes

    def draft_s(self, context: float, steps: int, plan: DraftPlan, how: Verified = PLAIN) -> float:
        """So many draft steps by a plan."""
        return steps * self._passes.pass_s(1, context + steps / 2, plan)

    def verify_s(self, context: float, rows: int, how: Verified = PLAIN, before: int = 1) -> float:
        """One verification after a pass of `before` rows, 0 for draft steps (a CPU's caches)."""
        one, several = (
            self._passes.pass_s(n, context) - self._passes.part_s("head", n, context)
            for n in (1, rows)
        )
        # all rows but the last have passed the sub-layers before an exit
        early = how.exit_sublayer / (2 * self.layers)
        head_s = self._passes.part_s("head", rows, context)
        return several * (1 - early) + one * early + head_s


def costs_of(prices: Prices) -> Costs:
    """By timed rounds where there are some, else by the sub-layers."""
    return LoopCosts(prices.layers, prices.rounds) if prices.rounds else Costs(prices)


class CachedCosts(Costs):
    """Costs that are computed once per `CONTEXT_STEP` tokens of context."""

    def __init__(self, costs: Costs) -> None:
        self.layers = costs.layers
        self._draft_s, self._verify_s = cache(costs.draft_s), cache(costs.verify_s)

    def draft_s(self, context: float, steps: int, plan: DraftPlan, how: Verified = PLAIN) -> float:
        return self._draft_s(context // CONTEXT_STEP * CONTEXT_STEP, steps, plan, how)

    def verify_s(self, context: float, rows: int, how: Verified = PLAIN, before: int = 1) -> float:
        return self._verify_s(context // CONTEXT_STEP * CONTEXT_STEP, rows, how, before)


class LoopCosts(Costs):
    """Costs by `rounds` of a profile, which the decoding loop itself ran.

    A verification is linear between the measured rows, and in the context; the extra time for a
    tree, kept states and top tokens is linear in the rows. Drafts up to an early exit, whose first
    step has other weights in the caches, and the verifications after them are priced as factors of
    the sum of their parts, linear in the sub-layers before the exit.
    """

    def __init__(self, layers: int, rounds: Sequence[TimedRound]) -> None:
        self.layers = layers
        plain = [p for p in rounds if p.how == PLAIN]
        drafts, single = [p for p in plain if p.steps], [p for p in plain if not p.steps]
        self._draft = fit_drafts([(p.steps, terms_of(p, layers), p.draft_s) for p in drafts])
        self._after_many = growth_after_many(single)
        self._single = lines_of((p.context, p.rows, p.verify_s) for p in single)
        self._drafted = lines_of((p.context, p.rows, p.verify_s) for p in drafts)
        self._added: dict[
            tuple[str, ...], list[tuple[float, float]]
        ] = {}  # extra seconds by rows, by what is added
        for p in sorted(rounds, key=lambda p: p.rows):
            if not p.steps and (names := tuple(n for n, v in p.how._asdict().items() if v)):
                extra = p.verify_s - self._rows_s(p.context, p.rows, False)
                self._added.setdefault(names, []).append((p.rows, extra))
        fitted = ((p, self._drafts_s(p.steps, terms_of(p, layers))) for p in rounds)
        ratios = [(p, p.draft_s / seconds) for p, seconds in fitted if p.steps]
        trees = [ratio for p, ratio in ratios if p.how.tree]
        self._tree_step = fmean(trees) if trees else 1.0
        exits = [(p, p.how.exit_sublayer, ratio) for p, ratio in ratios if p.how.exit_sublayer]
        self._exit_draft = lines_of((exit, 1 / p.steps, ratio) for p, exit, ratio in exits)
        self._exit_verify = {
            kept: lines_of(
                (exit, p.rows, p.verify_s / self._exit_s(p.context, p.rows, p.how))
                for p, exit, _ in exits
                if p.how.hidden_states == kept
            )
            for kept in (False, True)
        }

    @property
    def constant_step_s(self) -> float:
        """Seconds of a draft step that no sub-layer takes: of the head, and of the host."""
        return self._draft[1]

    def _drafts_s(self, steps: int, terms: Sequence[float]) -> float:
        begin, *each = self._draft
        return begin + steps * math.fsum(s * term for s, term in zip(each, terms, strict=True))

    def _rows_s(self, context: float, rows: float, drafted: bool) -> float:
        return between((drafted and self._drafted) or self._single, context, rows)

    def _exit_s(self, context: float, rows: int, how: Verified) -> float:
        """The sum of the parts: early sub-layers on one row, the others on all."""
        share = how.exit_sublayer / (2 * self.layers)
        late = self._rows_s(context, rows, True) + self._added_s(rows, how)
        return share * self._rows_s(context, 1, False) + (1 - share) * late

    def _added_s(self, rows: int, how: Verified) -> float:
        names = tuple(n for n in ("tree", "hidden_states", "top_tokens") if getattr(how, n))
        # two that were timed together are no sum of what each adds alone
        known = [names] if names in self._added else [(n,) for n in names if (n,) in self._added]
        return sum(float(interpolate(self._added[n], rows)) for n in known)

    def draft_s(self, context: float, steps: int, plan: DraftPlan, how: Verified = PLAIN) -> float:
        if not steps:
            return 0.0
        factor = self._tree_step if how.tree else 1.0
        if how.exit_sublayer and self._exit_draft:
            factor = between(self._exit_draft, how.exit_sublayer, 1 / steps)
        return factor * self._drafts_s(steps, terms(plan, context + steps / 2))

    def verify_s(self, context: float, rows: int, how: Verified = PLAIN, before: int = 1) -> float:
        if how.exit_sublayer and (exits := self._exit_verify[how.hidden_states]):
            return between(exits, how.exit_sublayer, rows) * self._exit_s(context, rows, how)
        seconds = self._rows_s(context, rows, not before) + self._added_s(rows, how)
        return seconds * (1 + self._after_many * math.log(before or 1)) if rows == 1 else seconds


def terms(plan: DraftPlan, context: float) -> list[float]:
    """One, attentions, positions that they read, and MLPs, the last by variant."""
    attention, mlp = (plan.layers - len(out) for out in (plan.attention, plan.mlp))
    low = [n * (plan.variant == name) for name in VARIANTS for n in (attention, mlp, 1)]
    whole = not plan.variant
    return [1.0, attention * whole, attention * context, mlp * whole, *low]


def terms_of(timed: TimedRound, layers: int) -> list[float]:
    """What `fit_drafts` takes a step's time to be proportional to."""
    if timed.plan:
        return terms(DraftPlan.parse(timed.plan, layers), timed.context)
    attention, mlp = timed.attention, timed.mlp
    return [1.0, attention, attention * timed.context, mlp, *[0.0] * 3 * len(VARIANTS)]


def fit_drafts(drafts: Sequence[tuple[int, Sequence[float], float]]) -> list[float]:
    """Least relative squares of `begin + n * (sum of terms * their seconds)`, by steps n, terms and
    seconds of rounds; 0 for terms that none has.
    """
    if not drafts:
        return [0.0] * (5 + 3 * len(VARIANTS))
    import numpy as np  # slow to import

    steps, parts, seconds = zip(*drafts, strict=True)
    columns = np.hstack((np.ones((len(steps), 1)), np.multiply(np.vstack(steps), parts)))
    scaled = columns / np.vstack(seconds)
    found: list[float] = np.linalg.lstsq(scaled, np.ones(len(drafts)), rcond=None)[0].tolist()
    return found


def lines_of(points: Iterable[tuple[int, float, float]]) -> Lines:
    """Lines of (place, x, y), by place."""
    groups = groupby(sorted(points), itemgetter(0))
    return {place: line_of(point[1:] for point in group) for place, group in groups}


def between(lines: Lines, key: float, x: float) -> float:
    """Linear along each line, and between the lines."""
    return float(interpolate([(k, interpolate(line, x)) for k, line in lines.items()], key))


def growth_after_many(points: Sequence[TimedRound]) -> float:
    """Extra share of a one-row verification per e-fold of the rows before it: least squares."""
    ones = [p.behind_s for p in points if p.rows == 1]
    known = [(math.log(p.rows), p.behind_s) for p in points if p.behind_s and p.rows > 1]
    if not known or not any(ones):
        return 0.0
    one = fmean(ones)
    return sum(x * (s / one - 1) for x, s in known) / sum(x * x for x, _ in known)
