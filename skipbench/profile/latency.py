"""Sub-layer latencies, measured in the engine under test, and the model of them that methods weigh
sub-layers by.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from skipbench.config.architecture import Shape
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.metrics.acceptance import Latency
from skipbench.models.random_weights import PLANTABLE, planted_model
from skipbench.skipset import SkipSet

UNTIMED = 3  # calls before the timed ones
NARROW = 64  # width of the model whose arithmetic takes next to nothing

Times = Mapping[str, Sequence[float]]
"""Seconds of every timed call of `attention`, `mlp` (one sub-layer each), `head`, and `whole`, a
full pass with the head.
"""


@torch.inference_mode()
def part_times(lm: LM, context_tokens: int, rows: int, repeats: int) -> dict[str, list[float]]:
    """`Times` for `rows` rows behind `context_tokens` committed ones.

    All attentions are timed as one run, and all MLPs, so that weights come from memory as in
    decoding. What the cache holds behind `context_tokens` is overwritten.
    """
    lm.allocate(context_tokens + rows)
    device = lm.output_device
    token_rows = TokenRows.chain(context_tokens, rows)
    metadata = lm.metadata(token_rows)
    tokens, borrowed = [0] * rows, lm.engine.result_is_borrowed
    hidden = lm.embed(tokens)
    inputs = {d: (hidden.to(d), metadata.on(d)) for d in set(lm.devices)}

    def through(kind: int) -> Callable[[], None]:
        calls = [
            (sublayer, *inputs[d])
            for sublayer, d in zip(lm.engine.sublayers[kind::2], lm.devices, strict=True)
        ]

        def run() -> None:
            out: Tensor | None = None
            for sublayer, state, local in calls:
                # A buffer that goes from sub-layer to sub-layer is not copied in decoding, either.
                goes_on = borrowed and out is not None and out.device == state.device
                out = sublayer(out if goes_on and out is not None else state, local)

        return run

    last = hidden.to(device)
    calls: dict[str, Callable[[], object]] = {
        "attention": through(0),
        "mlp": through(1),
        "head": lambda: lm.head(last),
        "whole": lambda: lm.logits(tokens, token_rows),
    }
    found: dict[str, list[float]] = {part: [] for part in calls}
    for _ in range(UNTIMED):
        for call in calls.values():
            call()
    # in turns, so that a busy moment of the machine does not fall on one part alone
    for _ in range(repeats):
        for part, call in calls.items():
            found[part].append(
                _seconds(call, device) / (lm.layers if part in ("attention", "mlp") else 1)
            )
    return found


def _seconds(call: Callable[[], object], device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


@dataclass(frozen=True)
class Point:
    """Seconds of the parts of a pass at one context length and number of rows, and of a whole pass.

    They are lower quartiles: what else runs on a machine only adds time, and a median moves when it
    runs for long.
    """

    context: int
    rows: int
    attention_s: float
    mlp_s: float
    head_s: float
    whole_s: float

    @classmethod
    def of(cls, context: int, rows: int, times: Times) -> "Point":
        return cls(
            context,
            rows,
            *(_lower_quartile(times[part]) for part in ("attention", "mlp", "head", "whole")),
        )

    def sum_s(self, layers: int) -> float:
        """What the parts make of a pass of `layers` layers."""
        return layers * (self.attention_s + self.mlp_s) + self.head_s


def _lower_quartile(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 4]


@dataclass(frozen=True)
class LatencyModel:
    """Sub-layer latencies as functions of the context length n (KnapSpec section 3.1): attention is
    linear in n, the rest constant.
    """

    attention_s: float
    """Seconds of one attention with no context."""
    attention_s_per_token: float
    mlp_s: float
    head_s: float
    layers: int

    def at(self, context_tokens: int) -> Latency:
        attention_s = self.attention_s + self.attention_s_per_token * context_tokens
        return Latency(attention_s, self.mlp_s, self.head_s, self.layers, context_tokens)


def fit(points: Sequence[Point], layers: int) -> LatencyModel:
    """Least squares of relative errors over points of one row at two contexts or more.

    Where attention falls with the context it becomes constant. Where it grows so fast that it would
    take less than no time without a context, its line goes through 0.
    """
    attention_s = [p.attention_s for p in points]
    contexts, weights = [p.context for p in points], [1 / t for t in attention_s]
    slope, base = map(float, np.polyfit(contexts, attention_s, 1, w=weights))
    if slope < 0:
        slope, base = 0.0, statistics.median(attention_s)
    elif base < 0:
        scaled, ones = [p.context / p.attention_s for p in points], [1.0] * len(points)
        slope, base = statistics.linear_regression(scaled, ones, proportional=True).slope, 0.0
    mlp_s, head_s = (
        statistics.median(p.mlp_s for p in points),
        statistics.median(p.head_s for p in points),
    )
    return LatencyModel(base, slope, mlp_s, head_s, layers)


def residuals(model: LatencyModel, points: Sequence[Point]) -> dict[str, list[float]]:
    """Of every point, what was measured over what the model says, less 1: attention, MLP, head, and
    the whole pass.
    """
    found: dict[str, list[float]] = {"attention": [], "mlp": [], "head": [], "whole": []}
    for point in points:
        fitted = model.at(point.context)
        said = (fitted.attention_s, fitted.mlp_s, fitted.head_s, fitted.target_s())
        measured = (point.attention_s, point.mlp_s, point.head_s, point.whole_s)
        for part, m, s in zip(found, measured, said, strict=True):
            found[part].append(m / s - 1)
    return found


def overhead(lm: LM, repeats: int) -> Latency:
    """Seconds that a sub-layer takes beside its arithmetic: Python, dispatch and kernel launches.

    Measured as the time of the same engine's sub-layers in a model of the same family (Llama where
    none of it can be planted), dtype and device that is only 64 wide.
    """
    layers, own = 4, lm.config.model_type
    family = own if own in PLANTABLE else "llama"
    shape = Shape(layers, NARROW, 1, 1, NARROW, NARROW, NARROW, NARROW, family=family)
    narrow = LM(
        planted_model(shape, SkipSet.of(layers), 0, lm.dtype, str(lm.devices[0]), NARROW),
        lm.engine.name,
    )
    point = Point.of(1, 1, part_times(narrow, 1, 1, repeats))
    return Latency(point.attention_s, point.mlp_s, point.head_s, lm.layers, 1)
