"""The papers' tables of features: rows of the methods here beside the rows that the papers
print.
"""

import csv
import io
from dataclasses import dataclass
from html import escape as html_escape
from pathlib import Path
from typing import Any

import yaml

from skipbench.errors import SkipbenchError
from skipbench.report.cell import markdown_grid
from skipbench.report.latex import FITTED, HEAD, escape

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


@dataclass(frozen=True)
class FeatureTable:
    """Rows of texts below `head`; the first two fields are the method, and whose line it is, "here"
    or "paper".
    """

    heading: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def declared() -> dict[str, dict[str, Any]]:
    """The features of each method here, by its name."""
    return {method: {**EVERY_METHOD, **facts} for method, facts in _rows()["here"].items()}


def _rows() -> dict[str, Any]:
    known: dict[str, Any] = yaml.safe_load(ROWS.read_text(encoding="utf-8"))
    return known


def feature_tables() -> dict[str, str]:
    """The papers that have one, by the name of the table: `swift-table1`."""
    known = _rows()["papers"]
    return {f"{paper}-{of['table']}": paper for paper, of in known.items()}


def feature_texts(paper: str) -> dict[str, str]:
    """Suffix to text, as `written.texts`."""
    made = feature_table(paper)
    return {
        "md": features_markdown(made),
        "tex": features_latex(made),
        "csv": features_csv(made),
        "html": features_html(made),
    }


def feature_table(paper: str) -> FeatureTable:
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
    rows = []
    for method, printed in of["rows"].items():
        rows.append((method, "paper", *map(_mark, printed)))
        facts = ours.get(method)
        values = (
            [_mark(facts[name]) for name in of["columns"]]
            if facts
            else [NOT_HERE] * len(of["columns"])
        )
        rows.append((method, "here", *values))
    return FeatureTable(
        f"{paper} {of['table'].replace('table', 'Table ')}: features",
        ("method", "", *of["columns"]),
        tuple(rows),
        (
            *(f"{name}: {MEANING[name]}" for name in of["columns"]),
            "here: what is implemented in skipbench/methods; optional: by a switch, not by default",
        ),
    )


def features_markdown(t: FeatureTable) -> str:
    """The table as Markdown."""
    notes = "\n".join(f"- {note}" for note in t.notes)
    return f"## {t.heading}\n\n{markdown_grid([list(t.head), *map(list, t.rows)])}\n\n{notes}\n"


def features_csv(t: FeatureTable) -> str:
    """The table as CSV."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([("method", "source", *t.head[2:]), *t.rows])
    return out.getvalue()


def features_latex(t: FeatureTable) -> str:
    r"""The table as a LaTeX `table`, for a document with `\usepackage{booktabs,graphicx}`."""
    short = {LOST: "?", NOT_HERE: "--"}
    head, *body = [
        " & ".join(escape(short.get(f, f)) for f in row) + r" \\" for row in (t.head, *t.rows)
    ]
    notes = "\n\n".join(
        map(escape, (*t.notes, *(f"{mark}: {text}" for text, mark in short.items())))
    )
    return (
        f"{HEAD}\n\\begin{{table}}[p]\n\\caption{{{escape(t.heading)}}}\n\\scriptsize\\centering\n"
        f"\\sbox0{{%\n\\begin{{tabular}}{{{'l' * len(t.head)}}}\n\\toprule\n{head}\n\\midrule\n"
        + "\n".join(body)
        + (
            f"\n\\bottomrule\n\\end{{tabular}}}}%\n{FITTED}\n\n\\raggedright "
            f"{notes}\n\\end{{table}}\n"
        )
    )


def features_html(t: FeatureTable) -> str:
    """The table as a piece of HTML, in a box of its own that scrolls."""
    head = "".join(f"<th>{html_escape(name)}</th>" for name in t.head)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{html_escape(text)}</td>' for text in row)}</tr>" for row in t.rows
    )
    notes = "".join(f"<li>{html_escape(note)}</li>" for note in t.notes)
    return (
        f'<section class="feature-table"><h2>{html_escape(t.heading)}</h2>\n<div '
        'style="overflow-x:auto"><table>\n'
        f"<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>\n<ul>{notes}</ul></section>\n"
    )


def _mark(value: Any) -> str:
    return (
        LOST
        if value is None
        else {True: "yes", False: "no"}[value]
        if isinstance(value, bool)
        else str(value)
    )
