"""`Costs`, the price of a pass: by measured sub-layers, a datasheet, or `loop_costs.LoopCosts`."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import NamedTuple

import msgspec

from skipbench.config.architecture import BYTES, QUANTIZED, Shape
from skipbench.config.hardware import Hardware
from skipbench.draft_plan import LIKELY, VARIANTS, DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.runs.record import Verified

READS, COMPUTES = 0.6, 0.4  # shares of bandwidth that decoding, of arithmetic that prefill reaches
PLAIN = Verified()


class Latency(NamedTuple):
    """Seconds of one attention, one MLP and the head at one context and number of rows."""

    attention_s: float
    mlp_s: float
    head_s: float
    layers: int
    variants: Mapping[str, "Latency"] = {}  # the same with the variants that were measured
    likely_head_s: float = 0.0  # a head of likely tokens; 0 where it was not measured
    context: float = 0.0
    attention_s_per_token: float = 0.0  # part of `attention_s` per position of `context`

    def pass_s(self, plan: DraftPlan | None = None) -> float:
        """One pass with the head: KnapSpec's t_Draft with a plan, t_Target without (Eq. 4). Raises
        SkipbenchError for a plan with variants that were not measured.
        """
        if plan is None:
            return self.layers * self.attention_s + self.layers * self.mlp_s + self.head_s
        check_variants(plan, self.measured)
        other, (attentions, mlps) = self.variants.get(plan.variant, self), plan.changed_blocks
        attention = self.layers - len(plan.attention) - attentions
        mlp = self.layers - len(plan.mlp) - mlps
        head_s = self.variants.get(plan.head, self).head_s
        head_s = self.likely_head_s if plan.head == "likely" else head_s
        seconds = attention * self.attention_s + mlp * self.mlp_s + head_s
        seconds += attentions * other.attention_s + mlps * other.mlp_s
        slopes = attention * self.attention_s_per_token + attentions * other.attention_s_per_token
        return seconds - slopes * (self.context - plan.positions_read(self.context))

    @property
    def measured(self) -> frozenset[str]:
        """Those of `DraftPlan.variants` that have a price."""
        return frozenset(self.variants) | ({"likely"} if self.likely_head_s > 0 else set())


def check_variants(plan: DraftPlan, priced: Set[str]) -> None:
    """Raises SkipbenchError for a plan with variants that have no price."""
    if missing := plan.variants - priced:
        raise SkipbenchError(
            f"no prices of {' and '.join(sorted(missing))}, which the draft {plan} needs; measure "
            f"them: skipbench profile profile.levers=[{','.join(sorted(missing))}]"
        )


class Costs:
    """Seconds of the parts of a round after `context` committed tokens: each draft step and each
    verification is one pass, without the host's work around it, unless a subclass knows more.
    """

    layers: int

    def at(self, context: float, rows: int = 1) -> Latency:
        """Latencies at one context and number of rows."""
        raise NotImplementedError

    def draft_s(self, context: float, steps: int, plan: DraftPlan, how: Verified = PLAIN) -> float:
        """So many draft steps by a plan."""
        return steps * self.at(context + steps / 2).pass_s(plan)

    def verify_s(self, context: float, rows: int, how: Verified = PLAIN, before: int = 1) -> float:
        """One verification after a pass of `before` rows, 0 for draft steps (a CPU's caches)."""
        parts, one = self.at(context, rows), self.at(context)
        # all rows but the last have passed the sub-layers before an exit
        early = how.exit_sublayer / (2 * self.layers)
        late = (parts.pass_s() - parts.head_s) * (1 - early)
        return late + (one.pass_s() - one.head_s) * early + parts.head_s


class Point(msgspec.Struct, frozen=True):
    """Seconds of each sub-layer, the head and a pass: lower quartiles, as others only add time."""

    context: int
    rows: int
    attention_s: float
    mlp_s: float
    head_s: float
    whole_s: float

    @classmethod
    def of(cls, context: int, rows: int, times: Mapping[str, Sequence[float]]) -> "Point":
        """`times` of every call of `attention`, `mlp`, `head` and `whole`."""
        parts = (sorted(times[part]) for part in ("attention", "mlp", "head", "whole"))
        return cls(context, rows, *(t[(len(t) - 1) // 4] for t in parts))


class LatencyModel(Costs, msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """Measured sub-layers: attention is linear in the context (KnapSpec 3.1), the rest constant."""

    attention_s: float  # seconds of one attention with no context
    attention_s_per_token: float
    mlp_s: float
    head_s: float
    layers: int
    points: tuple[Point, ...] = ()  # prices of several rows; without them, as of one
    variants: dict[str, "LatencyModel"] = {}  # the same with those that were measured: one row
    likely_head_s: float = 0.0  # one row of a head of likely tokens; 0 where it was not measured
    int8: "LatencyModel | None" = None  # of `variants`, as older files have it

    def at(self, context: float, rows: int = 1) -> Latency:
        slope = self.attention_s_per_token
        older = {"int8": self.int8} if self.int8 else {}
        variants = {name: m.at(context) for name, m in (older | self.variants).items()}
        attention_s, mlp_s, head_s = self.attention_s + slope * context, self.mlp_s, self.head_s
        if self.points:
            attention, mlp, head = self._by_rows
            factor = interpolate(attention, rows) / attention[0][1]
            attention_s, slope = attention_s * factor, slope * factor
            mlp_s, head_s = interpolate(mlp, rows), interpolate(head, rows)
        parts = (attention_s, mlp_s, head_s, self.layers)
        return Latency(*parts, variants, self.likely_head_s, context, slope)

    @cached_property
    def _by_rows(self) -> "list[Line]":
        """Mean seconds of attention, MLP and head over the contexts."""
        parts = ("attention_s", "mlp_s", "head_s")
        return [line_of((p.rows, getattr(p, part)) for p in self.points) for part in parts]


@dataclass(frozen=True)
class Roofline:
    """Rates of a device for a dtype: bytes/s, operations/s of dense products, their `source`."""

    name: str
    bandwidth: float
    flops: float
    source: str

    def seconds(self, bytes_read: float, operations: float) -> float:
        """The minimum time of a pass that reads and computes so much."""
        return max(bytes_read / self.bandwidth, operations / self.flops)


@dataclass(frozen=True)
class Datasheet(Costs):
    """A model on a device with a known bandwidth: the longer of reading and arithmetic."""

    shape: Shape
    dtype: str
    device: Hardware
    quantization: str = "none"

    @property
    def layers(self) -> int:  # type: ignore[override]  # an attribute of the others
        return self.shape.layers

    def at(self, context: float, rows: int = 1) -> Latency:
        shape, full = self.shape, BYTES[self.dtype]
        size = QUANTIZED.get(self.quantization, full)
        mlp = 3 * shape.hidden * shape.intermediate
        attention = shape.layer_parameters - mlp  # norms included
        cached = shape.cache_bytes(self.dtype, 1) / shape.layers * context
        flops = self.device.flops.get(self.dtype) or float("inf")
        rates = Roofline("", READS * (self.device.bandwidth or 1), flops, "datasheet")

        def seconds(parameters: int, size: float, cached: float = 0.0) -> float:
            operations = 2 * rows * (parameters + cached / full)
            return rates.seconds(parameters * size + cached, operations)

        def latency(size: float, head_size: float, **variants: Latency) -> Latency:
            attention_s = seconds(attention, size, cached)
            slope = (attention_s - seconds(attention, size)) / (context or 1)
            few = min(shape.vocab, LIKELY)
            head_s, likely_s = (
                seconds((n + 1) * shape.hidden, head_size) for n in (shape.vocab, few)
            )
            parts = attention_s, seconds(mlp, size), head_s, shape.layers
            return Latency(*parts, variants, likely_s, context, slope)

        return latency(size, full, **{name: latency(min(size, 1), 1) for name in VARIANTS})

    def prefill_s(self, tokens: int) -> float:
        """A prompt, whose price is its arithmetic."""
        flops = self.device.flops.get(self.dtype, (self.device.bandwidth or 1) * 100)
        return 2 * self.shape.parameters * tokens / (COMPUTES * flops)


Line = list[tuple[float, float]]  # points of a line, sorted


def line_of(points: Iterable[tuple[float, float]]) -> Line:
    """Points with the mean of all values at each place."""
    groups = groupby(sorted(points), itemgetter(0))
    return [(x, fmean(y for _, y in group)) for x, group in groups]


def interpolate(line: Line, x: float) -> float:
    """Linear, also beyond the first and last points, where `np.interp` would stay constant."""
    if len(line) == 1:
        return line[0][1]
    end = min(max(bisect_left(line, x, key=itemgetter(0)), 1), len(line) - 1)
    (x0, y0), (x1, y1) = line[end - 1 : end + 1]
    return y0 + (x - x0) / (x1 - x0) * (y1 - y0)
