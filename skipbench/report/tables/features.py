"""Builds the papers' tables of features: rows of the methods here beside the rows that the papers
print.
"""

from pathlib import Path
from typing import Any

import yaml

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


def declared() -> dict[str, dict[str, Any]]:
    """The features of each method here, by its name."""
    return {method: {**EVERY_METHOD, **facts} for method, facts in _rows()["here"].items()}


def feature_tables() -> dict[str, str]:
    """The papers that have one, by the name of the table: `swift-table1`."""
    known = _rows()["papers"]
    return {f"{paper}-{of['table']}": paper for paper, of in known.items()}


def feature_table(paper: str) -> Table:
    """The feature table of `paper`, every row by the paper and, where the method is implemented, by
    what is here.

    Raises:
        SkipbenchError: the paper has no such table.
    """
    known = _rows()["papers"]
    if paper not in known:
        raise SkipbenchError(
            f"{paper!r} has no table of features; there are those of {', '.join(known)}"
        )
    of, ours = known[paper], declared()
    records = []
    for method, printed in of["rows"].items():
        facts = ours.get(method)
        here = [_text(facts[c]) for c in of["columns"]] if facts else [NOT_HERE] * len(printed)
        for source, values in (("paper", map(_text, printed)), ("here", here)):
            named = dict(zip(of["columns"], values, strict=True))
            records.append({"method": method, "source": source, **named})
    shown = [text for record in records for text in record.values()]
    reasons = list(dict.fromkeys(text for text in shown if text in (NOT_HERE, LOST)))
    labels = (Column("method", kind="label"), Column("", kind="label"))
    grid = Grid(
        (*labels, *(Column(name, kind="text") for name in of["columns"])),
        tuple(
            Row(
                tuple(_cell(text, reasons) for text in record.values()),
                kind="paper" if record["source"] == "paper" else "measured",
                first=record["source"] == "paper",
            )
            for record in records
        ),
    )
    return Table(
        name=f"{paper}-{of['table']}",
        title=f"{paper} {of['table'].replace('table', 'Table ')}: features",
        grids=(grid,),
        records=tuple(records),
        footnotes=tuple(reasons),
        remarks=(HERE,),
        definitions=tuple((name, MEANING[name]) for name in of["columns"]),
    )


def _rows() -> dict[str, Any]:
    known: dict[str, Any] = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    return known


def _text(value: Any) -> str:
    if value is None:
        return LOST
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def _cell(text: str, reasons: list[str]) -> Cell:
    """A text that is a reason becomes a dash with the mark of its footnote."""
    return Cell(MISSING, mark=reasons.index(text) + 1) if text in reasons else Cell(text)
