r"""A `PaperTable` as LaTeX; needs `\usepackage{booktabs,graphicx}` and nothing else."""

import re
from collections.abc import Sequence
from itertools import groupby

from skipbench.report.latexlayout import Block, blocks, height, pages, text_height
from skipbench.report.papercells import PaperTable, Part
from skipbench.report.papergrid import Line, Marks, Text, lines

_ESCAPES = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    "\u2014": "--",
    "\u00b1": r"$\pm$",
    "\u00d7": r"$\times$",
    "[": "{[}",  # after `\\` a bracket would be its argument
    "]": "{]}",
}


HEAD = r"""% Needs \usepackage{booktabs,graphicx}. In two columns, make table* of table.
% A block that is wider than the text is shrunk; with wider margins it keeps its size."""
FITTED = r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi"


def latex(t: PaperTable) -> str:
    r"""One `table` per page, with `tabular`s and small print; packages booktabs and graphicx."""
    marks = Marks()
    pieces = [piece for part in t.parts for piece in _tabulars(part, marks)]
    small = [
        *(rf"\textbf{{{escape(line)}}}" for line in t.cautions),
        *(rf"\textsuperscript{{{n}}} {escape(text)}" for n, text in enumerate(marks.texts, 1)),
        *map(escape, t.notes),
        *(rf"\emph{{{escape(name)}}}: {escape(text)}" for name, text in t.definitions),
        escape(f"lossless: {t.lossless}."),
        *(
            [escape("; ".join(f"{name}: {text}" for name, text in t.provenance))]
            if t.provenance
            else []
        ),
        escape(f"{t.source}. scale={t.scale}."),
    ]
    heights = [*(tall for _, tall in pieces), *map(text_height, small)]
    floats = []
    for number, page in enumerate(pages(heights)):
        grids = [pieces[i][0] for i in page if i < len(pieces)]
        notes = [small[i - len(pieces)] for i in page if i >= len(pieces)]
        floats.append(_float(t, number, grids, notes))
    return "\n".join([HEAD, *floats])


def _float(t: PaperTable, number: int, grids: Sequence[str], notes: Sequence[str]) -> str:
    """One page of a table; all pages have the table's number."""
    label = rf"\label{{tab:{t.paper}-{t.table}-{t.scale}}}"
    opening = (
        r"\begin{minipage}{\linewidth}\raggedright\scriptsize\setlength{\parskip}{1pt}\medskip"
    )
    return "\n".join(
        [
            r"\begin{table}[p]",
            *([r"\addtocounter{table}{-1}"] if number else []),
            rf"\caption{{{escape(t.heading)}{' (continued)' if number else ''}}}",
            *([] if number else [label]),
            r"\scriptsize\setlength{\tabcolsep}{3pt}\centering",
            "\n\n\\medskip\n".join(grids),
            "",
            *([opening, "\n\n".join(notes), r"\end{minipage}"] if notes else []),
            r"\end{table}",
            "",
        ]
    )


def escape(text: str) -> str:
    """`text` with all characters that mean something to LaTeX made to mean themselves."""
    return "".join(_ESCAPES.get(c, c) for c in re.sub(r"\s+", " ", text))


def _tabulars(part: Part, marks: Marks) -> list[tuple[str, float]]:
    """The blocks of a part, each with its height in points."""
    found = blocks(part.columns, part.keys, lines(part, marks))
    settings = rf"{escape(part.settings)}\par\smallskip" + "\n" if part.settings else ""
    above = text_height(part.settings) if part.settings else 0
    return [
        (
            (settings if i == 0 else "") + _tabular(part, block),
            height(block) + (above if i == 0 else 0),
        )
        for i, block in enumerate(found)
    ]


def _tabular(part: Part, block: Block) -> str:
    labels, columns = len(part.keys) + 1, part.columns[block.first : block.last]
    head = [*map(escape, part.keys), "", *(escape(column) for _, column in columns)]
    body: list[str] = []
    for line in block.lines:
        body += [r"\addlinespace"] if line.first and body else []
        body.append(_line(line, block))
    return "\n".join(
        [
            r"\sbox0{%",
            rf"\begin{{tabular}}{{{'l' * labels}{'r' * len(columns)}}}",
            r"\toprule",
            *_groups(columns, labels),
            " & ".join(head) + r" \\",
            r"\midrule",
            *body,
            r"\bottomrule",
            r"\end{tabular}}%",
            FITTED,
        ]
    )


def _groups(columns: Sequence[tuple[str, str]], labels: int) -> list[str]:
    """The line above the columns' names, with a rule under each group of them; nothing where there
    are no groups.
    """
    sizes = [(name, len(list(of))) for name, of in groupby(group for group, _ in columns)]
    if not any(name for name, _ in sizes):
        return []
    rules, at = [], labels + 1
    for _, size in sizes:
        rules.append(rf"\cmidrule(lr){{{at}-{at + size - 1}}}")
        at += size
    named = " & ".join(rf"\multicolumn{{{size}}}{{c}}{{{escape(name)}}}" for name, size in sizes)
    return ["& " * labels + named + r" \\", " ".join(rules)]


def _line(line: Line, block: Block) -> str:
    labels = [escape(label) if line.first else "" for label in line.labels]
    return (
        " & ".join([*labels, _text(line.kind), *map(_text, line.fields[block.first : block.last])])
        + r" \\"
    )


def _text(text: Text) -> str:
    shown = rf"\textbf{{{escape(text.text)}}}" if text.bold else escape(text.text)
    return shown + (rf"\textsuperscript{{{','.join(map(str, text.marks))}}}" if text.marks else "")
