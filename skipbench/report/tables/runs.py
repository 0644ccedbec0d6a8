"""Builds the table of any runs: one row per run.

A run is `{"model", "method", "dataset", "metrics": dict | None, "reason": str | None, "provenance":
dict}`, perhaps with `id`, the name of its folder, `label`, its point of a sweep, and `group`, the
samples of another run that it is of, as `{"subtask": "qa"}`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from skipbench.config.explain import did_you_mean
from skipbench.errors import SkipbenchError
from skipbench.report.columns import (
    MISSING,
    exceptions,
    main_cells,
    missing_reasons,
    number,
    sample_count,
    search_phases,
    waits_cells,
)
from skipbench.report.compared import BOLD, Interval, noise_floor, same_drafts, winners
from skipbench.report.definitions import caution, definitions_for
from skipbench.report.origins import mixed, origin_of, origins, told
from skipbench.report.tables.by_group import group_grids
from skipbench.report.tables.markdown import markdown
from skipbench.report.tables.model import Cell, Column, Grid, Row, Table
from skipbench.runs.reading import value_at

Run = Mapping[str, Any]
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
    """One row per run: grouped by dataset, then model, then method, each in order of appearance;
    where runs have a `rank`, methods are in its order.

    The best speedup of each dataset and model is bold, by the rule `BOLD`; the note of a run
    without metrics is its reason. In a sweep, `point` holds the overrides in which a run differs
    from the others: its `label`. Where runs come from several commits, devices or versions,
    `origin` tells them apart.

    Args:
        title: heading.
        runs: in any order.
        notes: remarks of the caller.
        name: of the table, as an HTML id; the title by default.
        columns: more of them, by the keys of `WAITS`.

    Raises:
        SkipbenchError: no such key.
    """
    more = [_waits_column(key) for key in columns]
    everything = _grouped(runs)
    ordered = [run for run in everything if not run.get("group")]
    marks = origins(ordered)
    rows = [_cells(run, marks) for run in ordered]
    for place in _best(ordered):
        rows[place]["speedup"] = replace(rows[place]["speedup"], bold=True)
    shown = [
        c for c in _columns(more) if c.name not in OPTIONAL or any(r[c.name].text for r in rows)
    ]
    warning = caution([str(r.get("model")) for r in runs], [str(r.get("dataset")) for r in runs])
    lines = tuple(Row(tuple(row[column.name] for column in shown)) for row in rows)
    provenance = "; ".join(f"{n}: {', '.join(values)}" for n, values in _provenance(runs).items())
    return Table(
        name=name or title,
        title=title,
        source="" if runs else "No runs.",
        grids=(Grid(tuple(shown), lines), *group_grids(everything)) if runs else (),
        records=tuple(map(_record, everything)),
        cautions=(*([warning] if warning else []), *mixed(runs)),
        remarks=(
            *(f"origin {mark}: {told(origin)}" for origin, mark in marks.items()),
            *notes,
            *same_drafts(ordered),
            *noise_floor(ordered),
            *([f"{BOLD}."] if any(run.get("metrics") for run in runs) else []),
        ),
        definitions=tuple(definitions_for(column.name for column in shown)),
        provenance=(provenance,)
        if any(value_at(run, "provenance", "date") for run in runs)
        else (),
    )


def markdown_table(title: str, runs: Sequence[Run], notes: Sequence[str] = ()) -> str:
    """`run_table` as Markdown; arguments as there."""
    return markdown(run_table(title, runs, notes))


def _waits_column(key: str) -> str:
    if key not in WAITS:
        raise SkipbenchError(
            f"columns={key}.{did_you_mean(key, list(WAITS))} Wanted any of {', '.join(WAITS)}"
        )
    return WAITS[key]


def _columns(more: Sequence[str]) -> list[Column]:
    return [
        *(Column(name, kind="label") for name in LABELS),
        *(Column(name) for name in (*NUMBERS, *more)),
        *(Column(name, kind="text") for name in TEXTS),
    ]


def _cells(run: Run, marks: Mapping[tuple[str, ...], str]) -> dict[str, Cell]:
    """The row of a run, by column."""
    metrics = run.get("metrics")
    texts = {
        **{name: str(run.get(name) or MISSING) for name in NAMES},
        "point": str(run.get("label") or ""),
        "n": sample_count(metrics or {}),
        "skipped": number(value_at(metrics or {}, "skipped", "ratio")),
        **main_cells(metrics or {}),
        **waits_cells(metrics or {}),
        "origin": marks.get(origin_of(run), "") if metrics else "",
        "note": _note(run),
    }
    cells = {name: Cell(text) for name, text in texts.items()}
    return cells | {"speedup": Cell(texts["speedup"], run=run.get("id"))}


def _best(ordered: Sequence[Run]) -> set[int]:
    """Places of the rows whose speedup is bold: the winners per dataset and model."""
    rows = {}
    for place, run in enumerate(ordered):
        if value_at(run, "metrics", "speedup", "paired") is not None:
            ends: Interval | None = value_at(run, "metrics", "speedup", "ci95")
            rows[place] = ((run.get("dataset"), run.get("model")), str(run.get("method")), ends)
    return winners(rows)


def _grouped(runs: Sequence[Run]) -> list[Run]:
    first = {name: list(dict.fromkeys(r.get(name) for r in runs)) for name in NAMES}

    def place(run: Run) -> list[int]:
        dataset, model, method = (first[name].index(run.get(name)) for name in NAMES)
        return [dataset, model, int(run.get("rank", 0)), method]

    return sorted(runs, key=place)


def _note(run: Run) -> str:
    metrics = run.get("metrics")
    if not metrics:
        return str(run.get("reason") or "not run")
    own = [str(run["reason"])] if run.get("reason") else []
    reasons = missing_reasons(metrics)
    return "; ".join(
        [
            *own,
            *search_phases(metrics),
            *exceptions(metrics),
            *(reasons[n] for n in NOTED if n in reasons),
        ]
    )


def _provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Distinct values of each provenance field over the runs."""
    recorded = [run["provenance"] for run in runs if run.get("provenance")]
    distinct = {n: sorted({str(p[n]) for p in recorded if p.get(n)}) for n in PROVENANCE}
    return {
        n: [f"{vs[0]} to {vs[-1]} ({len(vs)} values)"] if len(vs) > 3 else vs or [MISSING]
        for n, vs in distinct.items()
    }


def _record(run: Run) -> dict[str, Any]:
    """Every number of a run, unrounded: nested names joined by dots."""
    return {
        **{name: run.get(name) for name in NAMES},
        **({"point": run["label"]} if run.get("label") else {}),
        **(run.get("group") or {}),
        "reason": run.get("reason"),
        **_flat(run.get("metrics") or {}),
        **_flat(run.get("provenance") or {}, "provenance."),
    }


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
