"""Builds the papers' tables of features: the rows that they print beside those of our methods."""

from functools import cache
from pathlib import Path

import msgspec

from skipbench.report.published import numbers_of
from skipbench.report.tables.model import Grid, Head, Table, TableCell, TableRow
from skipbench.report.values import MISSING

NOT_HERE, LOST = "not implemented here", "lost in the transcribed text"
NOT_PRINTED, MEASURED = "the paper prints nothing here", "measured in its other tables"
HERE = "here: what is implemented in skipbench/methods; optional: by a switch, not by default"
NOTES = (NOT_HERE, LOST, NOT_PRINTED, MEASURED)
Mark = bool | str | None
# the one loop verifies both for all
EVERY_METHOD: dict[str, Mark] = {"greedy": True, "sampling": True, "speedup": MEASURED}
TEXTS: dict[Mark, str] = {None: LOST, True: "yes", False: "no", "-": NOT_PRINTED}


class _Printed(msgspec.Struct):
    table: str
    columns: list[str]
    rows: dict[str, list[Mark]]
    remark: str = ""


class _Features(msgspec.Struct):
    meaning: dict[str, str]
    here: dict[str, dict[str, Mark]]
    papers: dict[str, _Printed]


@cache
def features() -> _Features:
    """Definitions of the columns, features of the methods here, and the papers' tables."""
    return msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=_Features)


def declared() -> dict[str, dict[str, Mark]]:
    """The features of each method here, by its name."""
    return {
        method: {**EVERY_METHOD, "original": facts["training_free"], **facts}
        for method, facts in features().here.items()
    }


def _speedup(paper: str, table: str, method: str) -> str:
    """The range of speedups that the table prints of a method."""
    of = (n for n in numbers_of(f"{paper}-{table}") if n.method == method)
    ends = [f"{n.value:.{n.digits}f}x" for n in of if n.column.startswith("speedup_")]
    return " to ".join(ends) or NOT_PRINTED


def feature_tables() -> dict[str, str]:
    """The papers that have one, by the name of the table: `swift-table1`."""
    return {f"{paper}-{of.table}": paper for paper, of in features().papers.items()}


def feature_table(paper: str) -> Table:
    """Features that `paper`, one of `feature_tables`, prints, and those here."""
    of = features().papers[paper]
    ours, records, rows, marks = declared(), [], [], dict[str, int]()
    for method, printed in of.rows.items():
        if "speedup" in of.columns:
            printed = [*printed, _speedup(paper, of.table, method)]
        here = [ours[method][c] if method in ours else NOT_HERE for c in of.columns]
        for source, kind, values in (("paper", "paper", printed), ("here", "measured", here)):
            texts = [TEXTS.get(value, str(value)) for value in values]
            cells = list[TableCell]()
            for text in texts:
                mark = marks.setdefault(text, len(marks) + 1) if text in NOTES else None
                cells.append(TableCell(MISSING if mark else text, mark=mark))
            every = TableCell(method), TableCell(source), *cells
            rows.append(TableRow(every, kind, first=source == "paper"))
            named = dict(zip(of.columns, texts, strict=True))
            records.append({"method": method, "source": source, **named})
    labels = (Head("method", kind="label"), Head("", kind="label"))
    columns = (*labels, *(Head(name, kind="text") for name in of.columns))
    return Table(
        name=f"{paper}-{of.table}",
        title=f"{paper} {of.table.replace('table', 'Table ')}: features",
        grids=(Grid(columns, tuple(rows)),),
        lines=tuple(records),
        footnotes=tuple(marks),
        remarks=(HERE, *([of.remark] if of.remark else ())),
        definitions=tuple((name, features().meaning[name]) for name in of.columns),
    )
