"""Builds the table of any runs: one row per run, and their speedups by group of samples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import msgspec

from skipbench.config.explain import did_you_mean
from skipbench.errors import SkipbenchError
from skipbench.report import columns as text
from skipbench.report import compared
from skipbench.report.columns import MISSING, sample_count
from skipbench.report.definitions import caution, definitions_for
from skipbench.report.tables.model import Cell, Column, Grid, Row, Table
from skipbench.runs.measures import Metrics
from skipbench.runs.run import Run

NAMES = ("dataset", "model", "method")
LABELS = (*NAMES, "point")
NUMBERS = ("n", "skipped", "M", "alpha", "tau", "TPT", "E(Spd)", "speedup", "tok/s", "lossless")
TEXTS = ("origin", "note")
OPTIONAL = ("point", *TEXTS)
"""Columns that are left out where no row has any content."""
NOTED = ("samples", "alpha", "E(Spd)", "speedup", "lossless")
WAITS = {"ttft": "TTFT", "tpot": "TPOT", "joules": "J/token"}
"""Columns that a table has only where it is asked for them, by key."""
PROVENANCE = ("engine", "device", "commit", "date", "torch")


def run_table(
    title: str,
    runs: Sequence[Run],
    notes: Sequence[str] = (),
    name: str = "",
    columns: Sequence[str] = (),
) -> Table:
    """One row per run: grouped by dataset, model, method, each in order of appearance, or methods
    by `rank`. The best speedup of each dataset and model is bold, by the rule `BOLD`. `point` is
    the `label` of a run of a sweep; `origin` marks several commits, devices or versions; `note`
    holds the reason of a run without metrics.

    Args:
        notes: remarks of the caller.
        name: of the table, as an HTML id; the title by default.
        columns: keys of `WAITS`, for more columns.

    Raises:
        SkipbenchError: no such key.
    """
    for key in columns:
        if key not in WAITS:
            raise SkipbenchError(
                f"columns={key}.{did_you_mean(key, list(WAITS))} Wanted any of {', '.join(WAITS)}"
            )
    datasets, models, methods = (
        list(dict.fromkeys(getattr(run, name) for run in runs)).index for name in NAMES
    )
    everything = sorted(
        runs, key=lambda r: (datasets(r.dataset), models(r.model), r.rank or 0, methods(r.method))
    )
    ordered = [run for run in everything if not run.group]
    marks = compared.origins(ordered)
    rows = [_cells(run, marks) for run in ordered]
    for _, block in groupby(enumerate(ordered), lambda row: (row[1].dataset, row[1].model)):
        done = [(at, run) for at, run in block if run.speedup is not None]
        ends = {at: (run.method, run.measured.speedup.headline[1]) for at, run in done}
        if (best := compared.winner(ends)) is not None:
            rows[best]["speedup"] = replace(rows[best]["speedup"], bold=True)
    wanted = [
        *(Column(name, kind="label") for name in LABELS),
        *(Column(name) for name in (*NUMBERS, *(WAITS[key] for key in columns))),
        *(Column(name, kind="text") for name in TEXTS),
    ]
    shown = [c for c in wanted if c.name not in OPTIONAL or any(r[c.name].text for r in rows)]
    warnings = caution((run.model for run in runs), (run.dataset for run in runs))
    kinds = dict.fromkeys(kind for run in everything for kind in run.group)
    lines = tuple(Row(tuple(row[column.name] for column in shown)) for row in rows)
    grids = (Grid(tuple(shown), lines), *(_by_group(kind, everything) for kind in kinds))
    provenance = "; ".join(f"{name}: {_distinct(runs, name)}" for name in PROVENANCE)
    return Table(
        name=name or title,
        title=title,
        source="" if runs else "No runs.",
        grids=grids if runs else (),
        records=tuple(map(_record, everything)),
        cautions=(*warnings, *compared.mixed(runs)),
        remarks=(
            *(f"origin {mark}: {compared.origin_text(of)}" for of, mark in marks.items()),
            *notes,
            *compared.same_drafts(ordered),
            *compared.noise_floor(ordered),
            *([f"{compared.BOLD}."] if any(run.metrics for run in runs) else []),
        ),
        definitions=tuple(definitions_for(column.name for column in shown)),
        provenance=(provenance,) if any(run.origin.date for run in runs) else (),
    )


def _cells(run: Run, marks: Mapping[tuple[str, ...], str]) -> dict[str, Cell]:
    metrics = run.metrics or Metrics()
    texts = {
        **{name: str(getattr(run, name) or MISSING) for name in NAMES},
        "point": run.label or "",
        "n": sample_count(metrics) if run.metrics else MISSING,
        "skipped": text.number(metrics.skipped.ratio if metrics.skipped else None),
        **text.main_cells(metrics),
        **text.waits_cells(metrics),
        "origin": marks.get(compared.origin_of(run), "") if run.metrics else "",
        "note": _note(run),
    }
    return {k: Cell(v, run=run.id if k == "speedup" else None) for k, v in texts.items()}


def _note(run: Run) -> str:
    if not run.metrics:
        return run.reason or "not run"
    reasons = text.missing_reasons(run.metrics)
    parts = [run.reason, *text.search_phases(run.metrics), *text.exceptions(run.metrics)]
    return "; ".join(filter(None, [*parts, *(reasons.get(name) for name in NOTED)]))


def _by_group(kind: str, runs: Sequence[Run]) -> Grid:
    """Speedups: a row per method, a column per group of this kind, as Spec-Bench's subtasks."""
    labels = sorted({run.group[kind] for run in runs if kind in run.group})
    cells: dict[tuple[str, ...], dict[str, Cell]] = {}
    for run in sorted(runs, key=lambda run: bool(run.group)):
        row = cells.setdefault((run.dataset, run.model, run.method), {})
        if kind in run.group:
            metrics = run.metrics or Metrics()
            speedup, n = text.speedup_text(metrics.speedup), sample_count(metrics)
            row[run.group[kind]] = Cell(f"{speedup}, n {n}")
    heads = (*(Column(n, kind="label") for n in NAMES), *(Column(n, group=kind) for n in labels))
    lines = (
        (*map(Cell, n), *(row.get(k, Cell(MISSING)) for k in labels)) for n, row in cells.items()
    )
    return Grid(heads, tuple(map(Row, lines)), f"Speedup by {kind}, of the same runs.")


def _distinct(runs: Sequence[Run], name: str) -> str:
    values = sorted({str(v) for run in runs if (v := getattr(run.origin, name))})
    if len(values) > 3:
        return f"{values[0]} to {values[-1]} ({len(values)} values)"
    return ", ".join(values) or MISSING


def _record(run: Run) -> dict[str, object]:
    """Every number of a run, unrounded: nested names joined by dots."""
    point = {"point": run.label} if run.label else {}
    record = {name: getattr(run, name) for name in NAMES} | point | run.group
    metrics = _flat(msgspec.to_builtins(run.metrics)) if run.metrics else {}
    metrics = {k: v for k, v in metrics.items() if not k.startswith("speedup.by_question.")}
    origin = _flat(msgspec.to_builtins(run.origin), "provenance.")
    return record | {"reason": run.reason} | metrics | origin


def _flat(tree: Any, prefix: str = "") -> dict[str, object]:
    if not isinstance(tree, dict | list | tuple):
        return {prefix[:-1]: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {k: v for name, of in items for k, v in _flat(of, f"{prefix}{name}.").items()}
