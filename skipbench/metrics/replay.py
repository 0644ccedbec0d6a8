"""Replays the rounds of a run with the costs of another machine: what its records say of accepted
tokens, skip sets, rows and contexts stays, and only the seconds per pass are exchanged.

A pass over t rows behind n tokens takes `layers kept x seconds of a sub-layer + head`. Drafting,
verification and adaptation keep the share of host work that the run had over such a sum on its own
machine, where that is known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from skipbench.config.architecture import BYTES, Shape
from skipbench.config.hardware import Hardware
from skipbench.errors import SkipbenchError
from skipbench.runs.record import Round, Sample
from skipbench.skipset import SkipSet

READS = 0.6
"""Share of a datasheet's bandwidth that decoding reaches."""


class PassCosts(Protocol):
    """Seconds of the parts of a pass."""

    @property
    def layers(self) -> int: ...
    def attention_s(self, context: float, rows: int) -> float: ...
    def mlp_s(self, rows: int) -> float: ...
    def head_s(self, rows: int) -> float: ...


@dataclass(frozen=True)
class DatasheetCosts:
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


class MeasuredCosts:
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


@dataclass(frozen=True)
class Replayed:
    """Seconds of decoding, without prefill, summed over the samples; `tokens` of the rounds."""

    tokens: int
    vanilla_tokens: int
    vanilla_s: float
    draft_s: float
    verify_s: float
    adapt_s: float
    other_s: float

    @property
    def method_s(self) -> float:
        return self.draft_s + self.verify_s + self.adapt_s + self.other_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.method_s

    @property
    def tokens_per_s_vanilla(self) -> float:
        return self.vanilla_tokens / self.vanilla_s

    @property
    def speedup(self) -> float:
        return self.tokens_per_s / self.tokens_per_s_vanilla


def pass_s(costs: PassCosts, context: float, rows: int, skip: SkipSet | None = None) -> float:
    """Seconds of one pass with its head."""
    attention = mlp = costs.layers
    if skip is not None:
        attention, mlp = attention - len(skip.attention), mlp - len(skip.mlp)
    return (
        attention * costs.attention_s(context, rows) + mlp * costs.mlp_s(rows) + costs.head_s(rows)
    )


def measured(samples: Sequence[Sample]) -> Replayed:
    """What the run's own clock counted."""
    sound = [s for s in samples if s.lossless != "failed"]
    ours = [s.method.seconds for s in sound]
    return Replayed(
        sum(r.emitted for s in sound for r in s.method.rounds),
        sum(r.emitted for s in sound for r in s.vanilla.rounds),
        sum(s.vanilla.seconds.decode for s in sound),
        *(sum(getattr(x, phase) for x in ours) for phase in ("draft", "verify", "adapt", "other")),
    )


def computed(samples: Sequence[Sample], costs: PassCosts) -> Replayed:
    """The passes of a run at given costs; adaptation and host work are none.

    Raises:
        SkipbenchError: no sample decoded anything.
    """
    sound = [s for s in samples if s.lossless != "failed"]
    vanilla_s = draft_s = verify_s = 0.0
    for sample in sound:
        at: float = sample.prompt_tokens
        for round_ in sample.vanilla.rounds:
            vanilla_s += pass_s(costs, at, 1)
            at += round_.emitted
        at = sample.prompt_tokens
        for round_, skip in _rounds(sample, costs.layers):
            if skip is not None:
                middle = at + round_.steps / 2
                draft_s += round_.steps * pass_s(costs, middle, 1, skip)
            verify_s += pass_s(costs, at, 1 + round_.nodes)
            at += round_.emitted
    found = measured(samples)
    if not found.tokens or not found.vanilla_tokens or not vanilla_s:
        raise SkipbenchError("the run holds no decoded tokens; nothing can be projected")
    return Replayed(found.tokens, found.vanilla_tokens, vanilla_s, draft_s, verify_s, 0.0, 0.0)


def project(samples: Sequence[Sample], there: PassCosts, here: PassCosts | None = None) -> Replayed:
    """The run's seconds on another machine.

    Args:
        there: costs of that machine.
        here: costs of the machine of the run: then each phase keeps its ratio of measured to
            computed seconds over that of vanilla, which holds the host's work and the kernels that
            reach less of the roofline. Without it every pass takes what `there` says.
    """
    far, own = computed(samples, there), measured(samples)
    # Adaptation and the rest have no passes that the record tells: they keep their time in passes
    # of vanilla.
    scale = far.vanilla_s / own.vanilla_s if own.vanilla_s else 0.0
    drafted, verified = far.draft_s or own.draft_s * scale, far.verify_s
    if here is not None and own.vanilla_s:
        near = computed(samples, here)
        vanilla = own.vanilla_s / near.vanilla_s
        drafted *= own.draft_s / near.draft_s / vanilla if near.draft_s else 1.0
        verified *= own.verify_s / near.verify_s / vanilla
    return Replayed(
        far.tokens,
        far.vanilla_tokens,
        far.vanilla_s,
        drafted,
        verified,
        own.adapt_s * scale,
        own.other_s * scale,
    )


def best_length(samples: Sequence[Sample], costs: PassCosts, most: int) -> list[tuple[int, float]]:
    """Draft lengths 1 .. `most` with the speedup that each would have at a fixed length, best
    first.

    A token of step i is accepted as often, behind accepted ones, as the run's i-th was; beyond its
    longest draft, as its last was.
    """
    rounds = [r for s in samples for r in s.method.rounds if r.steps]
    chance = list[float]()
    for step in range(most):
        reached = [r for r in rounds if r.chain >= step and r.steps > step]
        if len(reached) >= 5 or not chance:
            chance.append(_mean([float(r.chain > step) for r in reached]) if reached else 0.0)
        else:
            chance.append(chance[-1])
    skips = [(r, skip) for s in samples for r, skip in _rounds(s, costs.layers) if skip is not None]
    context = _mean([s.prompt_tokens + len(s.vanilla.tokens) / 2 for s in samples])
    one = pass_s(costs, context, 1)
    draft = _mean([pass_s(costs, context, 1, skip) for _, skip in skips]) if skips else 0.0
    found, along, expected = list[tuple[int, float]](), 1.0, 1.0
    for length in range(1, most + 1):
        along *= chance[length - 1]
        expected += along
        seconds = length * draft + pass_s(costs, context, 1 + length)
        found.append((length, expected * one / seconds))
    return sorted(found, key=lambda pair: -pair[1])


def _rounds(sample: Sample, layers: int) -> Iterator[tuple[Round, SkipSet | None]]:
    """The rounds with the set that each drafted with; `None` where drafts need no pass."""
    changes = sample.trace.get("skip") or ([[0, sample.skip]] if sample.skip else [])
    sets = {int(at): SkipSet.parse(text, layers) for at, text in changes}
    current: SkipSet | None = None
    for number, round_ in enumerate(sample.method.rounds):
        current = sets.get(number, current)
        yield round_, current


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
