"""The metrics of a cell that several processes decoded."""

from collections.abc import Sequence

from msgspec import UNSET
from msgspec.structs import replace

from skipbench.metrics.acceptance import mean
from skipbench.metrics.estimators import estimators
from skipbench.metrics.interval import repeated_ratio_interval
from skipbench.metrics.summary import summarise
from skipbench.runs.measures import Metrics, Speedup
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
        tpt=mean(m.tpt for m in metrics if m.tpt),
        tpt_vanilla=mean(m.tpt_vanilla for m in metrics if m.tpt_vanilla),
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
