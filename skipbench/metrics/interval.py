"""Mean and 95 % interval of paired per-sample speedups, of one process or of several.

All of it is computed on the logarithms of the ratios, so the mean is geometric. The coverage at the
numbers of samples of the tables: `scripts/coverage.py`.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

CONFIDENCE = 0.95
Interval = tuple[float, float]


def paired_ratio_interval(ratios: Sequence[float]) -> tuple[float, Interval | None]:
    """Geometric mean of per-sample ratios and Student's t interval of it.

    It says how far the mean over other prompts of this kind may be, in this process. Of two ratios
    it is very wide, 12.7 standard errors on either side; one ratio says nothing about the spread:
    None.

    Raises:
        ValueError: there is no ratio, or one is not positive and finite.
    """
    logs = _logs(ratios)
    center = math.fsum(logs) / len(logs)
    if len(logs) == 1:
        return math.exp(center), None
    half = _quantile(len(logs) - 1) * math.sqrt(_variance(logs) / len(logs))
    return math.exp(center), _ends(center, half)


def repeated_ratio_interval(
    repetitions: Sequence[Mapping[int, float]],
) -> tuple[float, Interval | None]:
    """Geometric mean over prompts and processes, and the interval of the two-level design.

    A ratio is a mean, an effect of its prompt, an effect of its process and a rest. The variance of
    the mean is that of the prompts' means over their number, plus what the means of the processes
    vary beyond it. The quantile is the mean of Student's t of both levels, weighed by these two
    parts (Welch-Cochran).

    Args:
        repetitions: of each process, the ratio of every prompt by its index. Prompts that a process
            lacks are left out of all.

    Raises:
        ValueError: no prompt is in all processes, or a ratio is not positive and finite.
    """
    common = sorted(set.intersection(*(set(found) for found in repetitions)))
    if len(repetitions) == 1 or len(common) < 2:
        return paired_ratio_interval([found[i] for found in repetitions for i in common])
    rows = [_logs([found[i] for i in common]) for found in repetitions]
    n, R = len(common), len(rows)
    of_process = [statistics.fmean(row) for row in rows]
    of_prompt = [statistics.fmean(column) for column in zip(*rows, strict=True)]
    center = statistics.fmean(of_process)
    rest = math.fsum(
        (x - of_process[r] - of_prompt[i] + center) ** 2
        for r, row in enumerate(rows)
        for i, x in enumerate(row)
    ) / ((n - 1) * (R - 1))
    prompts = _variance(of_prompt) / n
    processes = max(0.0, _variance(of_process) - rest / n) / R
    variance = prompts + processes
    if not variance:
        return math.exp(center), _ends(center, 0.0)
    t = (_quantile(n - 1) * prompts + _quantile(R - 1) * processes) / variance
    return math.exp(center), _ends(center, t * math.sqrt(variance))


def _logs(ratios: Sequence[float]) -> list[float]:
    if not ratios or not all(math.isfinite(r) and r > 0 for r in ratios):
        raise ValueError(f"need positive finite ratios, got {list(ratios)}")
    return [math.log(r) for r in ratios]


def _variance(logs: Sequence[float]) -> float:
    # that of statistics is exact in fractions, and takes hundreds of times as long
    center = math.fsum(logs) / len(logs)
    return math.fsum((x - center) ** 2 for x in logs) / (len(logs) - 1)


def _quantile(freedom: int) -> float:
    """Student's t that leaves `CONFIDENCE` between it and its negative."""
    from scipy.special import stdtrit  # slow to import, and most commands never come here

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _ends(center: float, half: float) -> Interval | None:
    try:
        return math.exp(center - half), math.exp(center + half)
    except OverflowError:  # ratios a hundred orders of magnitude apart
        return None
