"""The lines of a part as every format writes them: ours, the paper's, their difference; reasons as
numbered marks.
"""

from dataclasses import dataclass, field

from skipbench.report.cell import MISSING
from skipbench.report.papercells import Cell, Part, Row

OURS, PAPER, DIFFERENCE = "measured", "paper", "difference"


@dataclass(frozen=True)
class Text:
    """What stands in one field: a text, perhaps bold, numbers of marks, and the run that it is
    from.
    """

    text: str
    bold: bool = False
    marks: tuple[int, ...] = ()
    run: str | None = None


@dataclass(frozen=True)
class Line:
    """One printed line: the row's labels, which of the three it is, and a field a column."""

    labels: tuple[str, ...]
    kind: Text
    fields: tuple[Text, ...]
    first: bool


@dataclass
class Marks:
    """Reasons and notes in the order of their first use; the same text has the same number."""

    texts: list[str] = field(default_factory=list)

    def of(self, text: str | None) -> tuple[int, ...]:
        """The number of `text`, from 1; nothing for None."""
        if not text:
            return ()
        if text not in self.texts:
            self.texts.append(text)
        return (self.texts.index(text) + 1,)


def lines(part: Part, marks: Marks) -> list[Line]:
    """All lines of a part. A row of which nothing was measured for one reason has the paper's line
    only.
    """
    return [line for row in part.rows for line in _row_lines(row, marks)]


def _row_lines(row: Row, marks: Marks) -> list[Line]:
    reasons = {cell.reason for cell in row.cells}
    printed = any(cell.published is not None or cell.note for cell in row.cells)
    paper = tuple(
        Text(published_text(cell), cell.best_published, marks.of(cell.note)) for cell in row.cells
    )
    if printed and len(reasons) == 1 and None not in reasons:
        return [Line(row.labels, Text(PAPER, marks=marks.of(reasons.pop())), paper, True)]
    ours = tuple(
        Text(measured_text(c), c.best_measured, marks.of(c.reason), c.run) for c in row.cells
    )
    made = [Line(row.labels, Text(OURS), ours, True)]
    if printed:
        made.append(Line(row.labels, Text(PAPER), paper, False))
    if any(cell.difference is not None for cell in row.cells):
        differences = tuple(Text(difference_text(cell)) for cell in row.cells)
        made.append(Line(row.labels, Text(DIFFERENCE), differences, False))
    return made


def measured_text(cell: Cell) -> str:
    """`1.37x [1.30, 1.44]`, with as many decimals as the paper prints, at least two; a dash for no
    value.
    """
    if cell.measured is None:
        return MISSING
    digits = shown_digits(cell)
    ends = (
        f" [{cell.interval[0]:.{digits}f}, {cell.interval[1]:.{digits}f}]" if cell.interval else ""
    )
    return f"{cell.measured:.{digits}f}{_unit(cell)}{ends}"


def published_text(cell: Cell) -> str:
    """The number with the paper's decimals; a dash where it prints none."""
    if cell.published is None:
        return MISSING
    spread = f" \u00b1 {cell.spread:.{cell.digits}f}" if cell.spread is not None else ""
    return f"{cell.published:.{cell.digits}f}{_unit(cell)}{spread}"


def difference_text(cell: Cell) -> str:
    """`+0.03 (+2 %)`; a dash where one of the two is missing."""
    if cell.difference is None:
        return MISSING
    percent = f" ({cell.percent:+.0f} %)" if cell.percent is not None else ""
    return f"{cell.difference:+.{shown_digits(cell)}f}{percent}"


def shown_digits(cell: Cell) -> int:
    """Decimals of a measured value: as printed, but at least two."""
    return max(cell.digits, 2)


def heading(group: str, column: str) -> str:
    """The name of a column in one line."""
    return f"{group}: {column}" if group else column


def _unit(cell: Cell) -> str:
    return "x" if cell.unit == "x" else ""
