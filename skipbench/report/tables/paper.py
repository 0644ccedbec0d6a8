"""Builds a paper's table with measured values beside the printed ones."""

import re
from collections.abc import Sequence
from typing import Any

from skipbench.report.compared import BOLD, noise_floor, same_drafts
from skipbench.report.published import Paper, read_paper
from skipbench.report.tables.model import Cell, Column, Grid, Row, Table
from skipbench.report.tables.paper_notes import (
    definitions,
    deviations,
    lossless,
    paper_notes,
    provenance,
    run_notes,
    sample_counts,
    skipped_shares,
)
from skipbench.report.tables.paper_numbers import BEST, OUTSIDE, Number, numbers
from skipbench.report.tables.paper_rows import Half, halves, join, value_of
from skipbench.runs.run import Run

OURS, PAPER, DIFFERENCE = "measured", "paper", "difference"


def paper_table(paper: str, table: str, runs: Sequence[Run], scale: str) -> Table:
    """The table of `paper` with what `runs` measured of it at `scale`, paper, embedded or laptop.

    Raises:
        SkipbenchError: no such paper, or no numbers of that table.
    """
    document = read_paper(paper)
    parts = halves(document, table)
    columns = list(dict.fromkeys(column for half in parts for _, column in half.printed_columns))
    floor = noise_floor(runs) if "speedup" in columns else []
    runs = [run for run in runs if not run.noise]
    left = join(parts, runs)
    marks: dict[str, int] = {}
    grids, shown = [], list[Number]()
    for half in parts:
        cells = numbers(half, scale)
        lines = [[cells[row, *column] for column in half.columns] for row in half.ids]
        grids.append(_grid(half, lines, document, marks))
        shown += [number for line in lines for number in line]
    keys = dict.fromkeys(key for number in shown for key in number.keys)
    of = {"paper": paper, "table": table, "scale": scale}
    rule = [f"{BOLD}; of the paper's rows, the highest value."] if {*columns} & {*BEST} else []
    star = [f"{OUTSIDE}."] if any(n.inside is not None for n in shown) else []
    arxiv = f", arXiv:{document.arxiv}" if document.arxiv else ""
    spoken = re.sub(
        r"^(table|figure|section|appendix) ?", lambda kind: f"{kind[1].capitalize()} ", table
    )
    return Table(
        name=f"{paper}-{table}-{scale}",
        title=f"{document.printed('method', paper)} {spoken}: {document.tables[table].title}",
        source=f"{document.title}{arxiv}; transcribed text: {document.version}. scale={scale}.",
        grids=tuple(grids),
        records=tuple({**of, **{k: n.keys.get(k) for k in keys}, **_record(n)} for n in shown),
        cautions=tuple(deviations([n for half in parts for n in half.numbers], runs)),
        footnotes=tuple(marks),
        remarks=(
            *paper_notes(document, table),
            *rule,
            *star,
            *skipped_shares(runs),
            *same_drafts(runs),
            *floor,
            *run_notes(runs, left, parts),
        ),
        definitions=tuple(definitions(columns)),
        provenance=(f"lossless: {lossless(runs)}{sample_counts(runs)}", *provenance(runs)),
    )


def _grid(
    half: Half, lines: Sequence[Sequence[Number]], paper: Paper, marks: dict[str, int]
) -> Grid:
    """The rows of `half`; footnotes that are new are added to `marks`."""
    keys = list(half.keys)
    for key in ("model", "method"):
        differs = len({value_of(row, key) for row in half.ids}) > 1
        keys += [key] if differs and key not in (*half.keys, half.across) else []
    columns = [
        *(Column(key, kind="label") for key in (*keys, "")),
        *(Column(name, paper.printed(half.across, group)) for group, name in half.columns),
    ]
    rows: list[Row] = []
    for row, line in zip(half.ids, lines, strict=True):
        rows += _rows([paper.printed(key, value_of(row, key)) for key in keys], line, marks)
    shown = {k: v for k, v in half.settings.items() if k not in keys}
    settings = "; ".join(f"{k} {paper.printed(k, v)}" for k, v in shown.items())
    return Grid(tuple(columns), tuple(rows), settings)


def _rows(labels: Sequence[str], line: Sequence[Number], marks: dict[str, int]) -> list[Row]:
    """Up to three lines: measured, the paper's, their difference.

    A row of which nothing was measured for one reason has the paper's line only.
    """

    def mark(text: str | None) -> int | None:
        return marks.setdefault(text, len(marks) + 1) if text else None

    def row(kind: Cell, cells: Sequence[Cell], first: bool) -> Row:
        named = [Cell(label if first else "") for label in labels]
        return Row((*named, kind, *cells), kind.text, first)

    reasons = {n.measured.reason for n in line}
    printed = any(n.printed.value is not None or n.printed.note for n in line)
    paper = [Cell(n.published_text(), n.best_published, mark(n.printed.note)) for n in line]
    if printed and len(reasons) == 1 and None not in reasons:
        return [row(Cell(PAPER, mark=mark(reasons.pop())), paper, first=True)]
    ours = [Cell(n.measured_text(), n.best_measured, mark(n.measured.reason), n.run) for n in line]
    rows = [row(Cell(OURS), ours, first=True)]
    rows += [row(Cell(PAPER), paper, first=False)] if printed else []
    if any(n.difference is not None for n in line):
        rows.append(row(Cell(DIFFERENCE), [Cell(n.difference_text()) for n in line], first=False))
    return rows


def _record(n: Number) -> dict[str, Any]:
    """A number, unrounded; `reason` says why one is missing."""
    low, high = n.measured.interval or (None, None)
    return {
        "column": n.printed.column,
        "unit": n.unit,
        "measured": n.measured.value,
        "measured_low": low,
        "measured_high": high,
        "published": n.printed.value,
        "published_spread": n.printed.spread,
        "published_inside": n.inside,
        "difference": n.difference,
        "percent": n.percent,
        "digits": n.digits,
        "reason": n.measured.reason,
        "note": n.printed.note,
    }
