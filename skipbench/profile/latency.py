"""Sub-layer latencies, measured in the engine under test, and the model fitted to them."""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import torch

from skipbench.config.architecture import Shape
from skipbench.draft_plan import LIKELY, DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.metrics.costs import LatencyModel, Point
from skipbench.models.random_weights import PLANTABLE, planted_model
from skipbench.profile.clock import timed

UNTIMED = 3  # calls before the timed ones
NARROW = 64  # width of the model whose arithmetic takes next to nothing
PARTS = ("attention", "mlp", "head")


@torch.inference_mode()
def part_times(
    lm: LM, context_tokens: int, rows: int, repeats: int, plan: DraftPlan | None = None
) -> dict[str, list[float]]:
    """Seconds of every timed call of `attention`, `mlp` (one sub-layer each), `head`, and `whole`,
    a pass with the head, for `rows` rows after `context_tokens` committed ones.

    `plan`: how draft passes compute them, nothing left out; `None` for the full model.

    All attentions are timed as one run, and all MLPs, so that weights come from memory as in
    decoding. Cache rows from `context_tokens` on are overwritten.
    """
    lm.allocate(context_tokens + rows)
    tokens, token_rows = [0] * rows, TokenRows.chain(context_tokens, rows)
    metadata, hidden = lm.metadata(token_rows), lm.embed(tokens)
    last = hidden.to(lm.output_device)
    plan = plan or DraftPlan.of(lm.layers)
    likely = torch.arange(min(LIKELY, lm.vocabulary), device=lm.output_device)
    one_kind = (frozenset(range(s, lm.sublayers, 2)) for s in (1, 0))
    attention, mlp = (replace(plan, skipped=others) for others in one_kind)
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "attention": (lambda: lm.run(hidden, metadata, attention), lm.layers),
        "mlp": (lambda: lm.run(hidden, metadata, mlp), lm.layers),
        "head": (lambda: lm.head(last, plan, likely), 1),
        "whole": (lambda: lm.logits(tokens, token_rows, plan, likely=likely), 1),
    }
    times: dict[str, list[float]] = {part: [] for part in calls}
    for _ in range(UNTIMED):
        for call, _ in calls.values():
            call()
    # interleaved, so that a busy moment of the machine does not fall on one part alone
    for _ in range(repeats):
        for part, (call, count) in calls.items():
            times[part].append(timed(call, lm.output_device) / count)
    return times


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
    mlp_s = statistics.median(p.mlp_s for p in points)
    head_s = statistics.median(p.head_s for p in points)
    return LatencyModel(base, slope, mlp_s, head_s, layers)


def residuals(model: LatencyModel, points: Sequence[Point]) -> dict[str, list[float]]:
    """Measured over fitted, less 1, of every point: attention, MLP, head, and the whole pass."""
    pairs = [(p, model.at(p.context)) for p in points]
    off = {k: [getattr(p, f"{k}_s") / getattr(f, f"{k}_s") - 1 for p, f in pairs] for k in PARTS}
    return off | {"whole": [p.whole_s / f.pass_s() - 1 for p, f in pairs]}


def overhead(lm: LM, repeats: int) -> Point:
    """Seconds that a sub-layer takes beside its arithmetic: Python, dispatch and kernel launches.

    Measured as the time of the same engine's sub-layers in a model of the same family (Llama where
    none of it can be planted), dtype and device that is only 64 wide.
    """
    family = lm.config.model_type if lm.config.model_type in PLANTABLE else "llama"
    shape = Shape(4, NARROW, 1, 1, NARROW, NARROW, NARROW, NARROW, family=family)
    narrow = planted_model(
        shape, DraftPlan.of(shape.layers), 0, lm.dtype, str(lm.devices[0]), NARROW
    )
    return Point.of(1, 1, part_times(LM(narrow, lm.engine.name), 1, 1, repeats))
