"""Builds the papers' tables of features: rows of the methods here beside the rows that the papers
print.
"""

from pathlib import Path

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.columns import MISSING
from skipbench.report.tables.model import Cell, Column, Grid, Row, Table

ROWS = Path(__file__).parent / "features.yaml"
MEANING = {
    "approach": "how tokens are drafted",
    "auxiliary": "needs modules beside the model, such as more parameters or a data store",
    "plug_and_play": "needs neither training nor a search before the run",
    "training_free": "needs no trained checkpoint",
    "separable": "attention and MLP are skipped apart from each other",
    "adaptive": "what is skipped is chosen from the prompts and tokens of the run, not before it",
    "context_aware": "the length of the context is part of the choice",
    "search": "how the skipped sub-layers are chosen",
    "greedy": "greedy decoding",
    "sampling": "sampling",
    "tree": "verifies a tree of tokens",
}
EVERY_METHOD = {"greedy": True, "sampling": True}  # the one loop verifies both for all
NOT_HERE, LOST = "not implemented here", "lost in the transcribed text"
HERE = "here: what is implemented in skipbench/methods; optional: by a switch, not by default"


Mark = bool | str | None
"""None is lost in the transcribed text."""


class _Printed(msgspec.Struct):
    """A paper's table, with a mark per column in each row."""

    table: str
    columns: list[str]
    rows: dict[str, list[Mark]]


class _Features(msgspec.Struct):
    """features.yaml."""

    here: dict[str, dict[str, Mark]]
    papers: dict[str, _Printed]


def _features() -> _Features:
    return msgspec.yaml.decode(ROWS.read_bytes(), type=_Features)


def declared() -> dict[str, dict[str, Mark]]:
    """The features of each method here, by its name."""
    return {method: {**EVERY_METHOD, **facts} for method, facts in _features().here.items()}


def feature_tables() -> dict[str, str]:
    """The papers that have one, by the name of the table: `swift-table1`."""
    return {f"{paper}-{of.table}": paper for paper, of in _features().papers.items()}


def feature_table(paper: str) -> Table:
    """The feature table of `paper`, every row by the paper and, where the method is implemented, by
    what is here.

    Raises:
        SkipbenchError: the paper has no such table.
    """
    known = _features().papers
    if paper not in known:
        raise SkipbenchError(
            f"{paper!r} has no table of features; there are those of {', '.join(known)}"
        )
    of, ours = known[paper], declared()
    records, rows, reasons = [], [], dict[str, int]()
    for method, printed in of.rows.items():
        here = [_text(ours[method][c]) if method in ours else NOT_HERE for c in of.columns]
        for source, texts in (("paper", [*map(_text, printed)]), ("here", here)):
            cells = [Cell(method), Cell(source)]
            for text in texts:
                if text in (NOT_HERE, LOST):
                    cells.append(Cell(MISSING, mark=reasons.setdefault(text, len(reasons) + 1)))
                else:
                    cells.append(Cell(text))
            first = source == "paper"
            rows.append(Row(tuple(cells), kind="paper" if first else "measured", first=first))
            named = dict(zip(of.columns, texts, strict=True))
            records.append({"method": method, "source": source, **named})
    labels = (Column("method", kind="label"), Column("", kind="label"))
    columns = (*labels, *(Column(name, kind="text") for name in of.columns))
    return Table(
        name=f"{paper}-{of.table}",
        title=f"{paper} {of.table.replace('table', 'Table ')}: features",
        grids=(Grid(columns, tuple(rows)),),
        records=tuple(records),
        footnotes=tuple(reasons),
        remarks=(HERE,),
        definitions=tuple((name, MEANING[name]) for name in of.columns),
    )


def _text(mark: Mark) -> str:
    if mark is None:
        return LOST
    return {True: "yes", False: "no"}[mark] if isinstance(mark, bool) else mark
