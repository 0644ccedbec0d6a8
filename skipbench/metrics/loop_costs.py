"""Seconds of draft steps and verifications as the decoding loop itself takes them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skipbench.runs.record import Verified
from skipbench.skipset import SkipSet


class LoopCosts:
    """Costs by `rounds` of a profile: rounds that the decoding loop itself ran, with so many draft
    steps, skipped sub-layers and rows.

    A draft of n steps takes `begin + n (step + attention (a + b context) + mlp m)`, by least
    squares of relative errors. A verification is linear between the measured rows, and in the
    context; what a tree, kept states and top tokens add is linear in the rows. A draft up to an
    early exit begins with a step of its own, which finds other weights in the caches; it, and what
    the verification behind it takes over the sum of its parts, are linear in the sub-layers before
    the exit. A verification of one row takes longer behind one of many.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.layers = int(record["model"]["layers"])
        points = [_Point.of(p) for p in record["rounds"]]
        plain = [p for p in points if p.how == Verified()]
        self._coefficients = _draft_fit([p for p in plain if p.steps])
        self._verify = {
            drafted: _by_context([p for p in plain if bool(p.steps) == drafted])
            for drafted in (False, True)
        }
        self._behind = _behind_fit([p for p in plain if not p.steps])
        self._added: dict[tuple[str, ...], list[tuple[float, float]]] = {}
        """By what differs, what a verification of so many rows takes beyond one without it."""
        for p in points:
            if not p.steps and p.differs:
                extra = p.verify_s - self._rows(p.context, p.rows, False)
                self._added.setdefault(p.differs, []).append((p.rows, extra))
        drafts = [p for p in points if p.steps and p.how.tree]
        self._tree_step = _mean([p.draft_s / self._draft_of(p) for p in drafts]) or 1.0
        exits = [p for p in points if p.how.exit_sublayer]
        self._exit_draft = _by_exit(exits, lambda p: (1 / p.steps, p.draft_s / self._draft_of(p)))
        self._exit_verify = {
            states: _by_exit(
                [p for p in exits if p.how.hidden_states == states],
                lambda p: (p.rows, p.verify_s / self._early(p.context, p.rows, p.how)),
            )
            for states in (False, True)
        }

    def _draft_of(self, point: "_Point") -> float:
        return self._draft(point.context, point.steps, point.attention, point.mlp)

    def _draft(self, context: float, steps: int, attention: int, mlp: int) -> float:
        begin, step, a, b, m = self._coefficients
        return begin + steps * (step + attention * (a + b * context) + mlp * m)

    def _rows(self, context: float, rows: float, drafted: bool) -> float:
        known = self._verify.get(drafted) or self._verify[False]
        low, high = min(known), max(known)
        near, far = (_line(known[at], rows) for at in (low, high))
        share = (context - low) / (high - low) if high > low else 0.0
        return near + share * (far - near)

    def _early(self, context: float, rows: int, how: Verified) -> float:
        share = how.exit_sublayer / (2 * self.layers)
        late = self._rows(context, rows, True) + self._extra(rows, how)
        return share * self._rows(context, 1, False) + (1 - share) * late

    def _extra(self, rows: int, how: Verified) -> float:
        names = tuple(n for n in ("tree", "hidden_states", "top_tokens") if getattr(how, n))
        # two that were timed together are no sum of what each adds alone
        asked = [names] if names in self._added else [(n,) for n in names if (n,) in self._added]
        return sum(_line(sorted(self._added[n]), rows) for n in asked)

    def draft_s(self, context: float, steps: int, skip: SkipSet, how: Verified) -> float:
        if not steps:
            return 0.0
        kept = self.layers - len(skip.attention), self.layers - len(skip.mlp)
        factor = self._tree_step if how.tree else 1.0
        if how.exit_sublayer and self._exit_draft:
            factor = _between(self._exit_draft, how.exit_sublayer, 1 / steps)
        return factor * self._draft(context + steps / 2, steps, *kept)

    def verify_s(
        self, context: float, rows: int, how: Verified, drafted: bool = False, before: int = 1
    ) -> float:
        if how.exit_sublayer and self._exit_verify[how.hidden_states]:
            factor = _between(self._exit_verify[how.hidden_states], how.exit_sublayer, rows)
            return factor * self._early(context, rows, how)
        seconds = self._rows(context, rows, drafted) + self._extra(rows, how)
        return seconds * (1 + self._behind * math.log(before)) if rows == 1 else seconds


@dataclass(frozen=True)
class _Point:
    """Measured rounds of one kind."""

    context: int
    rows: int
    steps: int
    attention: int
    mlp: int
    how: Verified
    draft_s: float
    verify_s: float
    behind_s: float = 0.0
    """Of a verification of one row behind such a round; 0 in files of earlier versions."""

    @classmethod
    def of(cls, point: Mapping[str, Any]) -> "_Point":
        return cls(**{**point, "how": Verified(*point["how"])})

    @property
    def differs(self) -> tuple[str, ...]:
        return tuple(n for n, v in self.how._asdict().items() if v)


def _by_context(points: Sequence[_Point]) -> dict[int, list[tuple[float, float]]]:
    """Rows and mean seconds of a verification, by context."""
    found: dict[int, dict[int, list[float]]] = {}
    for p in points:
        found.setdefault(p.context, {}).setdefault(p.rows, []).append(p.verify_s)
    return {c: sorted((r, _mean(v)) for r, v in rows.items()) for c, rows in found.items()}


Table = dict[int, list[tuple[float, float]]]
"""By sub-layers before an exit, points of a line."""


def _by_exit(points: Sequence[_Point], of: Callable[[_Point], tuple[float, float]]) -> Table:
    """Points of each exit, those of one place as their mean."""
    found: dict[int, dict[float, list[float]]] = {}
    for p in points:
        at, value = of(p)
        found.setdefault(p.how.exit_sublayer, {}).setdefault(at, []).append(value)
    return {e: sorted((at, _mean(v)) for at, v in found[e].items()) for e in sorted(found)}


def _between(table: Table, exit_sublayer: int, at: float) -> float:
    """Linear along the points of each exit, and between the exits."""
    return _line([(e, _line(points, at)) for e, points in table.items()], exit_sublayer)


def _behind_fit(points: Sequence[_Point]) -> float:
    """What a verification of one row takes more behind one of e times the rows, as a share: other
    weights, or another layout of them, stand in the caches. Least squares.
    """
    one = _mean([p.behind_s for p in points if p.rows == 1])
    known = [(math.log(p.rows), p.behind_s) for p in points if p.behind_s and p.rows > 1]
    if not one or not known:
        return 0.0
    return sum(x * (s / one - 1) for x, s in known) / sum(x * x for x, _ in known)


def _draft_fit(points: Sequence[_Point]) -> tuple[float, ...]:
    import numpy as np  # slow to import

    columns = [
        [1, p.steps, p.steps * p.attention, p.steps * p.attention * p.context, p.steps * p.mlp]
        for p in points
    ]
    seconds = np.array([p.draft_s for p in points])
    found = np.linalg.lstsq(np.array(columns) / seconds[:, None], np.ones(len(points)), rcond=None)
    return tuple(map(float, found[0]))


def _line(points: Sequence[tuple[float, float]], at: float) -> float:
    """Linear between sorted points, on the last two beyond them."""
    if len(points) == 1:
        return points[0][1]
    above = next((i for i, (x, _) in enumerate(points) if x >= at), len(points) - 1)
    (x0, y0), (x1, y1) = points[max(0, above - 1)], points[max(1, above)]
    return y0 + (at - x0) / (x1 - x0) * (y1 - y0)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
