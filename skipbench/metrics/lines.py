"""Lines through measured points: of prices by rows, context, or the size of a draft."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from statistics import fmean
from typing import Any

Line = Sequence[tuple[float, float]]  # points of a line, sorted


def line_of(points: Iterable[tuple[float, float]]) -> Line:
    """Points with the mean of all values at each place."""
    groups = groupby(sorted(points), itemgetter(0))
    return [(x, fmean(y for _, y in group)) for x, group in groups]


def interpolate(line: Line, x: Any, slope: float | None = None) -> Any:
    """Linear between the points; beyond the ends on along the last two there, or with `slope`."""
    import numpy as np  # slow

    (xs, ys), ends = np.transpose(line), np.array([slope or 0.0] * 2)
    if slope is None and len(line) > 1:
        ends = (np.diff(ys) / np.diff(xs))[[0, -1]]
    beyond = ends[0] * np.minimum(0, x - xs[0]) + ends[1] * np.maximum(0, x - xs[-1])
    return np.interp(x, xs, ys) + beyond


def curve(seconds: Mapping[int, float], most: int) -> list[float]:
    """Price of 0 to `most` rows in passes of one row: linear between measured sizes, never falling;
    beyond the last size, the mean slope goes on.
    """
    import numpy as np

    sizes = sorted(seconds)
    prices = np.maximum.accumulate([seconds[n] / seconds[sizes[0]] for n in sizes])
    slope = (prices[-1] - prices[0]) / max(1, sizes[-1] - sizes[0])
    line = [*zip(sizes, prices, strict=True)]
    return [0.0, *interpolate(line, np.arange(1, most + 1), slope).tolist()]
