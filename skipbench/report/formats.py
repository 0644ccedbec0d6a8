"""A `PaperTable` as Markdown, LaTeX, CSV and HTML. The same table gives the same bytes."""

import csv as _csv
import io

from skipbench.report.cell import markdown_grid
from skipbench.report.fragment import html
from skipbench.report.latex import latex
from skipbench.report.papercells import PaperTable, Part
from skipbench.report.papergrid import Line, Marks, Text, heading, lines

__all__ = ["csv", "html", "latex", "markdown"]
NUMBERS = (
    "measured",
    "measured_low",
    "measured_high",
    "published",
    "published_spread",
    "difference",
    "percent",
)


def markdown(t: PaperTable) -> str:
    """Heading, a grid a part, and everything that stands under the table."""
    marks = Marks()
    grids = [_grid(part, marks) for part in t.parts]
    under = [
        "\n".join(f"**{_plain(line)}**  " for line in t.cautions),
        "\n".join(f"[{n}] {_plain(text)}  " for n, text in enumerate(marks.texts, 1)),
        "\n".join(f"- {_plain(note)}" for note in t.notes),
        "\n".join(f"- *{name}*: {_plain(text)}" for name, text in t.definitions),
        f"lossless: {t.lossless}",
        "; ".join(f"{name}: {text}" for name, text in t.provenance),
    ]
    return (
        "\n\n".join(
            p for p in [f"## {t.heading}", f"{t.source}. scale={t.scale}.", *grids, *under] if p
        )
        + "\n"
    )


def csv(t: PaperTable) -> str:
    """One line per cell, every number unrounded; a missing one is an empty field, and `reason`
    tells why.
    """
    cells = [cell for part in t.parts for row in part.rows for cell in row.cells]
    keys = list(dict.fromkeys(key for cell in cells for key in cell.keys))
    out = io.StringIO()
    writer = _csv.writer(out, lineterminator="\n")
    writer.writerow(
        ["paper", "table", "scale", *keys, "column", "unit", *NUMBERS, "digits", "reason", "note"]
    )
    for cell in cells:
        low, high = cell.interval or (None, None)
        numbers = [
            cell.measured,
            low,
            high,
            cell.published,
            cell.spread,
            cell.difference,
            cell.percent,
        ]
        named = [cell.keys.get(key) for key in keys]
        where = [t.paper, t.table, t.scale, *named, cell.column, cell.unit]
        writer.writerow([*where, *numbers, cell.digits, cell.reason, cell.note])
    return out.getvalue()


def _grid(part: Part, marks: Marks) -> str:
    head = [*part.keys, "", *(heading(group, column) for group, column in part.columns)]
    body = [_markdown_line(line) for line in lines(part, marks)]
    return "\n\n".join(filter(None, (f"{part.settings}", markdown_grid([head, *body]))))


def _markdown_line(line: Line) -> list[str]:
    labels = line.labels if line.first else ("",) * len(line.labels)
    return [*labels, _markdown_text(line.kind), *map(_markdown_text, line.fields)]


def _markdown_text(text: Text) -> str:
    shown = f"**{text.text}**" if text.bold else text.text
    return shown + "".join(f" [{mark}]" for mark in text.marks)


def _plain(text: str) -> str:
    return " ".join(text.split())
