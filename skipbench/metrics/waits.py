"""What a user waits for, and the energy that it takes: percentiles over prompts and tokens."""

import bisect
import itertools
import math
from collections.abc import Sequence

from skipbench.runs.measures import Percentiles
from skipbench.runs.record import Arm

PERCENTILES = (50, 90, 99)


def ttft_s(arms: Sequence[Arm]) -> Percentiles | None:
    """Seconds to the first token."""
    return percentiles([(arm.seconds.prefill, 1) for arm in arms])


def s_per_output_token(arms: Sequence[Arm]) -> Percentiles | None:
    """Seconds per output token after the first.

    A round's seconds are shared by the tokens that it emitted: one that emits three tokens in 30 ms
    counts as three tokens of 10 ms.
    """
    timed = (
        pair
        for arm in arms
        if len(arm.round_s) == len(arm.rounds)
        for pair in zip(arm.round_s, arm.rounds, strict=True)
    )
    return percentiles([(seconds / r.emitted, r.emitted) for seconds, r in timed if r.emitted])


def joules_per_token(arms: Sequence[Arm]) -> float | None:
    """Energy of prefill and decoding per token, where a counter was read."""
    counted = [arm for arm in arms if arm.joules is not None]
    tokens = sum(len(arm.tokens) for arm in counted)
    return math.fsum(arm.joules or 0.0 for arm in counted) / tokens if tokens else None


def percentiles(weighted: Sequence[tuple[float, int]]) -> Percentiles | None:
    """The smallest value that at least so many percent of the weight do not exceed."""
    ordered = sorted(weighted)
    ends = list(itertools.accumulate(weight for _, weight in ordered))
    if not ends:
        return None
    p50, p90, p99 = (
        ordered[bisect.bisect_left(ends, share * ends[-1] / 100)][0] for share in PERCENTILES
    )
    return Percentiles(p50=p50, p90=p90, p99=p99)
