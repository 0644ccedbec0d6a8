"""How the rows of a table compare: which is better than all others beyond the noise, and which are the same decoding."""

from collections.abc import Hashable, Mapping
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Interval = tuple[float, float]
BASELINE = "vanilla"
BOLD = (
    "bold: a measured speedup whose 95 % interval lies above 1 and above the intervals of all other measured rows of the "
    "same model and data; vanilla never"
)


def winner(rows: Mapping[Key, tuple[str, Interval | None]]) -> Key | None:
    """The row to print in bold by the rule `BOLD`, of `{row: (method, interval of its speedup)}`; None where there is none.

    A single row is better than nothing, and one without an interval may hide any value. Vanilla needs none: it is the 1.
    """
    ends = {row: interval for row, (_, interval) in rows.items() if interval is not None}
    if len(rows) < 2 or any(row not in ends for row, (method, _) in rows.items() if method != BASELINE):
        return None
    first = max((row for row in ends if rows[row][0] != BASELINE), key=lambda row: ends[row][0], default=None)
    others = [high for row, (_, high) in ends.items() if row != first]
    return first if first is not None and ends[first][0] > max([1.0, *others]) else None
