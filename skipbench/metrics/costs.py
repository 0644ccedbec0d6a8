"""Seconds of draft steps and verifications: by a datasheet, by measured sub-layers, or as the
decoding loop itself takes them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from skipbench.config.architecture import BYTES, Shape
from skipbench.config.hardware import Hardware
from skipbench.runs.record import Verified
from skipbench.skipset import SkipSet

READS = 0.6
"""Share of a datasheet's bandwidth that decoding reaches."""


class Costs(Protocol):
    """Seconds of what a round is made of, behind `context` tokens."""

    @property
    def layers(self) -> int: ...

    def draft_s(self, context: float, steps: int, skip: SkipSet, how: Verified) -> float:
        """So many draft steps with a set; of a tree where `how` says so."""
        ...

    def verify_s(self, context: float, rows: int, how: Verified) -> float:
        """One verification."""
        ...


class PartCosts(Protocol):
    """Seconds of the parts of a pass."""

    @property
    def layers(self) -> int: ...
    def attention_s(self, context: float, rows: int) -> float: ...
    def mlp_s(self, rows: int) -> float: ...
    def head_s(self, rows: int) -> float: ...


def pass_s(parts: PartCosts, context: float, rows: int, skip: SkipSet | None = None) -> float:
    """Seconds of one pass with its head."""
    attention = mlp = parts.layers
    if skip is not None:
        attention, mlp = attention - len(skip.attention), mlp - len(skip.mlp)
    return (
        attention * parts.attention_s(context, rows) + mlp * parts.mlp_s(rows) + parts.head_s(rows)
    )


@dataclass(frozen=True)
class PassCosts:
    """A draft step and a verification as one pass each, without the host's work around it."""

    parts: PartCosts

    @property
    def layers(self) -> int:
        return self.parts.layers

    def draft_s(self, context: float, steps: int, skip: SkipSet, how: Verified) -> float:
        return steps * pass_s(self.parts, context + steps / 2, 1, skip)

    def verify_s(self, context: float, rows: int, how: Verified) -> float:
        whole = pass_s(self.parts, context, rows)
        if not how.exit_sublayer:
            return whole
        # all rows but the last have passed the early sub-layers
        late = (whole - self.parts.head_s(rows)) * (1 - how.exit_sublayer / (2 * self.layers))
        early = (pass_s(self.parts, context, 1) - self.parts.head_s(1)) * how.exit_sublayer
        return late + early / (2 * self.layers) + self.parts.head_s(rows)


@dataclass(frozen=True)
class DatasheetParts:
    """Costs of a model on a device by its datasheet: reading weights and K/V, or the arithmetic,
    whichever takes longer.
    """

    shape: Shape
    dtype: str
    device: Hardware

    @property
    def layers(self) -> int:
        return self.shape.layers

    def _seconds(self, parameters: float, cached_bytes: float, rows: int) -> float:
        size = BYTES[self.dtype]
        assert self.device.bandwidth is not None
        flops = self.device.flops.get(self.dtype) or float("inf")
        computed = 2 * rows * (parameters + cached_bytes / size) / flops
        return max((parameters * size + cached_bytes) / (READS * self.device.bandwidth), computed)

    def attention_s(self, context: float, rows: int) -> float:
        shape = self.shape
        parameters = 2 * shape.hidden * shape.width * (shape.heads + shape.kv_heads)
        return self._seconds(
            parameters, shape.cache_bytes(self.dtype, 1) / shape.layers * context, rows
        )

    def mlp_s(self, rows: int) -> float:
        return self._seconds(3 * self.shape.hidden * self.shape.intermediate, 0, rows)

    def head_s(self, rows: int) -> float:
        return self._seconds(self.shape.vocab * self.shape.hidden, 0, rows)


class MeasuredParts:
    """Costs by the points of a latency file, as `profile` writes them: linear between rows, and in
    the context.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.layers = int(record["model"]["layers"])
        self._base = float(record["model"]["attention_s"])
        self._slope = float(record["model"]["attention_s_per_token"])
        points = record["points"]
        self._rows = sorted({int(p["rows"]) for p in points})
        self._mean = {
            part: [_mean([p[part] for p in points if p["rows"] == r]) for r in self._rows]
            for part in ("attention_s", "mlp_s", "head_s")
        }

    def _at(self, part: str, rows: int) -> float:
        known, values = self._rows, self._mean[part]
        if rows <= known[0] or len(known) == 1:
            return values[0]
        above = next((i for i, r in enumerate(known) if r >= rows), len(known) - 1)
        low, high = known[above - 1], known[above]
        share = (rows - low) / (high - low)
        return values[above - 1] + share * (values[above] - values[above - 1])

    def attention_s(self, context: float, rows: int) -> float:
        return (self._base + self._slope * context) * (
            self._at("attention_s", rows) / self._mean["attention_s"][0]
        )

    def mlp_s(self, rows: int) -> float:
        return self._at("mlp_s", rows)

    def head_s(self, rows: int) -> float:
        return self._at("head_s", rows)


class LoopCosts:
    """Costs by `rounds` of a profile: rounds that the decoding loop itself ran, with so many draft
    steps, skipped sub-layers and rows.

    A draft of n steps takes `begin + n (step + attention (a + b context) + mlp m)`, by least
    squares of relative errors. A verification is linear between the measured rows, and in the
    context; what a tree, kept states, top tokens and an early exit add is linear in the rows.
    """

    def __init__(self, record: Mapping[str, Any]) -> None:
        self.layers = int(record["model"]["layers"])
        points = [_Point.of(p) for p in record["rounds"]]
        plain = [p for p in points if p.how == Verified()]
        self._coefficients = _draft_fit([p for p in plain if p.steps])
        rows = [p for p in plain if not p.steps]
        self._verify = {
            context: sorted((p.rows, p.verify_s) for p in rows if p.context == context)
            for context in sorted({p.context for p in rows})
        }
        self._added: dict[str, list[tuple[float, float]]] = {}
        """By what differs, what a verification of so many rows takes beyond one without it."""
        self._step_added: dict[str, float] = {}
        """By what differs, a draft step over one without it."""
        for p in points:
            for name in p.differs:
                if p.steps:
                    base = self._draft(p.context, p.steps, p.attention, p.mlp)
                    self._step_added[name] = p.draft_s / base
                if name != "exit_sublayer" and not p.steps:
                    base = self._rows(p.context, p.rows)
                    self._added.setdefault(name, []).append((p.rows, p.verify_s - base))
                if name == "exit_sublayer":
                    self._exit = p.verify_s / self._early(p.context, p.rows, p.how.exit_sublayer)

    def _draft(self, context: float, steps: int, attention: int, mlp: int) -> float:
        begin, step, a, b, m = self._coefficients
        return begin + steps * (step + attention * (a + b * context) + mlp * m)

    def _rows(self, context: float, rows: float) -> float:
        low, high = min(self._verify), max(self._verify)
        near, far = (_line(self._verify[at], rows) for at in (low, high))
        share = (context - low) / (high - low) if high > low else 0.0
        return near + share * (far - near)

    def _early(self, context: float, rows: int, exit_sublayer: int) -> float:
        share = exit_sublayer / (2 * self.layers)
        return share * self._rows(context, 1) + (1 - share) * self._rows(context, rows)

    def draft_s(self, context: float, steps: int, skip: SkipSet, how: Verified) -> float:
        if not steps:
            return 0.0
        kept = self.layers - len(skip.attention), self.layers - len(skip.mlp)
        factor = self._step_added.get("tree", 1.0) if how.tree else 1.0
        if how.exit_sublayer:
            factor = self._step_added.get("exit_sublayer", 1.0)
        return factor * self._draft(context + steps / 2, steps, *kept)

    def verify_s(self, context: float, rows: int, how: Verified) -> float:
        if how.exit_sublayer:
            seconds = self._exit * self._early(context, rows, how.exit_sublayer)
        else:
            seconds = self._rows(context, rows)
        for name in ("tree", "hidden_states", "top_tokens"):
            if getattr(how, name) and name in self._added:
                seconds += _line(sorted(self._added[name]), rows)
        return seconds


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
