"""The latency file of a machine, model and engine: measured, kept in the results folder, and read
again.

`profile` measures at leisure and replaces the file; a run that needs one and finds none measures a
short one itself.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from skipbench.config.model import Model
from skipbench.config.schemas import Engine
from skipbench.errors import SkipbenchError
from skipbench.lm.families import parts_of
from skipbench.lm.model import LM
from skipbench.metrics.costs import LatencyModel, Point, Roofline
from skipbench.metrics.latency_record import LatencyRecord
from skipbench.profile.latency import UNTIMED, fit, overhead, part_times, residuals
from skipbench.profile.roofline import Known, roofline, row_bytes
from skipbench.runs.files import write_json
from skipbench.runs.fingerprint import FORMS, other_package, package_sha256, weights_sha256
from skipbench.runs.provenance import config_hash, cpu_name, run_name
from skipbench.runs.reading import read_json

# a run measures its own model at thirds of its cache, with so many calls each
CONTEXTS, REPEATS = 3, 8
SWEEPS = 2  # in turns over all points
REACH = 2  # a model measured up to n tokens is used up to so many times n
FORMAT = 2

Advance = Callable[[], None]


def latency_path(model: Model, engine: Engine, device: str, results: Path) -> Path:
    """The file of this machine, these weights in any folder, dtype and engine; `device` is the name
    of the device the model runs on.
    """
    weights = ("path", "revision", "deepened", "deepened_seed")
    key: dict[str, Any] = {k: getattr(model, k) for k in ("dtype", *FORMS)}
    key["weights"] = weights_sha256(model) or [getattr(model, k) for k in weights]
    key |= {k: v for k, v in dataclasses.asdict(engine).items() if k != "warmup"}
    key["machine"] = cpu_name() if device == "cpu" else device
    return results / "latency" / f"{run_name([model.name, engine.name], config_hash(key))}.json"


def stored_latency(lm: LM, path: Path) -> LatencyModel:
    """The model in `path` if this version of the package measured it and it reaches as far as this
    run's cache, else one that is measured now and kept there.
    """
    needed = lm.cache.capacity - 1
    record = valid_record(path)
    if record is not None and needed <= REACH * max(record.contexts):
        return record.model
    contexts = sorted({max(1, needed * i // CONTEXTS) for i in range(CONTEXTS + 1)})
    points = measure(lm, contexts, [1], REPEATS, lambda: None)
    model = fit(points, lm.layers)
    write_record(path, LatencyRecord(format=FORMAT, contexts=contexts, model=model, points=points))
    return model


def passes_to_measure() -> int:
    """Passes of the model whose time `stored_latency` takes where nothing is stored: the calls of
    all parts are one pass, and so is the call of the whole.
    """
    return 2 * (CONTEXTS + 1) * (REPEATS + SWEEPS * UNTIMED)


def valid_record(path: Path) -> LatencyRecord | None:
    """The record of this format and this version of the package in `path`; None without one.

    Raises:
        SkipbenchError: the file is a link.
    """
    try:
        record: LatencyRecord | None = read_json(path, LatencyRecord)
    except SkipbenchError:
        if path.is_symlink():
            raise
        return None  # another format, or damaged: it is measured again
    if record is None or record.format != FORMAT or other_package(record.package_sha256):
        return None
    return record


def write_record(path: Path, record: LatencyRecord) -> None:
    """Raises SkipbenchError if the results folder is not writable."""
    write_json(path, to_builtins(record) | {"package_sha256": package_sha256()})


def measure(
    lm: LM, contexts: Sequence[int], rows: Sequence[int], repeats: int, advance: Advance
) -> list[Point]:
    """A point for every context and number of rows: `repeats` calls, spread over sweeps of all
    points.
    """
    lm.allocate(max(contexts) + max(rows))
    times: dict[tuple[int, int], dict[str, list[float]]]
    times = {(context, n): {} for context in contexts for n in rows}
    sweeps = min(SWEEPS, repeats)
    for _ in range(sweeps):
        for (context, n), parts in times.items():
            for part, seconds in part_times(lm, context, n, math.ceil(repeats / sweeps)).items():
                parts.setdefault(part, []).extend(seconds)
            advance()
    return [Point.of(context, n, parts) for (context, n), parts in times.items()]


def points_to_measure(
    lm: LM, contexts: Sequence[int], rows: Sequence[int], repeats: int
) -> tuple[list[int], int]:
    """The contexts that fit into the model, and how often `measure` advances.

    Raises:
        SkipbenchError: fewer than two contexts fit, or a number is below 1.
    """
    fitting = sorted({c for c in contexts if c + max(rows, default=1) <= lm.max_positions})
    if len(fitting) < 2 or not rows or min(*contexts, *rows, repeats) < 1:
        raise SkipbenchError(
            f"profile: contexts={list(contexts)}, rows={list(rows)}, {repeats=}; wanted numbers of "
            f"1 or more, and two contexts or more within the model's {lm.max_positions} positions, "
            "to lay a line through"
        )
    return fitting, min(SWEEPS, repeats) * len(fitting) * len(set(rows))


def profile(
    lm: LM,
    contexts: Sequence[int],
    rows: Sequence[int],
    repeats: int,
    known: Known,
    advance: Advance,
) -> LatencyRecord:
    """The record of a profile, without its rounds."""
    # The model is fitted to points of one row, and all others are compared with them.
    points = measure(lm, contexts, sorted({1, *rows}), repeats, advance)
    single = [p for p in points if p.rows == 1]
    model = fit(single, lm.layers)
    rates = roofline(lm.output_device, lm.dtype, lm.weight_bytes(), known)
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


def part_bytes(lm: LM) -> dict[str, int]:
    """Bytes of the weights that a row reads of one attention and one MLP (means over layers), of
    the head, of one layer's K/V row, of a number.
    """

    def size(modules: Sequence[Any]) -> int:
        return sum(p.numel() * p.element_size() for m in modules for p in m.parameters())

    parts = parts_of(lm.model)
    inactive = sum(mlp.inactive_bytes for _, mlp in parts.layers)
    return {
        "attention": size([m for a, _ in parts.layers for m in a.modules]) // lm.layers,
        "mlp": (size([m for _, mlp in parts.layers for m in mlp.modules]) - inactive) // lm.layers,
        "head": size([parts.head, parts.norm]),
        "row": row_bytes(lm) // lm.layers,
        "number": lm.dtype.itemsize,
    }


def floor_s(
    rates: Roofline, sizes: dict[str, int], layers: int, context: int, rows: int
) -> dict[str, float]:
    """Minimum seconds of one attention, one MLP, and a whole pass: weights and K/V are read once,
    every weight multiplies each row.
    """

    def seconds(weights: float, cached: float) -> float:
        return rates.seconds(weights + cached, 2 * rows * (weights + cached) / sizes["number"])

    cached = (context + rows) * sizes["row"]
    whole = layers * (sizes["attention"] + sizes["mlp"]) + sizes["head"]
    return {
        "attention": seconds(sizes["attention"], cached),
        "mlp": seconds(sizes["mlp"], 0),
        "whole": seconds(whole, layers * cached),
    }
