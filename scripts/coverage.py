"""How often 95 % intervals of a speedup hold the true one, in simulation.

    python scripts/coverage.py --runs 2000

One process: n log ratios, normal, skewed or with rare slow samples. Several processes: each prompt
and each process has an effect of its own. Beside the intervals of `skipbench.metrics.interval`
stand those that were considered instead of them.
"""

import argparse
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.stats import bootstrap, t

from skipbench.metrics.interval import paired_ratio_interval, repeated_ratio_interval

SIZES = (4, 8, 20, 40)
Logs = NDArray[np.float64]
Ends = tuple[float, float] | None
SPREAD = 0.1


def normal(rng: np.random.Generator, n: int) -> Logs:
    return rng.normal(0, SPREAD, n)


def skewed(rng: np.random.Generator, n: int) -> Logs:
    return rng.exponential(SPREAD, n) - SPREAD


def slow_samples(rng: np.random.Generator, n: int) -> Logs:
    """One in twenty is a third slower than the others."""
    return rng.normal(0, SPREAD / 3, n) - 0.4 * (rng.random(n) < 0.05) + 0.02


KINDS: dict[str, Callable[[np.random.Generator, int], Logs]] = {
    "normal": normal,
    "skewed": skewed,
    "slow samples": slow_samples,
}
LEVELS = {  # standard deviations of prompts, processes and the rest
    "prompts .1, processes .03, rest .05": (0.1, 0.03, 0.05),
    "prompts .1, processes 0, rest .05": (0.1, 0.0, 0.05),
    "prompts .02, processes .1, rest .05": (0.02, 0.1, 0.05),
    "prompts .1, processes .1, rest .02": (0.1, 0.1, 0.02),
    "prompts 0, processes 0, rest .05": (0.0, 0.0, 0.05),
}


def ours(logs: Logs, rng: np.random.Generator) -> Ends:
    return paired_ratio_interval(np.exp(logs).tolist())[1]


def bca(logs: Logs, rng: np.random.Generator) -> Ends:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = bootstrap((logs,), np.mean, method="BCa", n_resamples=999, rng=rng)
    ends = result.confidence_interval
    return math.exp(ends.low), math.exp(ends.high)


def student(logs: Logs, rng: np.random.Generator) -> Ends:
    half = float(t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1)) / math.sqrt(len(logs))
    return math.exp(logs.mean() - half), math.exp(logs.mean() + half)


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
    for _ in range(runs):
        logs = rng.normal(0, 1, n) * of_prompts + rng.normal(0, 1, (repeats, 1)) * of_processes
        ratios = np.exp(logs + rng.normal(0, 1, (repeats, n)) * rest)
        if pooled:
            ends = paired_ratio_interval(ratios.ravel().tolist())[1]
        else:
            ends = repeated_ratio_interval([dict(enumerate(row.tolist())) for row in ratios])[1]
        covered += ends is not None and ends[0] <= 1 <= ends[1]
    return covered / runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000, help="simulated cells per number")
    parser.add_argument("--repeats", type=int, nargs="+", default=[3, 5])
    given = parser.parse_args()
    head = "".join(f" | n = {n}" for n in SIZES)
    print(f"| one process: log ratios | interval{head} |\n|{'---|' * (len(SIZES) + 2)}")
    intervals = {"used here": ours, "Student's t": student, "BCa bootstrap": bca}
    for kind in KINDS:
        for name, interval in intervals.items():
            shares = (coverage_of_one(interval, kind, n, given.runs) for n in SIZES)
            print(f"| {kind} | {name} | {' | '.join(f'{100 * f:.1f} %' for f in shares)} |")
    print(f"\n| several processes | interval{head} |\n|{'---|' * (len(SIZES) + 2)}")
    for repeats in given.repeats:
        for name, levels in LEVELS.items():
            for pooled in (False, True):
                shares = (
                    coverage_of_repeats(levels, n, repeats, given.runs, pooled) for n in SIZES
                )
                told = "all ratios pooled, t" if pooled else "used here"
                shown = " | ".join(f"{100 * f:.1f} %" for f in shares)
                print(f"| {repeats} processes: {name} | {told} | {shown} |")


if __name__ == "__main__":
    main()
