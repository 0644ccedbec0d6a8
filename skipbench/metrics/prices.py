"""`Prices`: seconds of passes and rounds of one model, engine and machine. A pass is the sum of its
parts times a curve over its rows; a round is its passes and the host's part.
"""

import bisect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from statistics import median
from typing import Self

import msgspec

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.metrics.host import ENOUGH, FEWEST, NEWEST, NO_HOST, Host, Timed, host_line
from skipbench.runs.files import write_json
from skipbench.runs.fingerprint import other_package
from skipbench.runs.reading import read_json
from skipbench.runs.source import package_sha256

FORMAT = 3
ROWS = (1, 2, 4, 8, 16, 32)
DRAFT_ROWS = (1, 4)
"""Rows of a draft pass: the last token, and with it what copies propose behind it."""
PARTS = ("attention", "mlp", "head")


class Latencies(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds of one row in one attention, one MLP and the head: attention is linear in the context
    (KnapSpec 3.1), the rest constant.
    """

    attention_s: float  # with no context
    attention_s_per_token: float
    mlp_s: float
    head_s: float
    layers: int
    variants: "dict[str, Latencies]" = {}  # of the weights, those that were measured

    def of(self, variant: str) -> "Latencies":
        """The same in a variant of the weights; itself without one."""
        if variant and variant not in self.variants:
            raise SkipbenchError(
                f"no price of {variant} here; leave method.latency out to measure it"
            )
        return self.variants[variant] if variant else self


def interpolate(line: Sequence[tuple[float, float]], x: float) -> float:
    """Linear between points, sorted by place; beyond them on with their mean slope.

    >>> [interpolate([(1, 1.0), (2, 1.5), (5, 3.0)], x) for x in (1, 1.5, 3, 9)]
    [1.0, 1.25, 2.0, 5.0]
    """
    (x0, y0), (x1, y1) = line[0], line[-1]
    from_x, from_y = line[0] if x < x1 else line[-1]
    if x0 < x < x1:
        at = bisect.bisect([place for place, _ in line], x)
        (x0, y0), (x1, y1) = line[at - 1], line[at]
        from_x, from_y = x0, y0
    return from_y + (y1 - y0) / (x1 - x0 or 1) * (x - from_x)


class Curve(msgspec.Struct, frozen=True, omit_defaults=True):
    """A pass at a context by its rows, over one of one row that was timed in turns with it."""

    context: int
    rows: dict[int, float]
    variant: str = ""

    def at(self, rows: float) -> float:
        """Never falling."""
        sizes = sorted(self.rows)
        rising = accumulate((self.rows[n] for n in sizes), max)
        return interpolate([*zip(sizes, rising, strict=True)], rows)


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
        parts = (sorted(times[part]) for part in (*PARTS, "whole"))
        return cls(context, rows, *(t[(len(t) - 1) // 4] for t in parts))


@dataclass(frozen=True)
class Roofline:
    """Rates of a device for a dtype: bytes/s, operations/s of dense products, their `source`."""

    name: str
    bandwidth: float
    flops: float
    source: str


class Prices(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was measured of one model, engine and machine, as its file has it. A run measures
    `points`, `model` and `curves`; the loop, `host`; `skipbench profile`, the rest.
    """

    format: int = 0
    package_sha256: str | None = None  # source of the version that measured them
    points: list[Point] = []
    model: Latencies | None = None
    curves: list[Curve] = []  # rows of a variant that has none cost nothing after the first
    host: dict[str, Host] = {}  # by method
    roofline: Roofline | None = None
    bytes: dict[str, int] = {}  # of one attention, one MLP (means), the head, a K/V row, a number

    @classmethod
    def read(cls, path: Path, engine: str) -> Self:
        """From a file, as far as this version of the package wrote it. Raises SkipbenchError if the
        file is a link.
        """
        try:
            found = read_json(path, cls)
        except SkipbenchError:
            if path.is_symlink():
                raise
            found = None  # another format, or damaged: it is measured again
        if not found or found.format != FORMAT or other_package(found.package_sha256, engine):
            found = cls(format=FORMAT)
        found.package_sha256 = package_sha256(engine)
        return found

    @classmethod
    def least(cls, rates: Roofline, sizes: Mapping[str, int], layers: int) -> Self:
        """Of a device that nobody timed, by its rates: each part reads its bytes, and from so many
        rows on a pass takes as long as its arithmetic. `sizes` as of `bytes`.
        """
        attention, mlp, head, row = (sizes[k] / rates.bandwidth for k in (*PARTS, "row"))
        rows = max(1, round(rates.flops / rates.bandwidth * sizes["number"] / 2))
        curve = Curve(0, {1: 1.0, rows: 1.0, 2 * rows: 2.0})
        return cls(model=Latencies(attention, row, mlp, head, layers), curves=[curve])

    def save(self, path: Path) -> None:
        """Raises SkipbenchError if the results folder is not writable."""
        write_json(path, msgspec.to_builtins(self))

    @property
    def layers(self) -> int:
        """Of the model."""
        assert self.model is not None
        return self.model.layers

    @property
    def variants(self) -> set[str]:
        """Of the weights, those that were measured."""
        return set(self.model.variants) if self.model else set()

    def part_s(self, part: str, context: float, variant: str = "") -> float:
        """One row in one of `PARTS`, of a variant of the weights."""
        assert self.model is not None
        of = self.model.of(variant)
        per_token = of.attention_s_per_token if part == "attention" else 0.0
        return float(getattr(of, f"{part}_s")) + per_token * context

    def pass_s(self, rows: int, context: float, plan: DraftPlan | None = None) -> float:
        """One pass with the head: KnapSpec's t_Draft with a plan, t_Target without (Eq. 4). Raises
        SkipbenchError for a variant that was not measured.
        """
        plan = plan or DraftPlan(self.layers)
        attention, mlp, head = (self.part_s(part, context, plan.variant) for part in PARTS)
        out = len(plan.attention), len(plan.mlp)
        one = (self.layers - out[0]) * attention + (self.layers - out[1]) * mlp + head
        return one if rows == 1 else one * self.curve(rows, context, plan.variant)

    def curve(self, rows: int, context: float, variant: str = "") -> float:
        """A pass of so many rows over one of one row; linear between contexts that were measured,
        and as at the nearest one beyond them.
        """
        known = {of.context: of.at(rows) for of in self.curves if of.variant == variant}
        line = sorted(known.items())
        return interpolate(line, min(max(context, line[0][0]), line[-1][0])) if line else 1.0

    def round_s(
        self, rows: int, context: float, host: Host, steps: int = 0, plan: DraftPlan | None = None
    ) -> float:
        """One round: its draft steps, its verification, and the host."""
        step_s = host.draft_pace * self.pass_s(1, context, plan) + host.step_s if steps else 0.0
        verify_s = host.verify_pace * self.pass_s(rows, context)
        return steps * step_s + verify_s + host.beside_s(rows)

    def round_prices(self, most: int, context: float = 0, host: Host = NO_HOST) -> list[float]:
        """Of rounds of 0 to `most` rows without draft passes, in those of one row; without measured
        latencies 1 each.
        """
        if self.model is None:
            return [0.0, *[1.0] * most]
        seconds = [self.round_s(n, context, host) for n in range(1, most + 1)]
        return [0.0, *(s / seconds[0] for s in seconds)]

    def draft_prices(
        self, most: int, variant: str, context: float = 0, host: Host = NO_HOST
    ) -> list[float]:
        """Of draft passes of 0 to `most` rows by a variant of the weights, in rounds of one row;
        empty if it was not measured.
        """
        if variant not in self.variants:
            return []
        plan, one_s = DraftPlan(self.layers, variant=variant), self.round_s(1, context, host)
        passes = (self.pass_s(n, context, plan) for n in range(1, most + 1))
        return [0.0, *((host.draft_pace * s + host.step_s) / one_s for s in passes)]

    def step_price(self, context: float, plan: DraftPlan, host: Host = NO_HOST) -> float:
        """Of a draft step, in rounds of one row; without measured latencies by the number of
        sub-layers, which cost half in fewer bits.
        """
        if self.model is None:
            return (1 - plan.ratio) * (0.5 if plan.variant else 1.0)
        step_s = host.draft_pace * self.pass_s(1, context, plan) + host.step_s
        return step_s / self.round_s(1, context, host)

    def host_of(self, method: str) -> Host:
        """What the method's rounds take beside their passes; nothing before any was observed."""
        return self.host.get(method, NO_HOST) if self.model else NO_HOST

    def observe(self, method: str, rounds: Sequence[Timed]) -> bool:
        """Moves a method's host to what its newest rounds took, the first time all the way. Returns
        whether it did, which takes a few rounds and measured latencies.
        """
        if self.model is None or len(rounds) < FEWEST:
            return False
        rounds, old = rounds[-NEWEST:], self.host.get(method)
        round_s, row_s = host_line(rounds)
        verify_pace = median(r.pass_s / self.pass_s(r.rows, r.context) for r in rounds)
        step_s, draft_pace = (old.step_s, old.draft_pace) if old else (0.0, verify_pace)
        drafted = [r for r in rounds if r.passes and r.plan is not None]
        if drafted:
            took = [(r.round_s - r.pass_s - round_s - row_s * r.rows) / r.passes for r in drafted]
            steps = [*zip(took, (self.pass_s(1, r.context, r.plan) for r in drafted), strict=True)]
            draft_pace = min(verify_pace, median(s / alone for s, alone in steps))
            step_s = max(0.0, median(s - draft_pace * alone for s, alone in steps))
        new = Host(round_s, row_s, step_s, verify_pace, draft_pace)
        self.host[method] = new.mixed(old or new, len(rounds) / (len(rounds) + ENOUGH))
        return True
