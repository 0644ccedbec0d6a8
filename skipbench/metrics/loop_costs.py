"""`LoopCosts`: seconds of draft steps and verifications as the decoding loop itself takes them."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import NamedTuple

import msgspec

from skipbench.metrics.costs import PLAIN, Line, interpolate, line_of
from skipbench.runs.record import Verified
from skipbench.skipset import SkipSet


class TimedRound(msgspec.Struct, frozen=True):
    """Measured rounds of one kind."""

    context: int
    rows: int
    steps: int
    attention: int
    """Attentions that a draft step runs; `mlp` likewise."""
    mlp: int
    how: Verified
    draft_s: float
    verify_s: float
    behind_s: float = 0.0
    """A verification of one row right after such a round; 0 in files of earlier versions."""

    @property
    def differs(self) -> tuple[str, ...]:
        return tuple(n for n, v in self.how._asdict().items() if v)


Rounds = Sequence[TimedRound]


class LoopCosts:
    """Costs by `rounds` of a profile: rounds that the decoding loop itself ran, with so many draft
    steps, skipped sub-layers and rows.

    A verification is linear between the measured rows, and in the context; the extra time for a
    tree, kept states and top tokens is linear in the rows. Drafts up to an early exit, whose first
    step has other weights in the caches, and the verifications after them are priced as factors of
    the sum of their parts, linear in the sub-layers before the exit.
    """

    def __init__(self, layers: int, rounds: Rounds) -> None:
        self.layers = layers
        plain = [p for p in rounds if p.how == PLAIN]
        drafts, single = [p for p in plain if p.steps], [p for p in plain if not p.steps]
        self._draft = DraftFit.of(drafts)
        self._single, self._drafted = rows_by_context(single), rows_by_context(drafts)
        self._after_many = growth_after_many(single)
        self._added = self._fit_added(rounds)
        self._tree_step = self._fit_tree_step(rounds)
        exits = [p for p in rounds if p.how.exit_sublayer]
        self._exit_draft = by_exit(exits, lambda p: (1 / p.steps, self._draft.ratio(p)))
        self._exit_verify = {kept: self._fit_exit_verify(exits, kept) for kept in (False, True)}

    def _fit_added(self, rounds: Rounds) -> dict[tuple[str, ...], Line]:
        """Extra seconds by rows of a verification that differs from a plain one, by the names in
        which it differs.
        """
        added: dict[tuple[str, ...], Line] = {}
        for p in rounds:
            if not p.steps and p.differs:
                extra = p.verify_s - self._rows_s(p.context, p.rows, False)
                added.setdefault(p.differs, []).append((p.rows, extra))
        return {names: sorted(line) for names, line in added.items()}

    def _fit_tree_step(self, rounds: Rounds) -> float:
        """A draft of a tree over one of a chain."""
        trees = [self._draft.ratio(p) for p in rounds if p.steps and p.how.tree]
        return fmean(trees) if trees else 1.0

    def _fit_exit_verify(self, exits: Rounds, hidden_states: bool) -> dict[float, Line]:
        """A verification after an early exit over the sum of its parts."""
        return by_exit(
            [p for p in exits if p.how.hidden_states == hidden_states],
            lambda p: (p.rows, p.verify_s / self._exit_s(p.context, p.rows, p.how)),
        )

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
        return sum(interpolate(self._added[n], rows) for n in known)

    def draft_s(self, context: float, steps: int, skip: SkipSet, how: Verified = PLAIN) -> float:
        if not steps:
            return 0.0
        kept = self.layers - len(skip.attention), self.layers - len(skip.mlp)
        factor = self._tree_step if how.tree else 1.0
        if how.exit_sublayer and self._exit_draft:
            factor = between(self._exit_draft, how.exit_sublayer, 1 / steps)
        return factor * self._draft.seconds(context + steps / 2, steps, *kept)

    def verify_s(self, context: float, rows: int, how: Verified = PLAIN, before: int = 1) -> float:
        if how.exit_sublayer and (exits := self._exit_verify[how.hidden_states]):
            return between(exits, how.exit_sublayer, rows) * self._exit_s(context, rows, how)
        seconds = self._rows_s(context, rows, not before) + self._added_s(rows, how)
        return seconds * (1 + self._after_many * math.log(before or 1)) if rows == 1 else seconds


class DraftFit(NamedTuple):
    """Seconds of n draft steps: `begin + n (step + attention (a + b context) + mlp m)`."""

    begin: float = 0.0
    step: float = 0.0
    a: float = 0.0
    b: float = 0.0
    m: float = 0.0

    @classmethod
    def of(cls, drafts: Rounds) -> "DraftFit":
        """Least squares of relative errors."""
        if not drafts:
            return cls()
        import numpy as np  # slow to import

        columns = [
            [1, p.steps, p.steps * p.attention, p.steps * p.attention * p.context, p.steps * p.mlp]
            for p in drafts
        ]
        seconds = np.array([p.draft_s for p in drafts])
        relative = np.array(columns) / seconds[:, None]
        return cls(*np.linalg.lstsq(relative, np.ones(len(drafts)), rcond=None)[0].tolist())

    def seconds(self, context: float, steps: int, attention: int, mlp: int) -> float:
        step = self.step + attention * (self.a + self.b * context) + mlp * self.m
        return self.begin + steps * step

    def ratio(self, p: TimedRound) -> float:
        """Measured over fitted."""
        return p.draft_s / self.seconds(p.context, p.steps, p.attention, p.mlp)


def rows_by_context(points: Rounds) -> dict[float, Line]:
    """Seconds of a verification by rows, at each context."""
    contexts = sorted({p.context for p in points})
    return {c: line_of((p.rows, p.verify_s) for p in points if p.context == c) for c in contexts}


def by_exit(exits: Rounds, point: Callable[[TimedRound], tuple[float, float]]) -> dict[float, Line]:
    """A line per number of sub-layers before the exit."""
    places = sorted({p.how.exit_sublayer for p in exits})
    return {e: line_of(point(p) for p in exits if p.how.exit_sublayer == e) for e in places}


def between(lines: dict[float, Line], key: float, x: float) -> float:
    """Linear along each line, and between the lines."""
    return interpolate([(k, interpolate(line, x)) for k, line in lines.items()], key)


def growth_after_many(points: Rounds) -> float:
    """Extra time of a verification of one row per e-fold of the rows verified before it, as a
    share: other weights, or another layout of them, are in the caches. Least squares.
    """
    ones = [p.behind_s for p in points if p.rows == 1]
    known = [(math.log(p.rows), p.behind_s) for p in points if p.behind_s and p.rows > 1]
    if not known or not any(ones):
        return 0.0
    one = fmean(ones)
    return sum(x * (s / one - 1) for x, s in known) / sum(x * x for x, _ in known)
