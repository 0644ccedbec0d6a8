"""The line through measured points, of prices by rows or by context."""

import bisect
from collections.abc import Sequence

Line = Sequence[tuple[float, float]]  # points, sorted by place


def interpolate(line: Line, x: float) -> float:
    """Linear between the points; beyond them on with their mean slope.

    >>> [interpolate([(1, 1.0), (2, 1.5), (5, 3.0)], x) for x in (1, 1.5, 3, 9)]
    [1.0, 1.25, 2.0, 5.0]
    """
    (x0, y0), (x1, y1) = line[0], line[-1]
    from_x, from_y = line[0] if x < x1 else line[-1]
    if x0 < x < x1:
        at = bisect.bisect([place for place, _ in line], x)
        (x0, y0), (x1, y1) = line[at - 1], line[at]
        from_x, from_y = x0, y0
    return from_y + (y1 - y0) / (x1 - x0 or 1) * (x - from_x)
