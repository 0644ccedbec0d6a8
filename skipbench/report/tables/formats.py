"""The formats of a table, and their writers."""

import html as of_html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from csv import DictWriter
from dataclasses import replace
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from skipbench.config.explain import did_you_mean
from skipbench.errors import SkipbenchError
from skipbench.report.columns import NOTE
from skipbench.report.definitions import LEGEND
from skipbench.report.tables.model import Grid, Table, TableCell

MORE = "; the files of a table, or columns=all, have more"
FOLDER = Path(__file__).parent
ESCAPES = {c: f"\\{c}" for c in "&%$#_{}"} | {'"': "''", "`": "'", "\u2014": "--"}
ESCAPES |= {"\u00b1": r"$\pm$", "\u00d7": r"$\times$", "\u2192": r"$\to$"}
ESCAPES |= {c: f"{{{c}}}" for c in "[]"}  # after `\\` a bracket would be its argument
_NAMES = ["backslash", "asciitilde", "asciicircum", "bar", "less", "greater"]
ESCAPES |= {c: rf"\text{name}{{}}" for c, name in zip("\\~^|<>", _NAMES, strict=True)}


def markdown(table: Table) -> str:
    """The table as Markdown, with cautions and footnotes."""
    blocks = [
        f"## {table.title}",
        table.source,
        *(block for grid in table.grids for block in (grid.settings, _grid(grid))),
        "\n".join(f"**{one_line(text)}**  " for text in table.cautions),
        "\n".join(f"[{n}] {one_line(text)}  " for n, text in enumerate(table.footnotes, 1)),
        "\n".join(f"- {one_line(text)}" for text in table.remarks),
        "\n".join(f"- *{name}*: {one_line(text)}" for name, text in table.definitions),
        *table.provenance,
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def for_terminal(table: Table) -> str:
    """The table as Markdown without its extra columns, with one line in place of definitions."""
    line = f"\n\n{LEGEND}" if table.definitions else ""
    narrow = tuple(map(narrowed, table.grids))
    line += MORE if narrow != table.grids else ""
    return markdown(replace(table, definitions=(), grids=narrow)).rstrip() + line


def narrowed(grid: Grid) -> Grid:
    """A grid without its extra columns."""
    kept = [at for at, column in enumerate(grid.columns) if not column.extra]
    rows = (replace(row, cells=tuple(row.cells[at] for at in kept)) for row in grid.rows)
    return replace(grid, columns=tuple(grid.columns[at] for at in kept), rows=tuple(rows))


def markdown_grid(rows: Sequence[Sequence[str]]) -> str:
    """A grid of texts; columns are padded, the first row is the head."""
    safe = [[one_line(text.replace("|", "\\|")) for text in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*safe, strict=True)]
    padded = [[text.ljust(w) for text, w in zip(row, widths, strict=True)] for row in safe]
    lines = [f"| {' | '.join(row)} |" for row in padded]
    return "\n".join([lines[0], f"|{'|'.join('-' * (w + 2) for w in widths)}|", *lines[1:]])


def one_line(text: str) -> str:
    """The text without line breaks."""
    return " ".join(text.split())


def _grid(grid: Grid) -> str:
    def text(cell: TableCell) -> str:
        words = f"**{cell.text}**" if cell.bold else cell.text
        return f"{words} [{cell.mark}]" if cell.mark else words

    head = [f"{c.group}: {c.name}" if c.group else c.name for c in grid.columns]
    return markdown_grid([head, *([*map(text, row.cells)] for row in grid.rows)])


def csv(table: Table, lines: Sequence[Mapping[str, Any]] = ()) -> str:
    """Unrounded numbers: the table's columns, or these lines."""
    lines = lines or table.lines
    names = dict.fromkeys(name for line in lines for name in line)
    out = io.StringIO()
    writer = DictWriter(out, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return out.getvalue()


def html(table: Table, styled: bool = True) -> str:
    """A `<section>` without scripts or links; without `styled`, for a page with its own style."""
    return rendered("table.html.j2", of_html.escape, table=table, styled=styled)


def rendered(name: str, escape: Callable[[str], str], **values: Any) -> str:
    """A template with these values: a name here or of the page, or the path of another; `escape`
    applies to every text but those of `Markup`.
    """
    environment = Environment(
        *("<%", "%>", "<<", ">>"),
        loader=FileSystemLoader([FOLDER, FOLDER.parent, Path(name).parent]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda v: escape(v) if isinstance(v, str) and not isinstance(v, Markup) else v,
    )
    return environment.get_template(Path(name).name).render(values)


def tabular(table: Table) -> str:
    r"""A `tabular` per grid and nothing around it, for LaTeX with `\usepackage{booktabs}`; cautions
    and footnotes are comments.
    """
    return rendered("tabular.tex.j2", escape, table=table, text=_latex)


def escape(text: str) -> str:
    """`text` with all characters that mean something to LaTeX made to mean themselves."""
    return "".join(ESCAPES.get(c, c) for c in re.sub(r"\s+", " ", text).replace("->", "\u2192"))


def _latex(cell: TableCell) -> Markup:
    words = escape(cell.text)
    text = rf"\textbf{{{words}}}" if cell.bold else words
    return Markup(rf"{text}\textsuperscript{{{cell.mark}}}" if cell.mark else text)


WRITERS = {"md": markdown, "csv": csv, "html": html, "tabular.tex": tabular}
DEFAULT = ("md", "csv")  # beside the summary, NAME.json, of which the others can be made


def check_formats(formats: Sequence[str]) -> None:
    """Raises SkipbenchError for a format that no writer has."""
    for one in formats:
        if one not in WRITERS:
            hint = did_you_mean(one, [*WRITERS])
            raise SkipbenchError(f"formats={one}.{hint} Wanted any of {', '.join(WRITERS)}")


def write(table: Table, formats: Sequence[str] = DEFAULT) -> dict[str, str]:
    """The table in these formats, by suffix: beside `csv` in `all.csv` everything that is known,
    and a `tabular` of each grid, with a terminal's columns. Raises SkipbenchError as
    `check_formats`.
    """
    check_formats(formats)
    texts = {suffix: WRITERS[suffix](table) for suffix in formats}
    if "csv" in formats and table.records:
        texts["all.csv"] = csv(table, table.records)
    for number, grid in enumerate(table.grids if "tabular.tex" in formats else (), 1):
        name = f"tabular-{number}.tex" if number > 1 else "tabular.tex"
        texts[name] = tabular(_bare(table, narrowed(grid)))
    return texts


def _bare(table: Table, grid: Grid) -> Table:
    """The table with this grid alone; notes on rows are remarks, so that it fits a page."""
    notes = list[str]()
    if grid.columns[-1].name == NOTE:
        notes = [f"{row.cells[grid.labels - 1].text}: {row.cells[-1].text}" for row in grid.rows]
        rows = tuple(replace(row, cells=row.cells[:-1]) for row in grid.rows)
        grid = replace(grid, columns=grid.columns[:-1], rows=rows)
    remarks = (note for note in notes if not note.endswith(": "))
    return replace(table, grids=(grid,), remarks=(*table.remarks, *remarks))
