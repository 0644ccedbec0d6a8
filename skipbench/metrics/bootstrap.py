"""Mean and uncertainty of paired per-sample speedups."""

import math
import statistics
import warnings
from collections.abc import Sequence

CONFIDENCE = 0.95
RESAMPLES = 9999
BOOTSTRAP_FROM = 20
"""Fewest ratios for the bootstrap; for fewer its interval is too short, at 4 it covers 80 %."""


def paired_ratio_interval(
    ratios: Sequence[float], seed: int = 0
) -> tuple[float, tuple[float, float] | None]:
    """Geometric mean of per-sample ratios and its 95 % interval, computed on the logarithms.

    Below `BOOTSTRAP_FROM` ratios it is Student's t interval, from there on that of the BCa
    bootstrap, or the percentile one where BCa is undefined (all ratios equal, for example). Of two
    ratios it is very wide, 12.7 standard errors on either side; one ratio says nothing about the
    spread: None. The order of the ratios does not matter.

    Raises:
        ValueError: there is no ratio, or one is not positive and finite.
    """
    if not ratios or not all(math.isfinite(r) and r > 0 for r in ratios):
        raise ValueError(f"need positive finite ratios, got {list(ratios)}")
    # Sorted, because resampling picks positions: the same samples in another order would give
    # another interval.
    logs = sorted(math.log(r) for r in ratios)
    mean = math.exp(math.fsum(logs) / len(logs))
    if len(logs) == 1:
        return mean, None
    if len(logs) < BOOTSTRAP_FROM:
        return mean, _t_interval(logs)
    interval = _interval(logs, "BCa", seed) or _interval(logs, "percentile", seed)
    return mean, interval


def _t_interval(logs: list[float]) -> tuple[float, float] | None:
    from scipy.stats import t  # slow to import, as below

    half = (
        float(t.ppf((1 + CONFIDENCE) / 2, len(logs) - 1))
        * statistics.stdev(logs)
        / math.sqrt(len(logs))
    )
    center = math.fsum(logs) / len(logs)
    try:
        return math.exp(center - half), math.exp(center + half)
    except OverflowError:  # two ratios a hundred orders of magnitude apart
        return None


def _interval(logs: list[float], method: str, seed: int) -> tuple[float, float] | None:
    # Both are slow to import, and most commands never come here.
    import numpy as np
    from scipy.stats import bootstrap

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # degenerate data is reported by the nan below
        found = bootstrap(
            (np.array(logs),),
            np.mean,
            method=method,
            confidence_level=CONFIDENCE,
            n_resamples=RESAMPLES,
            batch=1000,  # bounds the memory: resamples of thousands of samples do not fit at once
            rng=np.random.default_rng(seed),
        ).confidence_interval
    low, high = math.exp(found.low), math.exp(found.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
