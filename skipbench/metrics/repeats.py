"""The metrics of a cell that several processes decoded."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from skipbench.metrics.interval import paired_ratio_interval, repeated_ratio_interval
from skipbench.metrics.summary import speedups, summarise
from skipbench.runs.record import Sample

MEAN_OF = ("tpt", "tpt_vanilla", "roofline_fraction_vanilla", "score")
"""Quantities that each process has computed from more than its samples."""


def summarise_repeats(
    runs: Sequence[tuple[Sequence[Sample], Mapping[str, Any]]], layers: int
) -> dict[str, Any]:
    """The contents of a `metrics.json` for all processes together.

    Counts, seconds and rates are those of all samples; `speedup.ci95` is that of the two-level
    design. New names: `repeats`, the number of processes, `prompts`, and `speedup.by_repeat`.

    Args:
        runs: of each process its samples and its own metrics.
        layers: layers of the target model.
    """
    pooled = summarise([s for samples, _ in runs for s in samples], layers, None, None, None)
    timed = [speedups(samples) for samples, _ in runs]
    paired, interval = _paired(timed)
    metrics = [own for _, own in runs]
    peaks = [m["peak_memory_bytes"] for m in metrics if m.get("peak_memory_bytes") is not None]
    return {
        **pooled,
        **_stopped([m["until_ci"] for m in metrics if m.get("until_ci")]),
        **{name: _mean([m.get(name) for m in metrics]) for name in MEAN_OF},
        "peak_memory_bytes": max(peaks, default=None),
        "repeats": len(runs),
        "prompts": len({s.index for samples, _ in runs for s in samples}),
        "speedup": {
            **pooled["speedup"],
            "paired": paired,
            "ci95": None if interval is None else list(interval),
            "by_repeat": [m["speedup"]["paired"] for m in metrics],
        },
    }


def _stopped(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """`until_ci` of all processes: each stops for itself, prompts are summed, and the widest
    interval counts.
    """
    if not found:
        return {}
    widths = [f["half_width"] for f in found]
    return {
        "until_ci": {
            "wanted": found[0]["wanted"],
            "half_width": None if None in widths else max(widths),
            "samples": sum(f["samples"] for f in found),
            "of": sum(f["of"] for f in found),
            "stopped": any(f["stopped"] for f in found),
        }
    }


def _paired(
    timed: Sequence[Mapping[int, float]],
) -> tuple[float | None, tuple[float, float] | None]:
    """Mean and interval of the speedup; no interval where the processes have no prompt in
    common.
    """
    if set.intersection(*(set(found) for found in timed)):
        return repeated_ratio_interval(timed)
    ratios = [ratio for found in timed for ratio in found.values()]
    return (paired_ratio_interval(ratios)[0] if ratios else None), None


def _mean(values: Sequence[Any]) -> Any:
    """Mean of numbers, name by name in mappings; what is no number is the first one's."""
    first = values[0]
    if isinstance(first, Mapping):
        return {
            name: _mean([v.get(name) for v in values if isinstance(v, Mapping)]) for name in first
        }
    numbers = [v for v in values if isinstance(v, int | float) and math.isfinite(v)]
    alike = len(numbers) == len(values) and not any(isinstance(v, bool) for v in numbers)
    return fmean(numbers) if alike and len(set(numbers)) > 1 else first
