"""Geometric mean and 95 % interval of paired speedups; its coverage: docs/metrics.md."""

import math
from collections.abc import Sequence

CONFIDENCE = 0.95
FEWEST = 5  # questions below which there is no interval: their values say more
Interval = tuple[float, float]


def paired_ratio_interval(ratios: Sequence[float]) -> tuple[float, Interval | None]:
    """Geometric mean of ratios, one per question, and its interval over other questions, in this
    process: Student's t on the logarithms. None below `FEWEST` ratios. Raises ValueError for no
    ratio, or one that is not positive and finite.
    """
    if not ratios or not all(math.isfinite(r) and r > 0 for r in ratios):
        raise ValueError(f"need positive finite ratios, got {list(ratios)}")
    logs = [math.log(r) for r in ratios]
    center = math.fsum(logs) / len(logs)
    if len(logs) < FEWEST:
        return math.exp(center), None
    # statistics.variance is exact in fractions, and takes hundreds of times as long
    variance = math.fsum((x - center) ** 2 for x in logs) / (len(logs) - 1)
    half = quantile(len(logs) - 1, level(len(logs))) * math.sqrt(variance / len(logs))
    return math.exp(center), ends_of(center, half)


def level(questions: int) -> float:
    """Level of Student's t at which intervals hold in 95 % of cases where few outputs loop: 99 % up
    to 10 questions, falling to 95 % at 20.
    """
    return min(0.99, max(CONFIDENCE, 0.99 - 0.004 * (questions - 10)))


def quantile(freedom: int, confidence: float = CONFIDENCE) -> float:
    """Student's t that leaves `confidence` between it and its negative."""
    from scipy.special import stdtrit  # slow to import, and most commands never come here

    return float(stdtrit(freedom, (1 + confidence) / 2))


def ends_of(center: float, half: float) -> Interval | None:
    """The interval of a ratio from that of its logarithm; None beyond every float."""
    try:
        return math.exp(center - half), math.exp(center + half)
    except OverflowError:  # ratios a hundred orders of magnitude apart
        return None
