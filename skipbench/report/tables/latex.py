r"""Writes a table as LaTeX: a `longtable` per block of columns, the notes below as text. Needs
`\usepackage{array,booktabs,longtable}`.

Widths are estimates in points for the class article, of which a line has 345.
"""

import re
from collections.abc import Sequence
from itertools import pairwise, product

from skipbench.report.tables.model import Cell, Grid, Row, Table

HEAD = r"""% Needs \usepackage{array,booktabs,longtable}; run LaTeX twice.
% A longtable stands in one column: set \onecolumn before it in a paper of two."""
LINE_WIDTH = 345.0
COLUMN_GAP = 5.0
# points per digit; the largest size that fits is taken, for several blocks one of the last two
SIZES = {r"\small": 4.7, r"\footnotesize": 4.3, r"\scriptsize": 4.05, r"\tiny": 3.5}
SMALLEST = (r"\scriptsize", r"\tiny")
WRAPPED = 26  # digits; columns of longer texts have lines of this length
NARROW, WIDE = set(" .,:;'|()[]-ijlft"), set("mw%+")  # characters, compared with a digit
ESCAPES = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "`": "'",
    "\u2014": "--",
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
    "[": "{[}",  # after `\\` a bracket would be its argument
    "]": "{]}",
}


def latex(table: Table) -> str:
    """Grids, each as large as fits the line, then everything that stands below."""
    blocks = [
        (grid, size, first, last)
        for grid in table.grids
        for size, first, last in column_blocks(grid)
    ]
    notes = [
        *([] if blocks else [escape(table.title)]),
        *(rf"\textbf{{{escape(text)}}}" for text in table.cautions),
        *(rf"\textsuperscript{{{n}}} {escape(text)}" for n, text in enumerate(table.footnotes, 1)),
        *map(escape, table.remarks),
        *(rf"\emph{{{escape(name)}}}: {escape(text)}" for name, text in table.definitions),
        *map(escape, table.provenance),
        escape(table.source),
    ]
    return "\n".join(
        [
            HEAD,
            r"\begingroup\setlength{\tabcolsep}{2.5pt}\setlength{\LTcapwidth}{\linewidth}",
            *(_longtable(table, *block, number) for number, block in enumerate(blocks)),
            r"\raggedright\scriptsize\setlength{\parindent}{0pt}\setlength{\parskip}{1pt}",
            "\n\n".join(note for note in notes if note),
            r"\par\endgroup",
            "",
        ]
    )


def escape(text: str) -> str:
    """`text` with all characters that mean something to LaTeX made to mean themselves."""
    return "".join(ESCAPES.get(c, c) for c in re.sub(r"\s+", " ", text))


def breakable(text: str) -> str:
    """`text` escaped, with line breaks allowed inside settings, names and numbers."""
    return r"\allowbreak{}".join(map(escape, re.split(r"(?<=[=:;,/._-])(?=\S)", text)))


def column_blocks(grid: Grid) -> list[tuple[str, int, int]]:
    """Size of the font, first column and last column (exclusive) of each block beside the labels:
    all columns in one block if any size allows it, else as few blocks as fit, of whole groups if
    possible.
    """
    labels, count = grid.labels, len(grid.columns)
    for size in SIZES:
        if _block_width(grid, size, labels, count) <= LINE_WIDTH:
            return [(size, labels, count)]
    edges = [labels]
    for _, group in grid.groups(labels):
        edges.append(edges[-1] + group)
    for cuts, size in product((edges, list(range(labels, count + 1))), SMALLEST):
        for number in range(2, len(cuts)):
            chosen = [cuts[round(i * (len(cuts) - 1) / number)] for i in range(number + 1)]
            ranges = list(pairwise(chosen))
            if all(_block_width(grid, size, *of) <= LINE_WIDTH for of in ranges):
                return [(size, *of) for of in ranges]
    return [(SMALLEST[-1], i, i + 1) for i in range(labels, count)]


def _block_width(grid: Grid, size: str, first: int, last: int) -> float:
    """Estimated width of the labels and the columns `first` to `last - 1` in points."""

    def wide(first: int, last: int) -> float:
        widths = [min(_column_width(grid, i), WRAPPED) for i in range(first, last)]
        return sum(n * SIZES[size] + COLUMN_GAP for n in widths)

    total = wide(0, grid.labels)
    for name, count in grid.groups(first, last):
        total += max(wide(first, first + count), _text_width(name) * SIZES[size] + COLUMN_GAP)
        first += count
    return total


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


def _longtable(table: Table, grid: Grid, size: str, first: int, last: int, number: int) -> str:
    """One block; all blocks have the number of the first."""
    shown = [*range(grid.labels), *range(first, last)]
    settings = f". {grid.settings}" if grid.settings else ""
    again = rf"\caption[]{{{escape(f'{table.title} (continued){settings}')}}} \\"
    label = re.sub(r"[^A-Za-z0-9_.:-]+", "-", table.name)
    first_caption = rf"\caption{{{escape(table.title + settings)}}}\label{{tab:{label}}} \\"
    names = " & ".join(escape(grid.columns[i].name) for i in shown) + r" \\"
    wrapped = rf">{{\raggedright\arraybackslash}}p{{{WRAPPED * SIZES[size]:.0f}pt}}"
    alignment = [
        wrapped
        if _column_width(grid, i) > WRAPPED
        else "r"
        if grid.columns[i].kind == "number"
        else "l"
        for i in shown
    ]
    head = [r"\toprule", *_groups(grid, first, last), names, r"\midrule"]
    return "\n".join(
        [
            *([r"\addtocounter{table}{-1}"] if number else []),
            size,
            rf"\begin{{longtable}}{{{''.join(alignment)}}}",
            again if number else first_caption,
            *head,
            r"\endfirsthead",
            again,
            *head,
            r"\endhead",
            r"\bottomrule",
            r"\endfoot",
            *_body(grid.rows, shown),
            r"\end{longtable}",
        ]
    )


def _groups(grid: Grid, first: int, last: int) -> list[str]:
    """The line above the columns' names, with a rule below each group; nothing without groups."""
    sizes = grid.groups(first, last)
    if not any(name for name, _ in sizes):
        return []
    rules, at = [], grid.labels + 1
    for _, size in sizes:
        rules.append(rf"\cmidrule(lr){{{at}-{at + size - 1}}}")
        at += size
    names = " & ".join(rf"\multicolumn{{{size}}}{{c}}{{{escape(name)}}}" for name, size in sizes)
    return ["& " * grid.labels + names + r" \\", " ".join(rules)]


def _body(rows: Sequence[Row], shown: Sequence[int]) -> list[str]:
    r"""The rows; after `\\*` no page ends, so that the lines of a group stay together."""
    lines = []
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        end = r"\\" if following is None or following.first else r"\\*"
        lines.append(" & ".join(_text(row.cells[i]) for i in shown) + f" {end}")
        lines += [r"\addlinespace"] if following and following.first else []
    return lines


def _text(cell: Cell) -> str:
    words = escape(cell.text) if _text_width(cell.text) <= WRAPPED else breakable(cell.text)
    text = rf"\textbf{{{words}}}" if cell.bold else words
    return rf"{text}\textsuperscript{{{cell.mark}}}" if cell.mark else text
