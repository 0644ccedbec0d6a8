"""The one model of a table: builders make it (`features`, `runs`, `paper`), `formats` writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal


@dataclass(frozen=True)
class Head:
    """The head of a column. Labels name the row; labels and texts are set flush left."""

    name: str  # may be empty
    group: str = ""  # neighbours of one group stand under one spanning head
    kind: Literal["label", "text", "number"] = "number"
    extra: bool = False  # in files, not on a terminal


@dataclass(frozen=True)
class TableCell:
    """A text in the grid, in the markup of no format."""

    text: str
    bold: bool = False
    mark: int | None = None  # number of the table's footnote that explains the cell, from 1


@dataclass(frozen=True)
class TableRow:
    """A line of cells, one per column."""

    cells: tuple[TableCell, ...]
    kind: str = ""  # class of the row in HTML: "measured", "paper" or "difference"
    first: bool = True  # starts a group of lines that stay together on a page


@dataclass(frozen=True)
class Grid:
    """Rows under the same columns; `settings` hold for all of them."""

    columns: tuple[Head, ...]
    rows: tuple[TableRow, ...]
    settings: str = ""

    @property
    def labels(self) -> int:
        """Number of the columns of labels, which come first."""
        return sum(column.kind == "label" for column in self.columns)

    def groups(self, first: int = 0) -> list[tuple[str, int]]:
        """Name and size of each group of the columns from `first` on."""
        by_name = groupby(self.columns[first:], lambda column: column.group)
        return [(name, len(list(columns))) for name, columns in by_name]


@dataclass(frozen=True)
class Table:
    """A table and everything that is printed with it."""

    name: str  # unique, as an HTML id and a LaTeX label
    title: str
    grids: tuple[Grid, ...]  # each has columns of its own
    lines: tuple[Mapping[str, Any], ...]  # of its CSV: its columns, unrounded; None is missing
    records: tuple[Mapping[str, Any], ...] = ()  # all that is known of them, for a CSV of its own
    source: str = ""  # sentence below the title
    cautions: tuple[str, ...] = ()  # why the numbers are no replication, or not comparable
    footnotes: tuple[str, ...] = ()  # texts of the cells' marks, in their order
    remarks: tuple[str, ...] = ()  # notes on the table as a whole
    definitions: tuple[tuple[str, str], ...] = ()  # column and meaning
    provenance: tuple[str, ...] = ()  # where the runs come from
