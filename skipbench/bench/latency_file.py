"""The latency file of a machine, model and engine in the results folder: `profile` measures it at
leisure, and a run that finds none measures a short one.
"""

import dataclasses
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence, Set
from itertools import product
from pathlib import Path
from typing import Any

from msgspec import structs, to_builtins

from skipbench.config.model import Model
from skipbench.config.schemas import Engine
from skipbench.draft_plan import VARIANTS, DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.families import parts_of
from skipbench.lm.model import LM
from skipbench.metrics.costs import LatencyModel, Point, Roofline
from skipbench.metrics.loop_costs import LatencyRecord, PartBytes
from skipbench.profile.latency import UNTIMED, fit, overhead, part_times, residuals
from skipbench.profile.roofline import Known, roofline, row_bytes
from skipbench.runs.files import write_json
from skipbench.runs.fingerprint import FORMS, other_package, weights_sha256
from skipbench.runs.provenance import config_hash, cpu_name, run_name
from skipbench.runs.reading import read_json
from skipbench.runs.source import package_sha256

# a run measures its own model at thirds of its cache, with so many calls each
CONTEXTS, REPEATS = 3, 8
SWEEPS = 2  # over all points, one after the other
REACH = 2  # a model measured up to n tokens is used up to so many times n
FORMAT = 2

Advance = Callable[[], None]
Ints = Sequence[int]


def latency_path(model: Model, engine: Engine, device: str, results: Path) -> Path:
    """The file of these weights in any folder, dtype and engine, on this CPU or GPU `device`."""
    weights = ("path", "revision", "deepened", "deepened_seed")
    key = {k: getattr(model, k) for k in ("dtype", *FORMS)}
    if model.tensor_parallel_size > 1:
        key |= {"tensor_parallel_size": model.tensor_parallel_size}
    key |= {"weights": weights_sha256(model) or [getattr(model, k) for k in weights]}
    key |= {k: v for k, v in dataclasses.asdict(engine).items() if k != "warmup"}
    key |= {"machine": cpu_name() if device == "cpu" else device}
    return results / "latency" / f"{run_name([model.name, engine.name], config_hash(key))}.json"


def stored_latency(lm: LM, path: Path, variants: Set[str] = frozenset()) -> LatencyModel:
    """The model in `path` if this version measured it as far as this run's cache, else one that is
    measured now and kept there; with the prices of `DraftPlan.variants`.
    """
    needed, record = lm.cache.capacity - 1, valid_record(path, lm.engine.name)
    contexts = sorted({max(1, needed * i // CONTEXTS) for i in range(CONTEXTS + 1)})
    if record is None or needed > REACH * max(record.contexts):
        points = measure(lm, contexts, [1], REPEATS, lambda: None)
        model = fit(points, lm.layers)
        record = LatencyRecord(format=FORMAT, contexts=contexts, model=model, points=points)
        write_record(path, record, lm.engine.name)
    if variants - record.model.at(0).measured:
        model = with_variants(lm, record.model, contexts, REPEATS, variants)
        record = structs.replace(record, model=model)
        write_record(path, record, lm.engine.name)
    return record.model


def with_variants(
    lm: LM, model: LatencyModel, contexts: Ints, repeats: int, variants: Set[str]
) -> LatencyModel:
    """The model with prices of one row by variants, of which each makes a copy of the weights."""

    def measured(plan: DraftPlan) -> LatencyModel:
        return fit(measure(lm, contexts, [1], repeats, lambda: None, plan), lm.layers)

    whole = DraftPlan.of(lm.layers)
    made = {name: measured(whole.cheaper(name, head=name)) for name in variants & {*VARIANTS}}
    model = structs.replace(model, variants=model.variants | made)
    if "likely" in variants:
        head_s = measured(whole.cheaper(head="likely")).head_s
        model = structs.replace(model, likely_head_s=head_s)
    return model


def passes_to_measure() -> int:
    """Passes that `stored_latency` takes to measure: one for all parts, one for the whole."""
    return 2 * (CONTEXTS + 1) * (REPEATS + SWEEPS * UNTIMED)


def valid_record(path: Path, engine: str) -> LatencyRecord | None:
    """The record of this format and version of the package; None without one. Raises SkipbenchError
    if the file is a link.
    """
    try:
        record: LatencyRecord | None = read_json(path, LatencyRecord)
    except SkipbenchError:
        if path.is_symlink():
            raise
        return None  # another format, or damaged: it is measured again
    here = record and record.format == FORMAT and not other_package(record.package_sha256, engine)
    return record if here else None


def write_record(path: Path, record: LatencyRecord, engine: str) -> None:
    """Raises SkipbenchError if the results folder is not writable."""
    write_json(path, to_builtins(record) | {"package_sha256": package_sha256(engine)})


def measure(
    lm: LM,
    contexts: Ints,
    rows: Ints,
    repeats: int,
    advance: Advance,
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


def profile(
    lm: LM,
    contexts: Ints,
    rows: Ints,
    repeats: int,
    known: Known,
    advance: Advance,
    variants: Set[str] = frozenset(),
) -> LatencyRecord:
    """The record of a profile, without its rounds; with the prices of `variants`."""
    # The model is fitted to points of one row, and all others are compared with them.
    points = measure(lm, contexts, sorted({1, *rows}), repeats, advance)
    single = [p for p in points if p.rows == 1]
    model = with_variants(lm, fit(single, lm.layers), contexts, repeats, variants)
    rates = roofline(lm.output_device, lm.dtype, lm.weight_bytes, known)
    sizes, beside = part_bytes(lm), overhead(lm, repeats)
    return LatencyRecord(
        format=FORMAT,
        contexts=list(contexts),
        model=model,
        points=points,
        residuals=residuals(model, single),
        overhead={k: getattr(beside, k) for k in ("attention_s", "mlp_s", "head_s")},
        roofline=rates,
        floor=[floor_s(rates, sizes, lm.layers, p.context, p.rows) for p in points],
        bytes=sizes,
    )


def part_bytes(lm: LM) -> PartBytes:
    """Bytes of weights that one row reads of one attention and one MLP (means over layers) and of
    the head, of one layer's K/V row, and of a number.
    """

    def size(modules: Iterable[Any]) -> int:
        return sum(p.nbytes for m in modules for p in m.parameters())

    parts = parts_of(lm.model)
    attention = sum(size(attention.modules) for attention, _ in parts.layers)
    mlp = sum(size(mlp.modules) - mlp.inactive_bytes for _, mlp in parts.layers)
    attention, mlp, row = (total // lm.layers for total in (attention, mlp, row_bytes(lm)))
    return PartBytes(attention, mlp, size([parts.head, parts.norm]), row, lm.dtype.itemsize)


def floor_s(
    rates: Roofline, sizes: PartBytes, layers: int, context: int, rows: int
) -> dict[str, float]:
    """Minimum seconds of one attention, one MLP and a whole pass."""
    cached = (context + rows) * sizes.row
    whole = layers * (sizes.attention + sizes.mlp + cached) + sizes.head
    read = {"attention": sizes.attention + cached, "mlp": sizes.mlp, "whole": whole}
    return {k: rates.seconds(n, 2 * rows * n / sizes.number) for k, n in read.items()}
