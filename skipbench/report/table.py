"""Tables of many cells: one row per run, as Markdown and as CSV.

A run is `{"model", "method", "dataset", "metrics": dict | None, "reason": str | None, "provenance":
dict}`.
"""

import csv
import io
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from skipbench.report.cell import (
    MISSING,
    exceptions,
    main_cells,
    markdown_grid,
    missing_reasons,
    value_at,
)
from skipbench.report.compared import BOLD, Interval, same_drafts, winner
from skipbench.report.definitions import caution, definitions_for
from skipbench.report.origins import origin_of, origins, told

Run = Mapping[str, Any]
COLUMNS = (
    "dataset",
    "model",
    "method",
    "point",
    "M",
    "alpha",
    "tau",
    "TPT",
    "E(Spd)",
    "speedup",
    "tok/s",
    "lossless",
    "origin",
    "note",
)
OPTIONAL = ("point", "origin", "note")
"""Columns that are left out where no row has any content."""
NOTED = ("samples", "alpha", "E(Spd)", "speedup", "lossless")
PROVENANCE = ("engine", "device", "commit", "date", "torch")


def table_rows(runs: Sequence[Run]) -> list[dict[str, str]]:
    """One row per run, `COLUMNS` to text: grouped by dataset, then model, then method, each in
    order of appearance; where runs have a `rank`, methods are in its order.

    The best speedup of each dataset and model is bold, by the rule `BOLD`; the note of a run
    without metrics is its reason. In a sweep, `point` holds the overrides in which a run differs
    from the others: its `label`. Where runs come from several commits, devices or versions,
    `origin` tells them apart.
    """
    ordered = _grouped(runs)
    blocks: dict[tuple[str, str], dict[int, tuple[str, Interval | None]]] = {}
    for place, run in enumerate(ordered):
        if value_at(run, "metrics", "speedup", "paired") is not None:
            ends = value_at(run, "metrics", "speedup", "ci95")
            blocks.setdefault(_block(run), {})[place] = (
                str(run.get("method")),
                tuple(ends) if ends else None,
            )
    best = {winner(block) for block in blocks.values()}
    marks = origins(ordered)
    rows = []
    for place, run in enumerate(ordered):
        metrics = run.get("metrics")
        cells = main_cells(metrics or {})
        if place in best:
            cells["speedup"] = f"**{cells['speedup']}**"
        names = {name: str(run.get(name) or MISSING) for name in ("dataset", "model", "method")}
        names["point"] = str(run.get("label") or "")
        mark = marks.get(origin_of(run), "") if metrics else ""
        rows.append({**names, **cells, "origin": mark, "note": _note(run)})
    return rows


def markdown_table(title: str, runs: Sequence[Run], notes: Sequence[str] = ()) -> str:
    """The table with its notes, definitions and provenance; columns without any content are left
    out.
    """
    rows, columns, warning = _content(runs)
    parts = [
        f"## {title}",
        markdown_grid([columns, *([row[c] for c in columns] for row in rows)])
        if rows
        else "No runs.",
        *([f"**{warning}**"] if warning else []),
        "\n".join(f"- {remark}" for remark in _remarks(runs, notes)),
        "\n".join(f"- *{name}*: {text}" for name, text in definitions_for(columns)),
        "; ".join(f"{name}: {', '.join(values)}" for name, values in _provenance(runs).items()),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def html_table(title: str, runs: Sequence[Run]) -> str:
    """`markdown_table` as a `<section>` for a page with a style of its own; speedups name their
    runs.
    """
    rows, columns, warning = _content(runs)
    lines = _remarks(runs)
    lines += [f"{name}: {text}" for name, text in definitions_for(columns)]
    lines += [f"{name}: {', '.join(values)}" for name, values in _provenance(runs).items()]
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    parts = [
        f"<section>\n<h2>{escape(title)}</h2>",
        f'<p class="caution">{escape(warning)}</p>' if warning else "",
        f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>",
        *(_html_row(row, columns, run) for row, run in zip(rows, _grouped(runs), strict=True)),
        "</tbody>\n</table>\n<ul>",
        *(f"<li>{escape(line)}</li>" for line in lines),
        "</ul>\n</section>",
    ]
    return "\n".join(part for part in parts if part) + "\n"


def _content(runs: Sequence[Run]) -> tuple[list[dict[str, str]], list[str], str | None]:
    """Rows, the columns that have any content, and the warning of embedded models or data."""
    rows = table_rows(runs)
    columns = [c for c in COLUMNS if c not in OPTIONAL or any(row[c] for row in rows)]
    return (
        rows,
        columns,
        caution([str(r.get("model")) for r in runs], [str(r.get("dataset")) for r in runs]),
    )


def _remarks(runs: Sequence[Run], notes: Sequence[str] = ()) -> list[str]:
    """What stands below every form of the table: origins, `notes`, which rows drafted the same, and
    the rule of bold.
    """
    marked = [f"origin {mark}: {told(origin)}" for origin, mark in origins(_grouped(runs)).items()]
    rule = [f"{BOLD}."] if any(run.get("metrics") for run in runs) else []
    return [*marked, *notes, *same_drafts(runs), *rule]


def _html_row(row: Mapping[str, str], columns: Sequence[str], run: Run) -> str:
    cells = []
    for column in columns:
        name = (
            f' data-run="{escape(str(run["id"]))}"' if column == "speedup" and run.get("id") else ""
        )
        plain = row[column].removeprefix("**").removesuffix("**")
        text = f"<b>{escape(plain)}</b>" if row[column] != plain else escape(plain)
        cells.append(f"<td{name}>{text}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def csv_table(runs: Sequence[Run]) -> str:
    """Every number of every run, unrounded: nested names joined by dots; a missing value is an
    empty field.
    """
    flat = [
        {
            **{name: run.get(name) for name in ("dataset", "model", "method")},
            **({"point": run["label"]} if run.get("label") else {}),
            "reason": run.get("reason"),
            **_flat(run.get("metrics") or {}),
            **_flat(run.get("provenance") or {}, "provenance."),
        }
        for run in _grouped(runs)
    ]
    out = io.StringIO()
    writer = csv.DictWriter(
        out, list(dict.fromkeys(name for row in flat for name in row)), lineterminator="\n"
    )
    writer.writeheader()
    writer.writerows(flat)
    return out.getvalue()


def _block(run: Run) -> tuple[str, str]:
    return str(run.get("dataset")), str(run.get("model"))


def _grouped(runs: Sequence[Run]) -> list[Run]:
    first = {
        name: list(dict.fromkeys(r.get(name) for r in runs))
        for name in ("dataset", "model", "method")
    }

    def place(run: Run) -> list[int]:
        dataset, model, method = (seen.index(run.get(name)) for name, seen in first.items())
        return [dataset, model, int(run.get("rank", 0)), method]

    return sorted(runs, key=place)


def _note(run: Run) -> str:
    metrics = run.get("metrics")
    if not metrics:
        return str(run.get("reason") or "not run")
    told = [str(run["reason"])] if run.get("reason") else []
    reasons = missing_reasons(metrics)
    return "; ".join(
        [*told, *exceptions(metrics), *(reasons[name] for name in NOTED if name in reasons)]
    )


def _provenance(runs: Sequence[Run]) -> dict[str, list[str]]:
    """Distinct values of each provenance field over the runs."""
    found = {n: [r["provenance"].get(n) for r in runs if r.get("provenance")] for n in PROVENANCE}
    distinct = {n: sorted({str(v) for v in values if v}) for n, values in found.items()}
    return {
        n: [f"{vs[0]} to {vs[-1]} ({len(vs)} values)"] if len(vs) > 3 else vs or [MISSING]
        for n, vs in distinct.items()
    }


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list | tuple):
            flat |= _flat({str(i): v for i, v in enumerate(value)}, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat
