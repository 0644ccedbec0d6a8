"""Sub-layer latencies, measured in the engine under test, the model fitted to them, and their file
in the results folder: `profile` measures it at leisure, and a run that finds none a short one.
"""

import dataclasses
import math
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from msgspec import structs

from skipbench.config.run_config import RunConfig
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.families import modules_of
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.metrics.prices import Latencies, Point, Prices
from skipbench.profile.clock import interleaved
from skipbench.profile.roofline import device_name, row_bytes
from skipbench.profile.rows import MEASURED, draft_curve, verification_curve
from skipbench.runs.fingerprint import FORMS, weights_sha256
from skipbench.runs.provenance import config_hash, cpu_name, run_name

UNTIMED = 3  # calls before the timed ones
# a run measures its own model at thirds of its cache, with so many calls each
CONTEXTS, REPEATS = 3, 8
SWEEPS = 2  # over all points, one after the other
REACH = 2  # a model measured up to n tokens is used up to so many times n

Advance = Callable[[], None]
Ints = Sequence[int]


def latency_path(config: RunConfig, device: torch.device) -> Path:
    """The file of these weights in any folder, dtype and engine, on this CPU or GPU."""
    model, engine, named = config.model, config.engine, device_name(device)
    key = {k: getattr(model, k) for k in ("dtype", *FORMS)}
    key |= {"weights": weights_sha256(model) or [model.path, model.revision]}
    key |= {k: v for k, v in structs.asdict(engine).items() if k != "warmup"}
    key |= {"machine": cpu_name() if named == "cpu" else named}
    name = run_name([model.name, engine.name], config_hash(key))
    return Path(config.results) / "latency" / f"{name}.json"


def measured(lm: LM, path: Path, variants: Set[str] = frozenset()) -> Prices:
    """The prices in `path` if this version measured them as far as this run's cache, else such as
    are measured now and kept there; with those of variants of the weights.
    """
    last, prices = lm.cache.capacity - 1, Prices.read(path, lm.engine.name)
    if not prices.points or last > REACH * max(p.context for p in prices.points):
        contexts = sorted({max(1, last * i // CONTEXTS) for i in range(CONTEXTS + 1)})
        set_points(lm, prices, measure(lm, contexts, [1], REPEATS))
        prices.save(path)
    for variant in sorted(variants - prices.variants):
        add_variant(lm, prices, variant)
        prices.save(path)
    return prices


def set_points(lm: LM, prices: Prices, points: list[Point], rows: Ints = ()) -> None:
    """Sets points, the latencies fitted to those of one row, and curves at the first and the last
    context that leaves space, of `MEASURED` rows and of these.
    """
    prices.points, prices.model = points, fit([p for p in points if p.rows == 1], lm.layers)
    sizes, contexts = sorted({*MEASURED, *rows}), sorted(p.context for p in points)
    last = max(contexts[0], min(contexts[-1], lm.cache.capacity - sizes[-1]))
    ends = dict.fromkeys((contexts[0], last))
    prices.curves = [verification_curve(lm, context, sizes) for context in ends]


def add_variant(lm: LM, prices: Prices, variant: str, repeats: int = REPEATS) -> None:
    """Prices a variant, which makes a copy of the weights: parts whose pass takes as long as in
    turns with the full model's.
    """
    assert prices.model is not None
    plan = DraftPlan(lm.layers, variant=variant)
    contexts = sorted({p.context for p in prices.points})
    alone = fit(measure(lm, contexts, [1], repeats, plan=plan), lm.layers)
    curve, price = draft_curve(lm, contexts[0], variant)
    share = price * prices.pass_s(1, contexts[0]) / Prices(model=alone).pass_s(1, contexts[0])
    attention, per_token, mlp, head = (share * s for s in structs.astuple(alone)[:4])
    known = prices.model.variants | {variant: Latencies(attention, per_token, mlp, head, lm.layers)}
    prices.model = structs.replace(prices.model, variants=known)
    prices.curves.append(curve)


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
    one_kind = (frozenset(range(s, lm.sublayers, 2)) for s in (1, 0))
    attention, mlp = (dataclasses.replace(plan, skipped=others) for others in one_kind)
    calls: dict[str, Callable[[], object]] = {
        "attention": partial(lm.run, hidden, metadata, attention),
        "mlp": partial(lm.run, hidden, metadata, mlp),
        "head": partial(lm.head, last, plan),
        "whole": partial(lm.logits, tokens, token_rows, plan),
    }
    turns = interleaved(calls, lm.output_device, repeats, UNTIMED)
    counts = {"attention": lm.layers, "mlp": lm.layers}
    return {part: [turn[part] / counts.get(part, 1) for turn in turns] for part in calls}


def fit(points: Sequence[Point], layers: int) -> Latencies:
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
    return Latencies(base, slope, mlp_s, head_s, layers)


def measure(
    lm: LM,
    contexts: Ints,
    rows: Ints,
    repeats: int,
    advance: Advance = lambda: None,
    plan: DraftPlan | None = None,
) -> list[Point]:
    """A point per context and number of rows: `repeats` calls, spread over sweeps of all points;
    `plan` as of `part_times`.
    """
    lm.allocate(max(contexts) + max(rows))
    kinds, sweeps = list(product(contexts, rows)), min(SWEEPS, repeats)
    times = {kind: defaultdict[str, list[float]](list) for kind in kinds}
    for context, n in kinds * sweeps:
        found = part_times(lm, context, n, math.ceil(repeats / sweeps), plan)
        for part, seconds in found.items():
            times[context, n][part] += seconds
        advance()
    return [Point.of(context, n, parts) for (context, n), parts in times.items()]


def points_to_measure(lm: LM, contexts: Ints, rows: Ints, repeats: int) -> tuple[list[int], int]:
    """The contexts that fit into the model, and how often `measure` advances. Raises SkipbenchError
    if fewer than two contexts fit, or a number is below 1.
    """
    fitting = sorted({c for c in contexts if c + max(rows, default=1) <= lm.max_positions})
    if len(fitting) < 2 or not rows or min(*contexts, *rows, repeats) < 1:
        given = f"contexts={list(contexts)}, rows={list(rows)}, {repeats=}"
        two = f"two contexts or more within the model's {lm.max_positions} positions"
        wanted = f"wanted numbers of 1 or more, and {two}, to lay a line through"
        raise SkipbenchError(f"profile: {given}; {wanted}")
    return fitting, min(SWEEPS, repeats) * len(fitting) * len(set(rows))


def part_bytes(lm: LM) -> dict[str, int]:
    """Bytes of weights that one row reads of one attention and one MLP (means over layers) and of
    the head, of one layer's K/V row, and of a number.
    """

    def size(of: Iterable[Any]) -> int:
        return sum(p.nbytes for m in of for p in m.parameters())

    modules = modules_of(lm.model)
    attention = sum(size(attention.weighted) for attention, _ in modules.layers)
    mlp = sum(size(mlp.weighted) - mlp.inactive_bytes for _, mlp in modules.layers)
    attention, mlp, row = (total // lm.layers for total in (attention, mlp, row_bytes(lm)))
    head, number = size([modules.head, modules.norm]), lm.dtype.itemsize
    return {"attention": attention, "mlp": mlp, "head": head, "row": row, "number": number}
