"""Seconds of draft steps and verifications, by a datasheet or by measured sub-layers."""

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

    def verify_s(
        self, context: float, rows: int, how: Verified, drafted: bool = False, before: int = 1
    ) -> float:
        """One verification. What stood before it leaves other weights in the caches of a CPU:
        `drafted`, draft steps of the model; `before`, the rows of the last round's verification.
        """
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

    def verify_s(
        self, context: float, rows: int, how: Verified, drafted: bool = False, before: int = 1
    ) -> float:
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


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
