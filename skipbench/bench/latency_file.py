"""The latency model of a machine, model and engine: measured with the points it rests on, kept in
the results folder, and read again.

`profile` measures it at leisure and replaces what is there; a run that needs one and finds none
measures a short one itself.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypedDict

from skipbench.config.model import Model
from skipbench.config.schemas import Engine
from skipbench.errors import SkipbenchError
from skipbench.lm.families import parts_of
from skipbench.lm.model import LM
from skipbench.profile.latency import (
    UNTIMED,
    LatencyModel,
    Point,
    fit,
    overhead,
    part_times,
    residuals,
)
from skipbench.profile.roofline import Known, Roofline, roofline, row_bytes
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
    """The file of this machine, these weights wherever they lie, dtype and engine; `device` is the
    name of the device the model runs on.
    """
    key: dict[str, Any] = {k: getattr(model, k) for k in ("dtype", *FORMS)}
    key["weights"] = weights_sha256(model) or [
        getattr(model, k) for k in ("path", "revision", "deepened", "deepened_seed")
    ]
    key |= {k: v for k, v in dataclasses.asdict(engine).items() if k != "warmup"} | {
        "machine": _machine(device)
    }
    return results / "latency" / f"{run_name([model.name, engine.name], config_hash(key))}.json"


def _machine(device: str) -> str:
    return cpu_name() if device == "cpu" else device


def stored_latency(lm: LM, path: Path) -> LatencyModel:
    """The model in `path` where it is of this version of the package and reaches as far as this
    run's cache, else one that is measured now and kept there.
    """
    needed = lm.cache.capacity - 1
    record = read_record(path)
    if record is not None and other_package(record.get("package_sha256")):
        record = None
    if record is not None and needed <= REACH * max(record["contexts"]):
        return LatencyModel(**record["model"])
    contexts = sorted({max(1, needed * i // CONTEXTS) for i in range(CONTEXTS + 1)})
    points = measure(lm, contexts, [1], REPEATS, lambda: None)
    found = fit(points, lm.layers)
    write_record(
        path, {"contexts": contexts, "model": dataclasses.asdict(found), "points": _plain(points)}
    )
    return found


def passes_to_measure() -> int:
    """Passes of the model whose time `stored_latency` takes where nothing is stored: each call of
    its parts, one after another, is a pass, and so is that of the whole.
    """
    return 2 * (CONTEXTS + 1) * (REPEATS + SWEEPS * UNTIMED)


class _Kept(TypedDict):
    """The file of a latency model, as far as it is read."""

    format: int
    contexts: list[int]
    model: LatencyModel


def read_record(path: Path) -> dict[str, Any] | None:
    """What is kept in `path`; `None` where there is nothing of this format.

    Raises:
        SkipbenchError: the file is a link, or cannot be read.
    """
    try:
        record = read_json(path, _Kept)
    except SkipbenchError:
        if path.is_symlink():
            raise
        return None  # another format, or damaged: it is measured again
    return dict(record) if record is not None and record["format"] == FORMAT else None


def write_record(path: Path, record: dict[str, Any]) -> None:
    """Raises SkipbenchError where the results folder cannot be written to."""
    origin = {"format": FORMAT, "package_sha256": package_sha256()}
    write_json(path, origin | record)


def measure(
    lm: LM, contexts: Sequence[int], rows: Sequence[int], repeats: int, advance: Advance
) -> list[Point]:
    """A point for every context and number of rows: `repeats` calls, spread over sweeps of all
    points.
    """
    lm.allocate(max(contexts) + max(rows))
    pairs = [(context, t) for context in contexts for t in rows]
    times: dict[tuple[int, int], dict[str, list[float]]] = {pair: {} for pair in pairs}
    sweeps = min(SWEEPS, repeats)
    for _ in range(sweeps):
        for context, t in pairs:
            for part, found in part_times(lm, context, t, math.ceil(repeats / sweeps)).items():
                times[context, t].setdefault(part, []).extend(found)
            advance()
    return [Point.of(context, t, times[context, t]) for context, t in pairs]


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
) -> dict[str, Any]:
    """The record of a profile, as plain JSON values; all times are seconds, all sizes bytes.

    Keys: `contexts`, `model` (of `LatencyModel`), `points` (of `Point`), `residuals` of the points
    of one row, `overhead` of one sub-layer of each kind and the head, `roofline` (of `Roofline`),
    `floor` of every point, `bytes`, `engine`, `dtype`, `threads`.
    """
    # one row is what the rest is held against, and what the model is fitted to
    rows = sorted({1, *rows})
    points = measure(lm, contexts, rows, repeats, advance)
    single = [p for p in points if p.rows == 1]
    found = fit(single, lm.layers)
    rates = roofline(lm.output_device, lm.dtype, lm.weight_bytes(), known)
    sizes = part_bytes(lm)
    beside = overhead(lm, repeats)
    return {
        "contexts": list(contexts),
        "model": dataclasses.asdict(found),
        "points": _plain(points),
        "residuals": residuals(found, single),
        "overhead": {
            "attention_s": beside.attention_s,
            "mlp_s": beside.mlp_s,
            "head_s": beside.head_s,
        },
        "roofline": dataclasses.asdict(rates),
        "floor": [floor_s(rates, sizes, lm.layers, p.context, p.rows) for p in points],
        "bytes": sizes,
    }


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
    """The least seconds of one attention, one MLP, and a whole pass: weights and K/V are read once,
    every weight multiplies each row.
    """

    def least(weights: float, cached: float) -> float:
        return rates.seconds(weights + cached, 2 * rows * (weights + cached) / sizes["number"])

    cached = (context + rows) * sizes["row"]
    return {
        "attention": least(sizes["attention"], cached),
        "mlp": least(sizes["mlp"], 0),
        "whole": least(
            layers * (sizes["attention"] + sizes["mlp"]) + sizes["head"], layers * cached
        ),
    }


def _plain(points: Sequence[Point]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(p) for p in points]
