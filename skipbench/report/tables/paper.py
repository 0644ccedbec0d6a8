"""Builds a paper's table with measured values beside the printed ones."""

from collections.abc import Mapping, Sequence
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
    floor = noise_floor(runs) if "speedup" in {c for half in parts for _, c in half.columns} else []
    runs = [run for run in runs if not run.noise]
    left = join(parts, runs)
    columns = list(dict.fromkeys(column for half in parts for _, column in half.columns))
    printed = [number for half in parts for number in half.numbers]
    marks: dict[str, int] = {}
    grids, all_numbers = [], list[Number]()
    for half in parts:
        cells = numbers(half, scale)
        lines = [[cells[identity, *column] for column in half.columns] for identity in half.ids]
        grids.append(_grid(half, lines, document, marks))
        all_numbers += [number for line in lines for number in line]
    rule = [f"{BOLD}; of the paper's rows, the highest value."] if set(columns) & {*BEST} else []
    star = [f"{OUTSIDE}."] if any(n.inside is not None for n in all_numbers) else []
    arxiv = f", arXiv:{document.arxiv}" if document.arxiv else ""
    return Table(
        name=f"{paper}-{table}-{scale}",
        title=f"{document.printed('method', paper)} {_spoken(table)}: "
        f"{document.tables[table].title}",
        source=f"{document.title}{arxiv}; transcribed text: {document.version}. scale={scale}.",
        grids=tuple(grids),
        records=_records({"paper": paper, "table": table, "scale": scale}, all_numbers),
        cautions=tuple(deviations(printed, runs)),
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


def _spoken(table: str) -> str:
    """`table2` as "Table 2"."""
    kind = next((k for k in ("table", "figure", "section", "appendix") if table.startswith(k)), "")
    return f"{kind.capitalize()} {table.removeprefix(kind)}".strip()


def _grid(
    half: Half, lines: Sequence[Sequence[Number]], paper: Paper, marks: dict[str, int]
) -> Grid:
    """The rows of `half`; footnotes that are new are added to `marks`."""
    optional = [k for k in ("model", "method") if k not in half.keys and _differs(half, k)]
    keys = [*half.keys, *optional]
    columns = [
        *(Column(key, kind="label") for key in (*keys, "")),
        *(Column(c, paper.printed(half.across, group)) for group, c in half.columns),
    ]
    rows: list[Row] = []
    for identity, line in zip(half.ids, lines, strict=True):
        labels = [paper.printed(key, value_of(identity, key)) for key in keys]
        rows += _rows(labels, line, marks)
    shown = {k: v for k, v in half.settings.items() if k not in keys}
    settings = "; ".join(f"{k} {paper.printed(k, v)}" for k, v in shown.items())
    return Grid(tuple(columns), tuple(rows), settings)


def _differs(half: Half, key: str) -> bool:
    return key != half.across and len({value_of(i, key) for i in half.ids}) > 1


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
    if printed:
        rows.append(row(Cell(PAPER), paper, first=False))
    if any(n.difference is not None for n in line):
        differences = [Cell(n.difference_text()) for n in line]
        rows.append(row(Cell(DIFFERENCE), differences, first=False))
    return rows


def _records(of: Mapping[str, str], all_numbers: Sequence[Number]) -> tuple[dict[str, Any], ...]:
    """One record per number, unrounded; `reason` says why one is missing."""
    keys = list(dict.fromkeys(key for number in all_numbers for key in number.keys))
    return tuple(
        {
            **of,
            **{key: n.keys.get(key) for key in keys},
            "column": n.printed.column,
            "unit": n.unit,
            "measured": n.measured.value,
            "measured_low": n.measured.interval and n.measured.interval[0],
            "measured_high": n.measured.interval and n.measured.interval[1],
            "published": n.printed.value,
            "published_spread": n.printed.spread,
            "published_inside": n.inside,
            "difference": n.difference,
            "percent": n.percent,
            "digits": n.digits,
            "reason": n.measured.reason,
            "note": n.printed.note,
        }
        for n in all_numbers
    )
