"""The one model of a table: builders make it (`features`, `runs`, `paper`), `formats` writes it."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal


@dataclass(frozen=True)
class Column:
    """The head of a column; neighbours with the same `group` stand under one spanning head. Labels
    name the row; labels and texts are set flush left, numbers flush right.
    """

    name: str
    group: str = ""
    kind: Literal["label", "text", "number"] = "number"


@dataclass(frozen=True)
class Cell:
    """A text in the grid.

    Args:
        text: plain, in the markup of no format.
        bold: set in bold.
        mark: number of the table's footnote that explains the cell, from 1.
        run: folder of the run that the value is from; the HTML page links to it.
    """

    text: str
    bold: bool = False
    mark: int | None = None
    run: str | None = None


@dataclass(frozen=True)
class Row:
    """A line of cells, one per column.

    Args:
        cells: in the order of the columns.
        kind: class of the row in HTML: "measured", "paper" or "difference".
        first: starts a group of lines that stay together on a page.
    """

    cells: tuple[Cell, ...]
    kind: str = ""
    first: bool = True


@dataclass(frozen=True)
class Grid:
    """Rows under the same columns; `settings` hold for all of them."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    settings: str = ""

    @property
    def labels(self) -> int:
        """Number of the columns of labels, which come first."""
        return sum(column.kind == "label" for column in self.columns)

    def groups(self, first: int = 0, last: int | None = None) -> list[tuple[str, int]]:
        """Name and size of each group of the columns `first` to `last - 1`."""
        by_name = groupby(self.columns[first:last], lambda column: column.group)
        return [(name, len(list(columns))) for name, columns in by_name]


@dataclass(frozen=True)
class Table:
    """A table and everything that is printed with it.

    Args:
        name: unique, as an HTML id and a LaTeX label.
        title: heading or caption.
        grids: one or more, of which each has columns of its own.
        records: lines of the CSV, unrounded; a missing value is None or left out.
        source: sentence below the title.
        cautions: why the numbers are no replication, or not comparable.
        footnotes: texts of the cells' marks, in their order.
        remarks: notes on the table as a whole.
        definitions: column and meaning.
        provenance: where the runs come from.
    """

    name: str
    title: str
    grids: tuple[Grid, ...]
    records: tuple[Mapping[str, Any], ...]
    source: str = ""
    cautions: tuple[str, ...] = ()
    footnotes: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    definitions: tuple[tuple[str, str], ...] = ()
    provenance: tuple[str, ...] = ()
