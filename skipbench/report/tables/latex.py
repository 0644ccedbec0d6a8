r"""Writes a table as LaTeX: a bare `tabular` per grid, which needs `\usepackage{booktabs}`."""

import re

from markupsafe import Markup

from skipbench.report.tables.html import rendered
from skipbench.report.tables.model import Table, TableCell

ESCAPES = {c: f"\\{c}" for c in "&%$#_{}"} | {'"': "''", "`": "'", "\u2014": "--"}
ESCAPES |= {"\u00b1": r"$\pm$", "\u00d7": r"$\times$"}
ESCAPES |= {c: f"{{{c}}}" for c in "[]"}  # after `\\` a bracket would be its argument
_NAMES = ["backslash", "asciitilde", "asciicircum", "bar", "less", "greater"]
ESCAPES |= {c: rf"\text{name}{{}}" for c, name in zip("\\~^|<>", _NAMES, strict=True)}


def tabular(table: Table) -> str:
    """A `tabular` per grid and nothing around it; cautions and footnotes are comments."""
    return rendered("tabular.tex.j2", escape, table=table, text=_text)


def escape(text: str) -> str:
    """`text` with all characters that mean something to LaTeX made to mean themselves."""
    return "".join(ESCAPES.get(c, c) for c in re.sub(r"\s+", " ", text))


def _text(cell: TableCell) -> Markup:
    words = escape(cell.text)
    text = rf"\textbf{{{words}}}" if cell.bold else words
    return Markup(rf"{text}\textsuperscript{{{cell.mark}}}" if cell.mark else text)
