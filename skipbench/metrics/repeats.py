"""The metrics of a cell that several processes decoded."""

import math
from collections.abc import Sequence
from statistics import fmean

from msgspec import UNSET
from msgspec.structs import replace

from skipbench.metrics.estimators import estimators
from skipbench.metrics.interval import repeated_ratio_interval
from skipbench.metrics.summary import ArmScores, summarise
from skipbench.runs.measures import GroupScores, Metrics, Score, Speedup
from skipbench.runs.record import Sample, speedups


def summarise_repeats(runs: Sequence[tuple[Sequence[Sample], Metrics]], layers: int) -> Metrics:
    """The metrics of all processes together, with the intervals of the two-level design.

    Args:
        runs: of each process its samples and its own metrics.
        layers: layers of the target model.
    """
    pooled = summarise([s for samples, _ in runs for s in samples], layers, None, None, None)
    metrics = [each for _, each in runs]
    peaks = [m.peak_memory_bytes for m in metrics if m.peak_memory_bytes is not None]
    copies = [m.variant_bytes for m in metrics if m.variant_bytes]
    return replace(
        pooled,
        estimators=estimators([samples for samples, _ in runs]),
        tpt=_mean([m.tpt for m in metrics]),
        tpt_vanilla=_mean([m.tpt_vanilla or None for m in metrics]),
        roofline_fraction_vanilla=_mean([m.roofline_fraction_vanilla for m in metrics]),
        score=_score([m.score for m in metrics if m.score]),
        score_rules=metrics[0].score_rules,
        profiled=metrics[0].profiled,
        peak_memory_bytes=max(peaks, default=None),
        variant_bytes=max(copies, default=UNSET),
        repeats=len(runs),
        prompts=len({s.index for samples, _ in runs for s in samples}),
        speedup=_speedup(pooled.speedup, [samples for samples, _ in runs]),
    )


def _speedup(pooled: Speedup, runs: Sequence[Sequence[Sample]]) -> Speedup:
    """`pooled` with the intervals of the two-level design, over common questions."""
    whole = [speedups(samples) for samples in runs]
    decoding = [speedups(samples, prefill=False) for samples in runs]
    if not (common := set.intersection(*map(set, whole))):
        return replace(pooled, e2e_ci95=None, ci95=None)
    (e2e, ends), (decoded, ci95) = map(repeated_ratio_interval, (whole, decoding))
    by_question = {q: r for q, r in (pooled.by_question or {}).items() if q in common}
    found = replace(pooled, e2e=e2e, e2e_ci95=ends, paired=decoded, ci95=ci95)
    return replace(found, by_question=by_question, by_process=whole)


def _score(scores: Sequence[Score]) -> Score | None:
    """Means over the processes, name by name, of the first one's names."""
    if not scores:
        return None
    by: dict[str, dict[str, GroupScores]] = {group: {} for group in scores[0].by}
    for group, labels in scores[0].by.items():
        for label, first in labels.items():
            same = [s.by[group][label] for s in scores if label in s.by.get(group, {})]
            by[group][label] = GroupScores(**_arms(same), samples=first.samples)
    return Score(**_arms(scores), by=by)


def _arms(scores: Sequence[Score | GroupScores]) -> ArmScores:
    arms = {"vanilla": [s.vanilla for s in scores], "method": [s.method for s in scores]}
    return {k: {n: _mean([s.get(n) for s in arm]) for n in arm[0]} for k, arm in arms.items()}


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean where every process has a number, else the first one's."""
    numbers = [v for v in values if v is not None and math.isfinite(v)]
    alike = len(numbers) == len(values) and len(set(numbers)) > 1
    return fmean(numbers) if alike else values[0]
