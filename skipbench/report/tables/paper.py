"""A paper's table: every printed number with the measured one beside it."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from msgspec import structs

from skipbench.report.compared import BASELINE, FASTEST, beside, noise_floor, same_drafts, titled
from skipbench.report.definitions import UNITS
from skipbench.report.measured import Measured, measure, spread_key
from skipbench.report.published import Paper, Printed, read_paper
from skipbench.report.tables import paper_notes
from skipbench.report.tables.model import Grid, Head, Table, TableCell, TableRow
from skipbench.report.tables.paper_rows import (
    LENGTHS,
    Group,
    Half,
    Id,
    halves,
    own_dtype,
    with_columns,
)
from skipbench.report.tables.runs import row_table
from skipbench.report.values import MISSING
from skipbench.runs.run import Run

OVERALL, NOT_MEASURED = "overall", "not measured"
BEST = ("speedup", "tokens_per_s", "TPT", "expected_speedup")  # whose best papers print in bold
FASTEST_HERE = f"{FASTEST}; of the paper's rows, the highest value."
SHOWN = (
    *("column", "unit", "measured", "measured_low", "measured_high", "published", "difference"),
    *("reason", "note"),
)  # of a number in the CSV of a table; `NAME.all.csv` has its whole record
OUTSIDE = (
    "*: the paper's value lies outside the measured 95 % interval; without a star, where an "
    "interval stands, inside it."
)
_BLOCK = ("model", "dataset", "subtask", "temperature", "top_p")  # of rows that are compared


@dataclass
class Number:
    """A measured number beside the paper's."""

    keys: dict[str, Any]  # model, method and others, in the names of `published()`; dtype: measured
    measured: Measured
    printed: Printed  # without a value where the paper prints none
    digits: int  # decimals that the paper prints
    run: str | None  # folder of the run of the value, or of the one that should have given it
    spread: float | None = None  # of the measured value over the samples, if the paper prints one
    bold: tuple[bool, bool] = (False, False)  # the measured and the printed value

    @property
    def difference(self) -> float | None:
        """The measured value minus the published one; None without either."""
        ours, theirs = self.measured.value, self.printed.value
        return None if ours is None or theirs is None else ours - theirs

    @property
    def inside(self) -> bool | None:
        """True if the published value lies in the measured interval; None without either."""
        ends, value = self.measured.interval, self.printed.value
        return None if ends is None or value is None else ends[0] <= value <= ends[1]

    @property
    def percent(self) -> float | None:
        """The difference in percent of the published value, for speedups."""
        if UNITS[self.printed.column] == "x" and self.difference and self.printed.value:
            return 100 * self.difference / self.printed.value
        return None

    @property
    def texts(self) -> tuple[str, str, str]:
        """Measured, published and difference: `1.37x [1.30, 1.44]`, `1.34x`, `+0.03 (+2 %) *`."""
        ours, ends, unit = self.measured.value, self.measured.interval, UNITS[self.printed.column]
        digits = max(self.digits, 2)
        if ours and unit == "s":  # a pass may take milliseconds
            digits = max(digits, 1 - math.floor(math.log10(ours)))

        def text(value: float | None, digits: int, interval: str, spread: float | None) -> str:
            if value is None:
                return MISSING
            around = "" if spread is None else f" \u00b1 {spread:.{digits}f}"
            return f"{value:.{digits}f}{'x' if unit == 'x' else ''}{interval}{around}"

        interval = f" [{ends[0]:.{digits}f}, {ends[1]:.{digits}f}]" if ends else ""
        measured = text(ours, digits, interval, self.spread)
        published = text(self.printed.value, self.digits, "", self.printed.spread)
        if self.difference is None:
            return measured, published, MISSING
        percent = "" if self.percent is None else f" ({self.percent:+.0f} %)"
        star = " *" if self.inside is False else ""
        return measured, published, f"{self.difference:+.{digits}f}{percent}{star}"

    @property
    def record(self) -> dict[str, Any]:
        """The number, unrounded; `reason` says why it is missing."""
        measured, printed = self.measured, self.printed
        low, high = measured.interval or (None, None)
        record: dict[str, Any] = {"column": printed.column, "unit": UNITS[printed.column]}
        record |= {"measured": measured.value, "measured_low": low, "measured_high": high}
        record |= {"measured_spread": self.spread, "published": printed.value}
        record |= {"published_spread": printed.spread, "published_inside": self.inside}
        record |= {"difference": self.difference, "percent": self.percent, "digits": self.digits}
        record |= {"reason": measured.reason, "note": printed.note}
        if "dtype" in printed.keys:
            record["published_dtype"] = None if printed.value is None else printed.keys["dtype"]
        return record


def _dtypes(numbers: Sequence[Number]) -> str:
    """Those in which numbers were measured, and the paper's where others."""
    ours = {str(n.keys.get("dtype")) for n in numbers if n.measured.value is not None}
    theirs = {str(n.printed.keys.get("dtype")) for n in numbers if n.printed.value is not None}
    text, paper = (", ".join(sorted(each)) for each in (ours, theirs))
    differ = text and paper and text != paper
    return f"{text} (the paper's: {paper})" if differ else text or paper


def paper_table(paper: str, table: str, runs: Sequence[Run], chosen: Sequence[str] = ()) -> Table:
    """The table of `paper` with what `runs` measured of it; `chosen` columns in order, or all.
    Raises SkipbenchError for an unknown paper, column, or a table without numbers.
    """
    document = read_paper(paper)
    parts = with_columns(halves(document, table), chosen)
    columns = list(dict.fromkeys(column for half in parts for _, column in half.printed_columns))
    floor = noise_floor(runs) if "speedup" in columns else []
    runs = [run for run in runs if not run.noise]
    left = [run for run in runs if not any([half.add(run) for half in parts])]
    marks: dict[str, int] = {}
    grids, shown = [], list[Number]()
    for half in parts:
        half.add_vanilla()
        lines = _numbers(half)
        grids.append(_grid(half, lines, document, marks))
        shown += [number for line in lines for number in line]
    if others := [run for run in left if run.metrics]:
        # as an experiment names a variant of a method: `self-sd, fused engine`
        points = [str(run.keys.get("method", run.method)) for run in others]
        pairs = zip(others, points, strict=True)
        named = [structs.replace(r, label=r.label if p == r.method else p) for r, p in pairs]
        (own, *_) = row_table(named).grids
        grids.append(replace(own, settings="Runs of no row of the paper's table."))
    keys = dict.fromkeys(key for number in shown for key in number.keys)
    of: dict[str, Any] = {"paper": paper, "table": table, "scale": "paper"}
    records = [of | {k: n.keys.get(k) for k in keys} | n.record for n in shown]
    arxiv = f", arXiv:{document.arxiv}" if document.arxiv else ""
    text = f"{document.title}{arxiv}; transcribed text: {document.version}"
    printed = document.printed("method", paper)
    spoken = re.sub(r"^(table|figure|section|appendix) ?", lambda m: f"{m[1].capitalize()} ", table)
    return Table(
        name=f"{paper}-{table}",
        title=titled(f"{printed} {spoken}: {document.tables[table].title}", runs),
        source=" ".join([f"{text}.", *_verdict(shown)]),
        grids=tuple(grids),
        lines=tuple({k: record.get(k) for k in (*keys, *SHOWN)} for record in records),
        records=tuple(records),
        cautions=tuple(paper_notes.deviations(document, parts, runs)),
        footnotes=tuple(marks),
        remarks=(
            *(note.text for note in document.tables[table].notes if not note.where),
            *(note.text for note in document.notes if table in (note.tables or [table])),
            *([FASTEST_HERE] if any(True in n.bold for n in shown) else []),
            *([OUTSIDE] if any(n.inside is not None for n in shown) else []),
            *same_drafts(runs),
            *floor,
            *paper_notes.run_notes(runs, [run for run in left if not run.metrics]),
        ),
        definitions=tuple(paper_notes.definitions(paper, columns)),
        provenance=tuple(paper_notes.provenance(runs)),
    )


def _verdict(shown: Sequence[Number]) -> list[str]:
    """How many of the published speedups lie in the measured intervals; nothing without any."""
    theirs = [n for n in shown if n.printed.column == "speedup" and n.printed.value is not None]
    speedups = [n for n in theirs if n.keys.get("method") != BASELINE]
    outside = [n.difference or 0 for n in speedups if n.inside is False]
    inside, lower = sum(n.inside is True for n in speedups), sum(by < 0 for by in outside)
    if not (judged := inside + len(outside)):
        unmeasured = f"None of the {len(speedups)} published speedups is measured here."
        return [unmeasured] if speedups else []
    counts = {"measured lower": lower, "measured higher": len(outside) - lower}
    counts["not measured"] = len(speedups) - judged
    text = f"{inside} of {judged} published speedups inside the measured interval"
    return ["; ".join([text, *(f"{n} {how}" for how, n in counts.items() if n)]) + "."]


def _numbers(half: Half) -> list[list[Number]]:
    """The numbers of each row; bold are the fastest by `FASTEST`, and a block's highest printed."""
    decimals = defaultdict[str, Counter[int]](Counter)
    for printed in half.numbers:
        decimals[printed.column].update([] if printed.digits is None else [printed.digits])
    lines, blocks = [], dict[tuple[Any, ...], list[tuple[Number, Run]]]()
    for row in half.ids:
        lines.append(line := list[Number]())
        for group, column in half.printed_columns:
            keys = half.settings | dict(row) | ({half.across: group} if half.across else {})
            printed = half.printed.get((row, group, column)) or Printed(keys=keys, column=column)
            # without its own decimals, as the paper prints most numbers of the column
            usual = decimals[column].most_common(1) or [(2, 0)]
            digits = usual[0][0] if printed.digits is None else printed.digits
            run = half.runs.get((row, group))
            measured = _measured(half, row, group, column)
            of_row = (r for (at, _), r in half.runs.items() if at == row and r.metrics)
            own = own_dtype(keys, None if measured.value is None else run or next(of_row, None))
            spread = run.spreads.get("method", {}).get(spread_key(column, keys)) if run else None
            line.append(Number(own, measured, printed, digits, run.id if run else None, spread))
            if column in BEST:
                block = (*(dict(row).get(key) for key in _BLOCK), group, column)
                blocks.setdefault(block, []).append((line[-1], run or Run()))
    for numbers in blocks.values():
        places, _ = beside([run for _, run in numbers])
        values = [n.printed.value for n, _ in numbers if n.printed.value is not None]
        for at, (n, _) in enumerate(numbers):
            fastest = n.printed.column == "speedup" and at in places
            best = fastest and places[at].tied and places[at].faster
            n.bold = best, len(values) > 1 and n.printed.value == max(values)
    return lines


def _measured(half: Half, row: Id, group: Group, column: str) -> Measured:
    """The value of a cell; of the column `overall` the mean over the tasks, where all have one."""
    run, keys = half.runs.get((row, group)), half.settings | dict(row)
    if run is None and group == OVERALL:
        groups = dict.fromkeys(group for group, _ in half.printed_columns if group != OVERALL)
        tasks = [_measured(half, row, task, column).value for task in groups]
        known = [value for value in tasks if value is not None]
        return Measured(fmean(known)) if len(known) == len(tasks) else Measured(reason=NOT_MEASURED)
    found = Measured()
    if of := run.metrics if run else None:
        found = measure(of, column, keys.get("phase"), keys.get("part"), half.paper)
    if found.value is not None:
        return found
    return Measured(reason=run.reason if run and run.reason else NOT_MEASURED)


def _grid(half: Half, lines: list[list[Number]], paper: Paper, marks: dict[str, int]) -> Grid:
    """Per row the measured line, the paper's and the difference; adds footnotes to `marks`."""
    keys = list(half.keys)
    for key in ("model", "method"):
        differs = len({dict(row).get(key) for row in half.ids}) > 1
        keys += [key] if differs and key not in (*half.keys, half.across) else []

    def mark(text: str | None) -> int | None:
        return marks.setdefault(text, len(marks) + 1) if text else None

    rows = list[TableRow]()
    for id, line in zip(half.ids, lines, strict=True):
        reasons = {n.measured.reason for n in line}
        printed = any(n.printed.value is not None or n.printed.note for n in line)
        theirs = [TableCell(n.texts[1], n.bold[1], mark(n.printed.note)) for n in line]
        if printed and len(reasons) == 1 and None not in reasons:  # one footnote says it
            shown = [(TableCell("paper", mark=mark(reasons.pop())), theirs)]
        else:
            ours = [TableCell(n.texts[0], n.bold[0], mark(n.measured.reason)) for n in line]
            shown = [(TableCell("measured"), ours)]
            shown += [(TableCell("paper"), theirs)] if printed else []
            if any(n.difference is not None for n in line):
                shown.append((TableCell("difference"), [TableCell(n.texts[2]) for n in line]))
        labels = [TableCell(paper.printed(key, dict(id).get(key))) for key in keys]
        for kind, cells in shown:
            rows.append(TableRow((*labels, kind, *cells), kind.text, kind is shown[0][0]))
            labels = [TableCell("")] * len(keys)
    columns = [
        *(Head(key, kind="label") for key in (*keys, "")),
        *(Head(name, paper.printed(half.across, group)) for group, name in half.printed_columns),
    ]
    settings = {k: paper.printed(k, v) for k, v in half.settings.items() if k not in keys}
    if "dtype" in settings:
        settings["dtype"] = _dtypes([n for line in lines for n in line])
    shared = [f"{k} {v}" for k, v in settings.items() if k not in LENGTHS]
    own = [f"{k} {v}" for k, v in settings.items() if k in LENGTHS]
    shared += [f"in the paper {', '.join(own)}"] if own else []
    return Grid(tuple(columns), tuple(rows), "; ".join(shared))
