"""What a user waits for, and the energy that it takes: percentiles over prompts and tokens."""

import bisect
import itertools
import math
from collections.abc import Sequence
from typing import Any

from skipbench.runs.record import Arm

PERCENTILES = (50, 90, 99)


def waits(arms: Sequence[Arm], suffix: str) -> dict[str, Any]:
    """Seconds to the first token, seconds per output token, and joules per token of one arm.

    Args:
        suffix: of the names, `_vanilla` for that arm.

    A round's seconds are shared by the tokens that it emitted: one that emits three tokens in 30 ms
    counts as three tokens of 10 ms.
    """
    timed = [
        (seconds / r.emitted, r.emitted)
        for arm in arms
        if len(arm.round_s) == len(arm.rounds)
        for seconds, r in zip(arm.round_s, arm.rounds, strict=True)
        if r.emitted
    ]
    counted = [arm for arm in arms if arm.joules is not None]
    tokens = sum(len(arm.tokens) for arm in counted)
    return {
        f"ttft_s{suffix}": percentiles([(arm.seconds.prefill, 1) for arm in arms]),
        f"s_per_output_token{suffix}": percentiles(timed),
        f"joules_per_token{suffix}": math.fsum(arm.joules or 0.0 for arm in counted) / tokens
        if tokens
        else None,
    }


def percentiles(weighted: Sequence[tuple[float, int]]) -> dict[str, float] | None:
    """The least value that at least so many percent of the weight do not exceed, by `p50`, `p90`,
    `p99`; None without any.
    """
    ordered = sorted(weighted)
    ends = list(itertools.accumulate(weight for _, weight in ordered))
    if not ends:
        return None
    return {
        f"p{share}": ordered[bisect.bisect_left(ends, share * ends[-1] / 100)][0]
        for share in PERCENTILES
    }
