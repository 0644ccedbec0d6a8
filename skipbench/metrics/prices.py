"""`Prices`: seconds of a pass of one model, engine and machine, by rows, context and plan."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import msgspec

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.metrics.host import NO_HOST, Host, host_of
from skipbench.metrics.lines import interpolate, line_of
from skipbench.runs.files import write_json
from skipbench.runs.fingerprint import other_package
from skipbench.runs.measures import Profiled
from skipbench.runs.reading import read_json
from skipbench.runs.source import package_sha256

FORMAT = 2
ROWS = (1, 2, 4, 8, 16, 32)
MEASURED = (1, 2, 4, 8, 16, 17, 32)  # with the first row behind a block of 16, as of kernels
DRAFT_ROWS = (1, 4)  # of a draft pass: the last token, and with it what copies propose behind it
PARTS = ("attention", "mlp", "head")
LOOP, VANILLA = "loop", "vanilla"  # of `Prices.host`: as `profile` times rounds; drafting nothing


def price_key(length: int, plan: DraftPlan | None = None) -> str:
    """Names a plan's draft passes, or verifications, by context: from 0, 256, 1024, ... on."""
    fourfolds = max(0, length.bit_length() - 7) // 2
    return f"{64 * 4**fourfolds if fourfolds else 0}+ {plan or ''}".strip()


class Parts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Seconds of one row in one attention, one MLP and the head: attention is linear in the context
    (KnapSpec 3.1), the rest constant.
    """

    attention_s: float  # with no context
    attention_s_per_token: float
    mlp_s: float
    head_s: float
    layers: int
    variants: "dict[str, Parts]" = {}  # of the weights, those that were measured

    def of(self, variant: str) -> "Parts":
        """The same in a variant of the weights; itself without one."""
        if variant and variant not in self.variants:
            raise SkipbenchError(
                f"no price of {variant} here; leave method.latency out to measure it"
            )
        return self.variants[variant] if variant else self


def profiled_pass_s(of: Profiled, plan: DraftPlan | None) -> float:
    """Seconds of a pass by the latencies that a run's metrics have."""
    parts = Parts(of.attention_s, 0.0, of.mlp_s, of.head_s, of.layers)
    return Prices(model=parts).pass_s(1, 0.0, plan)


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


class TimedRound(msgspec.Struct, frozen=True):
    """Rounds of one kind, timed in the loop."""

    context: int
    rows: int
    steps: int
    attention: int  # attentions that a draft step runs; `mlp` likewise
    mlp: int
    draft_s: float
    verify_s: float
    beside_s: float = 0.0  # of all of the round beside its passes


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


class Prices(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was measured of one model, engine and machine, as its file has it. A run measures
    `contexts`, `model` and `points`; methods in use, `passes`; `skipbench profile`, the rest.
    """

    format: int = 0
    package_sha256: str | None = None  # source of the version that measured them
    contexts: list[int] = []
    model: Parts | None = None
    points: list[Point] = []  # prices of several rows; without them, as of one
    roofline: Roofline | None = None
    bytes: dict[str, int] = {}  # of one attention, one MLP (means), the head, a K/V row, a number
    rounds: list[TimedRound] = []
    passes: dict[str, dict[int, float]] = {}  # seconds of whole passes by rows, by `price_key`
    host: dict[str, Host] = {}  # what rounds take beside their passes, by method or `LOOP`
    path: str = ""  # of the file; empty where nothing is kept

    @classmethod
    def read(cls, path: Path, engine: str) -> Self:
        """From a file, as far as this version of the package wrote it. Raises SkipbenchError if the
        file is a link.
        """
        found = cls._load(path)
        if found is None or other_package(found.package_sha256, engine):
            found = cls(format=FORMAT)
        found.path, found.package_sha256 = str(path), package_sha256(engine)
        return found

    @classmethod
    def _load(cls, path: Path) -> Self | None:
        try:
            found = read_json(path, cls)
        except SkipbenchError:
            if path.is_symlink():
                raise
            return None  # another format, or damaged: it is measured again
        return found if found and found.format == FORMAT else None

    def emptied(self) -> Self:
        """With what methods in use have measured alone."""
        kept = ("format", "package_sha256", "path", "passes", "host")
        return type(self)(**{name: getattr(self, name) for name in kept})

    def own(self) -> Self:
        """Its latencies alone, kept nowhere: for one of several arms on one model."""
        host = {name: of for name, of in self.host.items() if name == LOOP}
        return msgspec.structs.replace(self, passes={}, host=host, path="")

    def builtins(self) -> dict[str, Any]:
        """What the file holds."""
        return dict(msgspec.to_builtins(msgspec.structs.replace(self, path="")))

    def save(self) -> None:
        """Raises SkipbenchError if the results folder is not writable."""
        write_json(Path(self.path), self.builtins())

    @property
    def layers(self) -> int:
        """Of the model."""
        assert self.model is not None
        return self.model.layers

    def part_s(self, part: str, rows: int, context: float, variant: str = "") -> float:
        """One of `PARTS`, of a variant of the weights."""
        assert self.model is not None
        of = self.model.of(variant)
        seconds = float(getattr(of, f"{part}_s"))
        if part == "attention":
            seconds += of.attention_s_per_token * context
        if rows > 1 and self.points:
            line = line_of((p.rows, getattr(p, f"{part}_s")) for p in self.points)
            seconds *= interpolate(line, rows) / line[0][1]
        return seconds

    def pass_s(self, rows: int, context: float, plan: DraftPlan | None = None) -> float:
        """One pass with the head: KnapSpec's t_Draft with a plan, t_Target without (Eq. 4). Raises
        SkipbenchError for a variant that was not measured.
        """
        plan = plan or DraftPlan(self.layers)
        attention, mlp, head = (self.part_s(part, rows, context, plan.variant) for part in PARTS)
        out = len(plan.attention), len(plan.mlp)
        return (self.layers - out[0]) * attention + (self.layers - out[1]) * mlp + head

    def floor_s(self, context: int, rows: int) -> dict[str, float]:
        """Least seconds of one attention, one MLP and a whole pass that the roofline allows."""
        assert self.roofline is not None
        sizes, number = self.bytes, self.bytes["number"]
        cached = (context + rows) * sizes["row"]
        read = {"attention": sizes["attention"] + cached, "mlp": sizes["mlp"]}
        read["whole"] = self.layers * sum(read.values()) + sizes["head"]
        return {k: self.roofline.seconds(n, 2 * rows * n / number) for k, n in read.items()}

    def step_price(self, context: float, plan: DraftPlan) -> float:
        """Price of a draft step in passes of one row; without measured parts by the number of
        sub-layers, which cost half in fewer bits.
        """
        if self.model is None:
            return (1 - plan.ratio) * (0.5 if plan.variant else 1.0)
        return self.pass_s(1, context, plan) / self.pass_s(1, context)

    def keep(self, key: str, seconds: dict[int, float]) -> None:
        """Sets the passes of a key, also in the file, whose other parts stay as they are there."""
        self.passes[key] = seconds
        self._store()

    def _store(self) -> None:
        if self.path:
            with contextlib.suppress(SkipbenchError):  # read-only: for this process
                there = self._load(Path(self.path))
                if there is None or there.package_sha256 != self.package_sha256:
                    there = self
                own = {"passes": self.passes, "host": self.host, "path": self.path}
                msgspec.structs.replace(there, **own).save()

    def host_of(self, method: str, unknown: Host = NO_HOST) -> Host:
        """What the method's rounds take beside their passes, its draft steps as the loop's; without
        either `unknown`.
        """
        loop, known = self.host.get(LOOP), self.host.get(method)
        if known is None or loop is None:
            return known or loop or unknown
        return msgspec.structs.replace(known, step_s=loop.step_s)

    def observe_host(self, method: str, rows: Sequence[int], seconds: Sequence[float]) -> None:
        """Moves a method's host half way to what its newest rounds took beside their passes, each
        its rows and its seconds; the first time all the way. Kept where passes are.
        """
        if (new := host_of(rows, seconds)) is not None:
            old = self.host.get(method, new)
            self.host[method] = Host((old.round_s + new.round_s) / 2, (old.row_s + new.row_s) / 2)
            if self.passes:
                self._store()
