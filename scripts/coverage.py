"""How often 95 % intervals of a speedup hold the true one, in simulation.

    python scripts/coverage.py --runs 8000

One process: n log ratios, of prompts of which some loop, normal, skewed or with rare slow samples.
Several processes: each prompt and each process has an effect of its own. A row: methods whose log
ratios have the prompts in common. Beside the intervals of `skipbench.metrics` stand those that were
considered instead of them.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap, t

from skipbench.metrics.interval import paired_ratio_interval, repeated_ratio_interval
from skipbench.metrics.pairs import standings

SIZES = (5, 6, 8, 10, 14, 20, 40)
Logs = NDArray[np.float64]
Ends = tuple[float, float] | None
SPREAD = 0.1
LOOPING, LOOP = 0.18, math.log(4.5)  # share of the prompts, and how much faster they are
PROMPTS = 0.275  # standard deviation of the others; .64 of all
BESIDE = 0.089  # of the paired log ratio of two methods


def looping(rng: np.random.Generator, n: int) -> Logs:
    """Prompts as measured with copying methods: a tight cluster, and some that loop."""
    return rng.normal(0, PROMPTS, n) + LOOP * (rng.random(n) < LOOPING) - LOOP * LOOPING


def normal(rng: np.random.Generator, n: int) -> Logs:
    return rng.normal(0, SPREAD, n)


def skewed(rng: np.random.Generator, n: int) -> Logs:
    return rng.exponential(SPREAD, n) - SPREAD


def slow_samples(rng: np.random.Generator, n: int) -> Logs:
    """One in twenty is a third slower than the others."""
    return rng.normal(0, SPREAD / 3, n) - 0.4 * (rng.random(n) < 0.05) + 0.02


KINDS: dict[str, Callable[[np.random.Generator, int], Logs]] = {
    "18 % loop": looping,
    "normal": normal,
    "skewed": skewed,
    "slow samples": slow_samples,
}
LEVELS = {  # standard deviations of prompts, processes and the rest
    "prompts loop, processes .03, rest .05": (PROMPTS, 0.03, 0.05),
    "prompts .1, processes .03, rest .05": (0.1, 0.03, 0.05),
    "prompts .02, processes .1, rest .05": (0.02, 0.1, 0.05),
}


def ours(logs: Logs, rng: np.random.Generator) -> Ends:
    return paired_ratio_interval(np.exp(logs).tolist())[1]


def student(logs: Logs, rng: np.random.Generator) -> Ends:
    half = float(t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(logs.mean() - half), math.exp(logs.mean() + half)


def johnson(logs: Logs, rng: np.random.Generator) -> Ends:
    """Student's t, moved by the third moment (Johnson 1978)."""
    low, high = student(logs, rng) or (0.0, 0.0)
    n, rest = len(logs), logs - logs.mean()
    third = (rest**3).sum() * n / ((n - 1) * (n - 2))
    move = math.exp(third / (6 * n * logs.var(ddof=1)))
    return low * move, high * move


def studentised(logs: Logs, rng: np.random.Generator) -> Ends:
    """Bootstrap of the t statistic (Efron and Tibshirani 1993, 12.5)."""
    drawn = rng.choice(logs, (999, len(logs)))
    spread = drawn.std(1, ddof=1)
    known = spread > 1e-12
    values = (drawn.mean(1)[known] - logs.mean()) / spread[known]
    low, high = np.quantile(values, [0.025, 0.975]) * logs.std(ddof=1)
    return math.exp(logs.mean() - high), math.exp(logs.mean() - low)


def bca(logs: Logs, rng: np.random.Generator) -> Ends:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = bootstrap((logs,), np.mean, method="BCa", n_resamples=999, rng=rng)
    ends = result.confidence_interval
    return math.exp(ends.low), math.exp(ends.high)


INTERVALS = {
    "used here": ours,
    "Student's t": student,
    "t, moved for skewness": johnson,
    "studentised bootstrap": studentised,
    "BCa bootstrap": bca,
}


def coverage_of_one(
    interval: Callable[[Logs, np.random.Generator], Ends], kind: str, n: int, runs: int
) -> float:
    """Share of `runs` simulated cells of one process whose interval holds the true speedup, 1."""
    rng, covered = np.random.default_rng(n), 0
    for _ in range(runs):
        ends = interval(KINDS[kind](rng, n), rng)
        covered += ends is not None and ends[0] <= 1 <= ends[1]
    return covered / runs


def coverage_of_repeats(
    deviations: Sequence[float], n: int, repeats: int, runs: int, pooled: bool = False
) -> float:
    """The same for `repeats` processes over the same prompts; `pooled` takes all ratios for samples
    of one process.
    """
    rng, covered = np.random.default_rng(n), 0
    of_prompts, of_processes, rest = deviations
    names = list(map(str, range(n)))
    for _ in range(runs):
        prompts = rng.normal(0, of_prompts, n)
        if of_prompts == PROMPTS:
            prompts = looping(rng, n)
        logs = prompts + rng.normal(0, 1, (repeats, 1)) * of_processes
        ratios = np.exp(logs + rng.normal(0, 1, (repeats, n)) * rest).tolist()
        if pooled:
            ends = paired_ratio_interval([ratio for row in ratios for ratio in row])[1]
        else:
            ends = repeated_ratio_interval([dict(zip(names, r, strict=True)) for r in ratios])[1]
        covered += ends is not None and ends[0] <= 1 <= ends[1]
    return covered / runs


def coverage_of_row(
    methods: int, n: int, runs: int, repeats: int = 1, of_process: float = 0.0
) -> tuple[float, float]:
    """Shares of rows of equally fast methods: all ratios to the first are held by their intervals;
    a given method is among those not told apart from the first.

    Args:
        of_process: standard deviation of what a method has in common in all of a process.
    """
    rng, held, kept, names = np.random.default_rng(n), 0, 0, list(map(str, range(n)))
    for _ in range(runs):
        logs = looping(rng, n) + rng.normal(0, BESIDE, (methods, repeats, n))
        logs += rng.normal(0, 1, (methods, repeats, 1)) * of_process
        ratios = np.exp(logs).tolist()
        found = standings([[dict(zip(names, one, strict=True)) for one in arm] for arm in ratios])
        held += all(s.interval is None or s.interval[0] <= 1 <= s.interval[1] for s in found)
        kept += found[0].tied
    return held / runs, kept / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=8000, help="simulated cells per number")
    parser.add_argument("--repeats", type=int, nargs="+", default=[3, 5])
    given = parser.parse_args()

    def line(*cells: str | float) -> None:
        texts = (cell if isinstance(cell, str) else f"{100 * cell:.1f} %" for cell in cells)
        print(f"| {' | '.join(texts)} |", flush=True)

    def head(*names: str) -> None:
        print()
        line(*names, *(f"n = {n}" for n in SIZES))
        print(f"|{'---|' * (len(SIZES) + len(names))}")

    head("one process: log ratios", "interval")
    for kind in KINDS:
        for name, interval in INTERVALS.items():
            runs = given.runs // (8 if "bootstrap" in name else 1)  # which take long
            line(kind, name, *(coverage_of_one(interval, kind, n, runs) for n in SIZES))
    head("several processes", "interval")
    for repeats in given.repeats:
        for name, levels in LEVELS.items():
            for told, pooled in (("used here", False), ("all ratios pooled", True)):
                found = (
                    coverage_of_repeats(levels, n, repeats, given.runs // 4, pooled) for n in SIZES
                )
                line(f"{repeats} processes: {name}", told, *found)
    head("a row of equally fast methods", "share of rows")
    for methods in (4, 12):
        rows = [coverage_of_row(methods, n, given.runs // 16) for n in SIZES]
        line(f"{methods} methods", "all intervals hold", *(held for held, _ in rows))
        line(f"{methods} methods", "a given one is kept", *(kept for _, kept in rows))
    for repeats, of_process in ((2, 0.03), (3, 0.03), (3, 0.1)):
        name = f"4 methods, {repeats} processes, which differ by {of_process:g}"
        rows = [coverage_of_row(4, n, given.runs // 16, repeats, of_process) for n in SIZES]
        line(name, "all intervals hold", *(held for held, _ in rows))
        line(name, "a given one is kept", *(kept for _, kept in rows))


if __name__ == "__main__":
    main()
