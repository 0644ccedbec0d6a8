"""`metrics.json` from the samples of a run. Sums are exact (`fsum`), so the order of the samples
does not matter.

A value that cannot be computed is None, never nan and never a 0 that stands for nothing.
"""

import dataclasses
import math
from collections.abc import Iterable, Sequence
from typing import Any

from skipbench.metrics.acceptance import (
    Latency,
    acceptance_rates,
    accepted_by_position,
    expected_M,
    expected_speedup,
    mean,
    over,
    skipped,
    tokens_per_time,
)
from skipbench.metrics.interval import Interval, paired_ratio_interval
from skipbench.metrics.scores import mean_scores, score_equal, score_summary
from skipbench.metrics.waits import waits
from skipbench.runs.record import Arm, Sample, Seconds


def summarise(
    samples: Sequence[Sample],
    layers: int,
    latency: Latency | None,
    roofline_s_per_token: float | None,
    peak_memory_bytes: int | None,
) -> dict[str, Any]:
    """The contents of `metrics.json`. Failed samples are counted and left out of every other
    number.

    Args:
        samples: the run's records, in any order.
        layers: layers of the target model.
        latency: of sub-layers, in seconds, for `tpt`.
        roofline_s_per_token: the least time that memory bandwidth allows a forward on one token.
        peak_memory_bytes: passed through.

    Raises:
        SkipbenchError: a sample's skip set does not fit a model of `layers` layers.
    """
    sound = [s for s in samples if s.lossless != "failed"]
    rounds = [r for s in sound for r in s.method.rounds]
    acceptance = acceptance_rates(sound, rounds)
    vanilla_s_per_token = over(
        _decode_s(s.vanilla for s in sound), _emitted(s.vanilla for s in sound)
    )
    method_s_per_token = over(_decode_s(s.method for s in sound), _emitted(s.method for s in sound))
    return {
        "samples": len(sound),
        "rounds": len(rounds),
        **acceptance,
        "M_eq1": expected_M(rounds),
        "accepted_by_position": accepted_by_position(rounds),
        "tpt": tokens_per_time(sound, rounds, layers, latency),
        "tpt_vanilla": over(1, latency.target_s()) if latency and vanilla_s_per_token else None,
        "tokens_per_s": over(1, method_s_per_token),
        "tokens_per_s_vanilla": over(1, vanilla_s_per_token),
        "expected_speedup": expected_speedup(
            sound, rounds, acceptance, layers, vanilla_s_per_token
        ),
        "speedup": {"micro": over(vanilla_s_per_token, method_s_per_token), **_speedup(sound)},
        "speedup_by_search": _by_search(sound),
        "seconds": {
            f.name: math.fsum(getattr(s.method.seconds, f.name) for s in sound) if sound else None
            for f in dataclasses.fields(Seconds)
        },
        "lossless": {
            name: sum(s.lossless == label for s in samples)
            for name, label in (
                ("identical", "identical"),
                ("ties", "tie"),
                ("diverged", "diverged"),
                ("unchecked", "unchecked"),
                ("sampled", "sampled"),
                ("failed", "failed"),
            )
        },
        "looped": sum(s.method.looped for s in sound),
        **waits([s.method for s in sound], ""),
        **waits([s.vanilla for s in sound], "_vanilla"),
        "skipped": skipped(sound, layers),
        "score": score_summary(sound, mean_scores),
        "score_equal": score_equal(sound),
        "peak_memory_bytes": peak_memory_bytes,
        "roofline_fraction_vanilla": over(roofline_s_per_token, vanilla_s_per_token),
    }


def _emitted(arms: Iterable[Arm]) -> int:
    """Tokens of the rounds; the one that prefill emits is not among them."""
    return sum(arm.emitted for arm in arms)


def _decode_s(arms: Iterable[Arm]) -> float:
    return math.fsum(arm.seconds.decode for arm in arms)


def speedups(samples: Iterable[Sample]) -> dict[int, float]:
    """Speedup of each prompt by its index, of one process; those that failed or decoded nothing
    have none.
    """
    return {s.index: s.speedup for s in samples if s.speedup is not None}


def paired(samples: Iterable[Sample]) -> tuple[float | None, Interval | None]:
    """The speedup of a run: the geometric mean over prompts of vanilla's seconds per token over the
    method's, and its 95 % interval; None where nothing was decoded, or one prompt only.
    """
    ratios = list(speedups(samples).values())
    return paired_ratio_interval(ratios) if ratios else (None, None)


def _speedup(sound: Sequence[Sample]) -> dict[str, Any]:
    """The aggregations of per-sample rates that the papers use, over samples in which both arms
    decoded something.
    """
    pairs = ((s.vanilla.s_per_token, s.method.s_per_token) for s in sound)
    timed = [(v, m) for v, m in pairs if v and m]
    ratio, interval = paired(sound)
    return {
        # SWIFT: mean tokens/s
        "macro": over(mean(1 / m for _, m in timed), mean(1 / v for v, _ in timed)),
        # Self-SD: mean s/token
        "s_per_token": over(mean(v for v, _ in timed), mean(m for _, m in timed)),
        "paired": ratio,
        "ci95": None if interval is None else list(interval),
        "end_to_end": over(
            _end_to_end(s.method for s in sound), _end_to_end(s.vanilla for s in sound)
        ),
    }


def _by_search(sound: Sequence[Sample]) -> dict[str, Any] | None:
    """Speedups of the prompts that began while the method searched its skip set, and of those
    behind the search; None for a method that does not search while it decodes.
    """
    parts = {
        name: [s for s in sound if s.trace.get("searching") == [lasts]]
        for name, lasts in (("during", True), ("after", False))
    }
    if not parts["during"]:
        return None
    return {
        name: {"samples": len(part), **{k: _speedup(part)[k] for k in ("paired", "ci95")}}
        for name, part in parts.items()
    }


def _end_to_end(arms: Iterable[Arm]) -> float | None:
    found = list(arms)
    return over(
        sum(len(arm.tokens) for arm in found), math.fsum(arm.seconds.total for arm in found)
    )
