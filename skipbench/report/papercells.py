"""A paper's table as data: what `papertable.py` makes and the formats write."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Cell:
    """One number of the paper, one of ours, or the reason why there is none. Values are in
    `unit`.
    """

    keys: Mapping[str, Any]
    column: str
    unit: str
    measured: float | None
    interval: tuple[float, float] | None
    published: float | None
    spread: float | None
    digits: int
    reason: str | None
    """Why nothing was measured; None only where something was."""
    note: str | None
    """What the transcription says of the printed number."""
    best_measured: bool = False
    best_published: bool = False
    run: str | None = None
    """The folder of the run behind the measured value, or of the one that should have given it."""

    @property
    def difference(self) -> float | None:
        """Measured less published."""
        return (
            None
            if self.measured is None or self.published is None
            else self.measured - self.published
        )

    @property
    def percent(self) -> float | None:
        """The difference in percent of the published value, for speedups."""
        return (
            100 * self.difference / self.published
            if self.unit == "x" and self.difference and self.published
            else None
        )


@dataclass(frozen=True)
class Row:
    """The cells of one row; `labels` are the values of the part's `keys`, as the paper prints them
    where it does.
    """

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class Part:
    """Rows under the same columns: (group, column), the group as printed or empty."""

    keys: tuple[str, ...]
    columns: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]
    settings: str


@dataclass(frozen=True)
class PaperTable:
    """A table and everything that stands under it."""

    paper: str
    table: str
    scale: str
    heading: str
    source: str
    parts: tuple[Part, ...]
    cautions: tuple[str, ...]
    """Where device, engine, data, number format or model are not the paper's."""
    notes: tuple[str, ...]
    definitions: tuple[tuple[str, str], ...]
    lossless: str
    provenance: tuple[tuple[str, str], ...]
