"""Geometric mean and 95 % interval of paired speedups; its coverage: `scripts/coverage.py`."""

import math
from collections.abc import Mapping, Sequence

CONFIDENCE = 0.95
BOOTSTRAP_FROM = 8
"""Fewest ratios for the studentised bootstrap; of fewer it is several times as wide as need be."""
RESAMPLES = 1999
BLOCK = 2**22
"""Numbers drawn at a time, which bounds the memory."""
Interval = tuple[float, float]


def paired_ratio_interval(ratios: Sequence[float]) -> tuple[float, Interval | None]:
    """Geometric mean of per-sample ratios, in any order, and its interval in this process over
    other prompts of this kind; None for one ratio.

    Below `BOOTSTRAP_FROM` ratios it is Student's t interval, of two ratios 12.7 standard errors to
    either side; from there on that of the bootstrap's t statistic, for skewed ratios, too.

    Raises ValueError for no ratio, or one that is not positive and finite.
    """
    logs = _logs(ratios)
    center = math.fsum(logs) / len(logs)
    if len(logs) == 1:
        return math.exp(center), None
    t = _quantile(len(logs) - 1)
    low, high = (_bootstrap_t(logs) if len(logs) >= BOOTSTRAP_FROM else None) or (-t, t)
    # statistics.variance is exact in fractions, and takes hundreds of times as long
    variance = math.fsum((x - center) ** 2 for x in logs) / (len(logs) - 1)
    error = math.sqrt(variance / len(logs))
    return math.exp(center), _ends(center - high * error, center - low * error)


def half_width(ratios: Sequence[float]) -> float:
    """Half the width of the interval over the mean; infinite below `BOOTSTRAP_FROM` ratios."""
    if len(ratios) < BOOTSTRAP_FROM:
        return math.inf
    mean, ends = paired_ratio_interval(ratios)
    return math.inf if ends is None else (ends[1] - ends[0]) / (2 * mean)


def repeated_ratio_interval(
    repetitions: Sequence[Mapping[int, float]],
) -> tuple[float, Interval | None]:
    """Geometric mean over prompts and processes, and the interval of the two-level design.

    The variance of the mean is that of the prompts' means over their number, plus what the means of
    the processes vary beyond it. The quantile is the mean of Student's t of both levels, weighed by
    these two parts (Welch-Cochran).

    Args:
        repetitions: ratios by prompt of each process; prompts that one lacks are left out.

    Raises ValueError where no prompt is in all, or a ratio is not positive and finite.
    """
    common = sorted(set.intersection(*map(set, repetitions)))
    if len(repetitions) == 1 or len(common) < 2:
        return paired_ratio_interval([each[i] for each in repetitions for i in common])
    import numpy as np  # slow to import

    logs = np.array([_logs([each[i] for i in common]) for each in repetitions])
    of_process, of_prompt, center = logs.mean(1, keepdims=True), logs.mean(0), float(logs.mean())
    (R, n), rests = logs.shape, logs - of_process - of_prompt + center
    rest = float((rests**2).sum()) / ((n - 1) * (R - 1))
    prompts = float(of_prompt.var(ddof=1)) / n
    processes = max(0.0, float(of_process.var(ddof=1)) - rest / n) / R
    variance = prompts + processes
    if not variance:
        return math.exp(center), _ends(center, center)
    t = (_quantile(n - 1) * prompts + _quantile(R - 1) * processes) / variance
    half = t * math.sqrt(variance)
    return math.exp(center), _ends(center - half, center + half)


def _logs(ratios: Sequence[float]) -> list[float]:
    if not ratios or not all(math.isfinite(r) and r > 0 for r in ratios):
        raise ValueError(f"need positive finite ratios, got {list(ratios)}")
    return [math.log(r) for r in ratios]


def _quantile(freedom: int) -> float:
    """Student's t that leaves `CONFIDENCE` between it and its negative."""
    from scipy.special import stdtrit  # slow to import, and most commands never come here

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _bootstrap_t(logs: Sequence[float]) -> Interval | None:
    """Percentile-t (Efron and Tibshirani 1993, 12.5); None for ratios nearly all equal."""
    import numpy as np  # slow to import, as above

    # sorted, because resampling picks positions
    values, rng = np.sort(np.asarray(logs)), np.random.default_rng(0)
    found, step = [], max(1, BLOCK // len(logs))
    for done in range(0, RESAMPLES, step):
        drawn = rng.choice(values, (min(step, RESAMPLES - done), len(logs)))
        spread = drawn.std(1, ddof=1)
        defined = spread > 1e-12 * max(1.0, abs(values).max())
        error = spread[defined] / math.sqrt(len(logs))
        found.append((drawn[defined].mean(1) - values.mean()) / error)
    t = np.concatenate(found)
    if len(t) < 0.99 * RESAMPLES:
        return None
    low, high = np.quantile(t, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return float(low), float(high)


def _ends(low: float, high: float) -> Interval | None:
    try:
        return math.exp(low), math.exp(high)
    except OverflowError:  # ratios a hundred orders of magnitude apart
        return None
