"""The table of runs: a line per method of a row; speedups by dataset and group of samples."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from skipbench.report import compared, values
from skipbench.report.columns import (
    ALL,
    BY_KEY,
    NOTE,
    OVER,
    Column,
    Line,
    check_columns,
    chosen,
    numbers,
)
from skipbench.report.definitions import caution
from skipbench.report.tables.model import Grid, Head, Table, TableCell, TableRow
from skipbench.report.values import MISSING, Value
from skipbench.runs.run import Run

NAMES = ("dataset", "model", "method")
OF_RUN = ("n", "speedup", "M", "alpha", "tpt", "tokens_per_s", "lossless")
PROVENANCE = ("engine", "dtype", "device", "cpu", "commit", "date", "torch")


def row_table(
    runs: Sequence[Run],
    columns: Sequence[str] = (),
    title: str = "",
    notes: Sequence[str] = (),
    name: str = "",
    over: str = "",
) -> Table:
    """One line per run, by dataset, model and method (or `rank`), the fastest bold by `FASTEST`,
    with these `columns`, keys of `COLUMNS`, in this order, and the ratios to the method `over`;
    `name`: as an HTML id. Raises SkipbenchError for no such key, or no such method.
    """
    check_columns(columns)
    datasets, models, methods = (
        list(dict.fromkeys(getattr(run, name) for run in runs)) for name in NAMES
    )
    title = title or f"{', '.join(models)} on {', '.join(datasets)}"
    everything = sorted(runs, key=lambda run: (run.rank or 0, methods.index(run.method)))
    everything.sort(key=lambda run: (datasets.index(run.dataset), models.index(run.model)))
    ordered = [run for run in everything if not run.group]
    lines, unpaired = lines_of(ordered, over)
    wanted = chosen(columns, over)
    rows = [{column.key: column.value(line) for column in wanted} for line in lines]
    heads = _heads(wanted, columns, rows, over)
    fastest = any(line.fastest for line in lines) and "speedup" in heads
    few = columns and ALL not in columns
    grids = [_grid(heads, lines, rows), *([] if few else _parts(ordered, everything))]
    provenance = "; ".join(f"{name}: {_distinct(runs, name)}" for name in PROVENANCE)
    warnings = caution((run.model for run in runs), (run.dataset for run in runs))
    shown = (column for column in wanted if column.key in heads and column.kind == "number")
    return Table(
        name=name or title,
        title=compared.titled(title, runs),
        source="" if runs else "No runs.",
        grids=tuple(grids) if runs else (),
        lines=tuple(numbers({head.name: row[key] for key, head in heads.items()}) for row in rows),
        records=tuple(map(_record, everything)),
        cautions=(*warnings, *compared.origins(ordered), *compared.mixed(runs)),
        remarks=(
            *notes,
            *compared.same_drafts(ordered),
            *unpaired,
            *([f"{compared.FASTEST}."] if fastest else []),
        ),
        definitions=tuple((column.heading, column.definition) for column in shown),
        provenance=(provenance,) if any(run.origin.date for run in runs) else (),
    )


def run_table(run: Run, columns: Sequence[str] = OF_RUN) -> Table:
    """The table of one finished run, with what its numbers say in words."""
    metrics = run.measured
    speedup, same = metrics.speedup.headline[0], metrics.lossless
    (line,), _ = lines_of([run])
    notes = [BY_KEY[NOTE].value(line).text]
    if (scores := values.scores(metrics)).numbers:
        notes.append(f"scores, vanilla -> method: {scores.text}")
    if speedup is not None:
        of = same.comparable
        tokens = f"; {same.identical} of {of} outputs have the same tokens" if of else ""
        notes.insert(0, f"{run.method}: {speedup:.2f} times as fast as {run.over}{tokens}")
    return row_table([run], columns, notes=[*filter(None, notes)])


def lines_of(runs: Sequence[Run], over: str = "") -> tuple[list[Line], list[str]]:
    """The runs beside each other, and lines on those left out of pairs. Raises SkipbenchError for
    no such method.
    """
    places, unpaired = compared.beside(runs) if len(runs) > 1 else ({}, [])
    ratios, lines = compared.over(runs, over) if over else {}, list[Line]()
    for at, run in enumerate(runs):
        line = Line(run, over=ratios.get(at, (None, None)))
        if place := places.get(at):
            best, fastest = (place.ratio, place.interval), place.tied and place.faster
            line = line._replace(best=best, fastest=fastest)
        lines.append(line)
    return lines, unpaired


Row = Mapping[str, Value]  # by the keys of the columns


def _heads(
    wanted: Sequence[Column], keys: Sequence[str], rows: Sequence[Row], over: str
) -> dict[str, Head]:
    """The heads of the first grid by key: of what is asked for, or has anything to say."""
    texts = {column.key: {row[column.key].text for row in rows} for column in wanted}
    shared = {name for name in NAMES[:2] if len(texts[name]) == 1}
    left_out = {name for name in ("point", NOTE) if texts.get(name, set()) <= {""}}
    left_out |= shared if keys and ALL not in keys else set()
    extra = set() if keys else shared | {c.key for c in wanted if c.shown == "files"}
    return {
        column.key: Head(
            f"over {over}" if column.key == OVER else column.heading,
            kind=column.kind,
            extra=column.key in extra,
        )
        for column in wanted
        if column.key in keys or column.key not in left_out
    }


def _grid(heads: Mapping[str, Head], lines: Sequence[Line], rows: Sequence[Row]) -> Grid:
    cells = (
        (TableCell(row[key].text, key == "speedup" and line.fastest) for key in heads)
        for line, row in zip(lines, rows, strict=True)
    )
    return Grid(tuple(heads.values()), tuple(TableRow(tuple(of)) for of in cells))


def _parts(ordered: Sequence[Run], everything: Sequence[Run]) -> Iterator[Grid]:
    """Speedups by dataset, and by each kind of group."""
    if len({run.dataset for run in ordered}) > 1:
        yield _across("dataset", ordered, NAMES[1:], [run.dataset for run in ordered])
    for kind in dict.fromkeys(kind for run in everything for kind in run.group):
        yield _across(kind, everything, NAMES, [run.group.get(kind) for run in everything])


def _across(
    kind: str, runs: Sequence[Run], names: Sequence[str], labels: Sequence[str | None]
) -> Grid:
    """Speedups: a line per method, a column per dataset or group, which `labels` names."""
    cells: dict[tuple[str, ...], dict[str, TableCell]] = {}
    for run, label in sorted(zip(runs, labels, strict=True), key=lambda pair: bool(pair[0].group)):
        key = tuple(str(getattr(run, name)) for name in names)
        line = cells.setdefault((*key, run.label or run.reason or ""), {})
        if label is not None:
            line[label] = TableCell(MISSING)
            if of := run.metrics:
                shown = f"{values.speedup(of.speedup).text}, n {values.count(of).text}"
                line[label] = TableCell(shown)
    columns = list(dict.fromkeys(label for label in labels if label is not None))
    points = any(point for *_, point in cells)
    heads = [Head(n, kind="label") for n in (*names, *(["point"] if points else []))]
    lines = list[TableRow]()
    for key, row in cells.items():
        named = map(TableCell, key if points else key[:-1])
        lines.append(TableRow((*named, *(row.get(k, TableCell(MISSING)) for k in columns))))
    heads += [Head(n, group=kind) for n in columns]
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
    metrics = {k: v for k, v in metrics.items() if "by_question" not in k}  # one per question
    origin = _flat(msgspec.to_builtins(run.origin), "provenance.")
    return record | {"reason": run.reason} | metrics | origin


def _flat(tree: Any, prefix: str = "") -> dict[str, object]:
    if not isinstance(tree, dict | list | tuple):
        return {prefix[:-1]: tree}
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return {k: v for name, of in items for k, v in _flat(of, f"{prefix}{name}.").items()}
