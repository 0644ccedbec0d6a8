"""Seconds of draft steps and verifications as the decoding loop itself takes them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from skipbench.runs.record import Verified
from skipbench.skipset import SkipSet


class LoopCosts:
    """Costs by `rounds` of a profile: rounds that the decoding loop itself ran, with so many draft
    steps, skipped sub-layers and rows.

    A draft of n steps takes `begin + n (step + attention (a + b context) + mlp m)`, by least
    squares of relative errors. A verification is linear between the measured rows, and in the
    context; what a tree, kept states and top tokens add is linear in the rows, what an early exit
    takes over the sum of its parts linear in the sub-layers before the exit.
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
        self._added: dict[str, list[tuple[float, float]]] = {}
        """By what differs, what a verification of so many rows takes beyond one without it."""
        for p in points:
            if not p.steps and p.differs:
                extra = p.verify_s - self._rows(p.context, p.rows, False)
                self._added.setdefault(p.differs[0], []).append((p.rows, extra))
        drafts = [p for p in points if p.steps and p.how.tree]
        self._tree_step = _mean([p.draft_s / self._draft_of(p) for p in drafts]) or 1.0
        exits = sorted(
            (p for p in points if p.how.exit_sublayer), key=lambda p: p.how.exit_sublayer
        )
        self._exit_step = [
            (p.how.exit_sublayer, p.draft_s / self._draft_of(p))
            for p in exits
            if not p.how.hidden_states
        ]
        self._exit = {
            states: [
                (p.how.exit_sublayer, p.verify_s / self._early(p.context, p.rows, p.how))
                for p in exits
                if p.how.hidden_states == states
            ]
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
        names = ("tree", "hidden_states", "top_tokens")
        known = [self._added[n] for n in names if getattr(how, n) and n in self._added]
        return sum(_line(sorted(points), rows) for points in known)

    def draft_s(self, context: float, steps: int, skip: SkipSet, how: Verified) -> float:
        if not steps:
            return 0.0
        kept = self.layers - len(skip.attention), self.layers - len(skip.mlp)
        factor = self._tree_step if how.tree else 1.0
        if how.exit_sublayer and self._exit_step:
            factor = _line(self._exit_step, how.exit_sublayer)
        return factor * self._draft(context + steps / 2, steps, *kept)

    def verify_s(self, context: float, rows: int, how: Verified, drafted: bool = False) -> float:
        if how.exit_sublayer and self._exit[how.hidden_states]:
            factor = _line(self._exit[how.hidden_states], how.exit_sublayer)
            return factor * self._early(context, rows, how)
        return self._rows(context, rows, drafted) + self._extra(rows, how)


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

    @classmethod
    def of(cls, point: Mapping[str, Any]) -> "_Point":
        return cls(**{**point, "how": Verified(*point["how"])})

    @property
    def differs(self) -> list[str]:
        return [n for n, v in self.how._asdict().items() if v]


def _by_context(points: Sequence[_Point]) -> dict[int, list[tuple[float, float]]]:
    """Rows and mean seconds of a verification, by context."""
    found: dict[int, dict[int, list[float]]] = {}
    for p in points:
        found.setdefault(p.context, {}).setdefault(p.rows, []).append(p.verify_s)
    return {c: sorted((r, _mean(v)) for r, v in rows.items()) for c, rows in found.items()}


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
