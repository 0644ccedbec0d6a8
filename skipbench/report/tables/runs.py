"""The table of runs: a line per method of a row; speedups by dataset and group of samples."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from skipbench.config.explain import did_you_mean
from skipbench.errors import SkipbenchError
from skipbench.metrics.pairs import Standing
from skipbench.report import columns as text
from skipbench.report import compared
from skipbench.report.columns import MISSING, sample_count
from skipbench.report.definitions import caution, definitions_for
from skipbench.report.tables.model import Column, Grid, Table, TableCell, TableRow
from skipbench.runs.measures import Metrics
from skipbench.runs.run import Run

NAMES = ("dataset", "model", "method")
LABELS = (*NAMES, "point")
NUMBERS = {"n": "n", "speedup": "speedup", "best": "over best", "worst": "worst tenth", "M": "M"}
NUMBERS |= {"passes": "passes / round", "rows": "rows / round", "skipped": "skipped"}
NUMBERS |= {"adapt": "adapt", "tokens_per_s": "tok/s", "lossless": "lossless"}
"""Columns of every table, by key."""
EXTRA = {"worst tenth", "passes / round", "rows / round", "adapt"}  # not on a terminal
OVER = "over METHOD"
OF_RUN = ("n", "speedup", "M", "alpha", "tpt", "tokens_per_s", "lossless")
OPTIONAL = ("point", "note")  # columns that are left out where no row has any content
MORE = {"decode": "decode only", "alpha": "alpha", "accepted": "accepted share", "tau": "tau"}
MORE |= {"tpt": "TPT", "expected": "E(Spd)", "ttft": "TTFT", "itl": "ITL"}
MORE |= {"copy": "low-bit copy", "setup": "set-up"}
"""Columns that a table has only where it is asked for them, by key."""
ALL = "all"
BY_QUESTION = ("speedup.by_question.", "speedup.by_process.")  # as many values as questions
PROVENANCE = ("engine", "dtype", "device", "commit", "date", "torch")


def row_table(
    runs: Sequence[Run],
    columns: Sequence[str] = (),
    title: str = "",
    notes: Sequence[str] = (),
    name: str = "",
    over: str = "",
) -> Table:
    """One line per run, by dataset, model and method (or `rank`), the fastest bold by `FASTEST`.

    Args:
        columns: keys of `NUMBERS` and `MORE`, in this order; or `ALL`.
        title: by default the models and datasets.
        notes: remarks of the caller.
        name: of the table, as an HTML id; the title by default.
        over: a method of the rows, for the column of paired ratios to it.

    Raises SkipbenchError for no such key, or no such method.
    """
    check_keys(columns, [*NUMBERS, *MORE])
    datasets, models, methods = (
        list(dict.fromkeys(getattr(run, name) for run in runs)) for name in NAMES
    )
    title = title or f"{', '.join(models)} on {', '.join(datasets)}"
    everything = sorted(runs, key=lambda run: (run.rank or 0, methods.index(run.method)))
    everything.sort(key=lambda run: (datasets.index(run.dataset), models.index(run.model)))
    ordered = [run for run in everything if not run.group]
    places, unpaired = compared.beside(ordered) if len(ordered) > 1 else ({}, [])
    ratios = compared.over(ordered, over) if over else {}
    rows = [
        _cells(run, places.get(at)) | {OVER: TableCell(ratios.get(at, MISSING))}
        for at, run in enumerate(ordered)
    ]
    shown = _columns(columns, rows, over)
    lines = tuple(TableRow(tuple(row[column.name] for column in shown)) for row in rows)
    named = (replace(c, name=f"over {over}") if c.name == OVER else c for c in shown)
    few = columns and ALL not in columns
    grids = [Grid(tuple(named), lines), *([] if few else _parts(ordered, everything))]
    provenance = "; ".join(f"{name}: {_distinct(runs, name)}" for name in PROVENANCE)
    warnings = caution((run.model for run in runs), (run.dataset for run in runs))
    return Table(
        name=name or title,
        title=compared.titled(title, runs),
        source="" if runs else "No runs.",
        grids=tuple(grids) if runs else (),
        records=tuple(map(_record, everything)),
        cautions=(*warnings, *compared.origins(ordered), *compared.mixed(runs)),
        remarks=(
            *notes,
            *compared.same_drafts(ordered),
            *unpaired,
            *([f"{compared.FASTEST}."] if any(row["speedup"].bold for row in rows) else []),
        ),
        definitions=tuple(definitions_for(column.name for column in shown)),
        provenance=(provenance,) if any(run.origin.date for run in runs) else (),
    )


def run_table(run: Run, columns: Sequence[str] = OF_RUN) -> Table:
    """The table of one finished run, with what its numbers say in words."""
    metrics = run.measured
    (speedup, _), same, words = metrics.speedup.headline, metrics.lossless, _note(run)
    notes = [words, *text.scores(metrics)]
    if speedup is not None:
        of = same.comparable
        tokens = f"; {same.identical} of {of} outputs have the same tokens" if of else ""
        notes.insert(0, f"{run.method}: {speedup:.2f} times as fast as {run.over}{tokens}")
    return row_table([run], columns, notes=[*filter(None, notes)])


def _columns(
    keys: Sequence[str], rows: Sequence[Mapping[str, TableCell]], over: str
) -> list[Column]:
    """The columns of the first grid: those of `keys`, or all that are not left out."""
    chosen = [] if ALL in keys else [(NUMBERS | MORE)[key] for key in keys]
    numbers = [*(chosen or NUMBERS.values()), *(MORE.values() if ALL in keys else ())]
    if over:  # beside "over best", or at the end
        at = numbers.index(NUMBERS["best"]) + 1 if NUMBERS["best"] in numbers else len(numbers)
        numbers.insert(at, OVER)
    shared = {name for name in NAMES[:2] if len({row[name].text for row in rows}) == 1}
    extra = set() if keys else shared | EXTRA
    wanted = [
        *(Column(name, kind="label", extra=name in extra) for name in LABELS),
        *(Column(name, extra=name in extra) for name in numbers),
        *([] if chosen else [Column("note", kind="text")]),
    ]
    left_out = shared if chosen else set()
    left_out |= {name for name in OPTIONAL if not any(row[name].text for row in rows)}
    return [column for column in wanted if column.name not in left_out]


def _parts(ordered: Sequence[Run], everything: Sequence[Run]) -> Iterator[Grid]:
    """Speedups by dataset, and by each kind of group."""
    if len({run.dataset for run in ordered}) > 1:
        yield _across("dataset", ordered, NAMES[1:], [run.dataset for run in ordered])
    for kind in dict.fromkeys(kind for run in everything for kind in run.group):
        yield _across(kind, everything, NAMES, [run.group.get(kind) for run in everything])


def check_keys(columns: Sequence[str], known: Sequence[str]) -> None:
    """Raises SkipbenchError for a column that is neither known nor `ALL`."""
    for key in columns:
        if key not in (*known, ALL):
            raise SkipbenchError(
                f"columns={key}.{did_you_mean(key, [*known])} "
                f"Wanted any of {', '.join([*known, ALL])}"
            )


def _cells(run: Run, standing: Standing | None) -> dict[str, TableCell]:
    metrics = run.metrics or Metrics()
    texts = {
        **{name: str(getattr(run, name) or MISSING) for name in NAMES},
        "point": run.label or "",
        **text.main_cells(metrics),
        **text.more_cells(metrics, standing),
        "note": _note(run),
    }
    if not run.metrics:
        texts["n"] = MISSING
    cells = {name: TableCell(shown) for name, shown in texts.items()}
    best = standing is not None and standing.tied and standing.faster
    return cells | {"speedup": replace(cells["speedup"], bold=best)}


def _note(run: Run) -> str:
    if not run.metrics:
        return run.reason or "not run"
    parts = [compared.replaced([run]), run.reason, *text.exceptions(run.metrics)]
    return "; ".join(filter(None, parts))


def _across(
    kind: str, runs: Sequence[Run], names: Sequence[str], labels: Sequence[str | None]
) -> Grid:
    """Speedups: a line per method, a column per dataset or group, which `labels` names."""
    cells: dict[tuple[str, ...], dict[str, TableCell]] = {}
    for run, label in sorted(zip(runs, labels, strict=True), key=lambda pair: bool(pair[0].group)):
        key = tuple(str(getattr(run, name)) for name in names)
        line = cells.setdefault((*key, run.label or run.reason or ""), {})
        if label is not None:
            metrics = run.metrics or Metrics()
            shown = text.speedup_text(metrics.speedup)
            line[label] = TableCell(
                f"{shown}, n {sample_count(metrics)}" if run.metrics else MISSING
            )
    columns = list(dict.fromkeys(label for label in labels if label is not None))
    points = any(point for *_, point in cells)
    heads = [Column(n, kind="label") for n in (*names, *(["point"] if points else []))]
    lines = list[TableRow]()
    for key, row in cells.items():
        named = map(TableCell, key if points else key[:-1])
        lines.append(TableRow((*named, *(row.get(k, TableCell(MISSING)) for k in columns))))
    heads += [Column(n, group=kind) for n in columns]
    return Grid(tuple(heads), tuple(lines), f"Speedup by {kind}, of the same runs.")


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
    metrics = {k: v for k, v in metrics.items() if not k.startswith(BY_QUESTION)}
    origin = _flat(msgspec.to_builtins(run.origin), "provenance.")
    return record | {"reason": run.reason} | metrics | origin


def _flat(tree: Any, prefix: str = "") -> dict[str, object]:
    if not isinstance(tree, dict | list | tuple):
        return {prefix[:-1]: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {k: v for name, of in items for k, v in _flat(of, f"{prefix}{name}.").items()}
