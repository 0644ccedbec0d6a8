r"""Writes a table as LaTeX: a `longtable` per block of columns, the notes below as text, which
needs `\usepackage{array,booktabs,longtable}`; or a bare `tabular`, for papers of two columns.

Widths are estimates in points for the class article, of which a line has 345.
"""

import re
from itertools import accumulate, pairwise, product

from markupsafe import Markup

from skipbench.report.tables.html import rendered
from skipbench.report.tables.model import Grid, Table, TableCell

LINE_WIDTH = 345.0
COLUMN_GAP = 5.0
# points per digit; the largest size that fits is taken, for several blocks one of the last two
SIZES = {r"\small": 4.7, r"\footnotesize": 4.3, r"\scriptsize": 4.05, r"\tiny": 3.5}
SMALLEST = (r"\scriptsize", r"\tiny")
WRAPPED = 26  # digits; columns of longer texts have lines of this length
NARROW, WIDE = set(" .,:;'|()[]-ijlft"), set("mw%+")  # characters, compared with a digit
ESCAPES = {c: f"\\{c}" for c in "&%$#_{}"} | {'"': "''", "`": "'", "\u2014": "--"}
ESCAPES |= {"\u00b1": r"$\pm$", "\u00d7": r"$\times$"}
ESCAPES |= {c: f"{{{c}}}" for c in "[]"}  # after `\\` a bracket would be its argument
_NAMES = ["backslash", "asciitilde", "asciicircum", "bar", "less", "greater"]
ESCAPES |= {c: rf"\text{name}{{}}" for c, name in zip("\\~^|<>", _NAMES, strict=True)}


def latex(table: Table) -> str:
    """The table as LaTeX, in blocks of columns that fit a page."""
    blocks = [
        (grid, size, [*range(grid.labels), *range(first, last)], grid.groups(first, last))
        for grid in table.grids
        for size, first, last in column_blocks(grid)
    ]
    return rendered(
        "table.tex.j2",
        escape,
        table=table,
        blocks=blocks,
        label=Markup(re.sub(r"[^A-Za-z0-9_.:-]+", "-", table.name)),
        alignment=_alignment,
        text=_text,
    )


def tabular(table: Table) -> str:
    """A `tabular` per grid and nothing around it; cautions and footnotes are comments."""
    return rendered("tabular.tex.j2", escape, table=table, text=_text)


def escape(text: str) -> str:
    """`text` with all characters that mean something to LaTeX made to mean themselves."""
    return "".join(ESCAPES.get(c, c) for c in re.sub(r"\s+", " ", text))


def breakable(text: str) -> str:
    """`text` escaped, with line breaks allowed inside settings, names and numbers."""
    return r"\allowbreak{}".join(map(escape, re.split(r"(?<=[=:;,/._-])(?=\S)", text)))


def column_blocks(grid: Grid) -> list[tuple[str, int, int]]:
    """Font size, first and last column (exclusive) of each block beside the labels: one block if it
    fits, else as few as possible.
    """
    labels, count = grid.labels, len(grid.columns)
    widths = [min(_column_width(grid, i), WRAPPED) for i in range(count)]

    def fits(size: str, first: int, last: int) -> bool:
        points = [width * SIZES[size] + COLUMN_GAP for width in widths]
        total = sum(points[:labels])
        for name, columns in grid.groups(first, last):
            head = _text_width(name) * SIZES[size] + COLUMN_GAP
            total += max(sum(points[first : first + columns]), head)
            first += columns
        return total <= LINE_WIDTH

    for size in SIZES:
        if fits(size, labels, count):
            return [(size, labels, count)]
    edges = list(accumulate((size for _, size in grid.groups(labels)), initial=labels))
    for cuts, size in product((edges, list(range(labels, count + 1))), SMALLEST):
        for number in range(2, len(cuts)):
            chosen = [cuts[round(i * (len(cuts) - 1) / number)] for i in range(number + 1)]
            ranges = list(pairwise(chosen))
            if all(fits(size, *of) for of in ranges):
                return [(size, *of) for of in ranges]
    return [(SMALLEST[-1], i, i + 1) for i in range(labels, count)]


def _column_width(grid: Grid, column: int) -> float:
    """Width of the widest cell of a column in digits."""
    cells = [row.cells[column] for row in grid.rows]
    texts = [(1.15 if c.bold else 1) * _text_width(c.text) + 0.8 * bool(c.mark) for c in cells]
    return max([_text_width(grid.columns[column].name), *texts])


def _text_width(text: str) -> float:
    """Estimated width in digits."""
    return sum(
        0.65 if c in NARROW else 1.35 if c.isupper() else 1.5 if c in WIDE else 1 for c in text
    )


def _alignment(grid: Grid, column: int, size: str) -> Markup:
    if _column_width(grid, column) > WRAPPED:
        width = WRAPPED * SIZES[size]
        return Markup(rf">{{\raggedright\arraybackslash}}p{{{width:.0f}pt}}")
    return Markup("r" if grid.columns[column].kind == "number" else "l")


def _text(cell: TableCell, wrapped: bool = True) -> Markup:
    long = wrapped and _text_width(cell.text) > WRAPPED
    words = breakable(cell.text) if long else escape(cell.text)
    text = rf"\textbf{{{words}}}" if cell.bold else words
    return Markup(rf"{text}\textsuperscript{{{cell.mark}}}" if cell.mark else text)
