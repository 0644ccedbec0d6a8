"""Speedups as the papers' scripts compute them, prefill included; sources: docs/metrics.md."""

import contextlib
import math
from collections.abc import Sequence
from typing import NamedTuple

from skipbench.metrics.acceptance import mean, over
from skipbench.metrics.interval import paired_ratio_interval, repeated_ratio_interval
from skipbench.runs.measures import Estimate, Estimators
from skipbench.runs.record import Arm, Sample


class _Timed(NamedTuple):
    """Tokens and seconds of both arms on a prompt, or on all turns of a question."""

    vanilla: tuple[int, float]
    method: tuple[int, float]


_Process = Sequence[tuple[int, _Timed]]  # by index of the prompt or first turn


def estimators(processes: Sequence[Sequence[Sample]]) -> Estimators:
    """Each paper's speedup of the samples that did not fail; `processes`: samples of each."""
    sound = [[s for s in samples if s.lossless != "failed"] for samples in processes]
    prompts = [[(s.index, _timed([s], eos=True)) for s in each] for each in sound]
    without_eos = [[(s.index, _timed([s], eos=False)) for s in each] for each in sound]
    questions = [
        [(turns[0].index, _timed(turns, eos=True)) for turns in _questions(each)] for each in sound
    ]
    return Estimators(
        swift=_estimate(prompts),
        self_sd=_estimate(prompts, s_per_token=True),
        knapspec=_estimate(without_eos),
        clasp=_estimate(questions),
    )


def _questions(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The turns of each question; a sample without turns is a question."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.question or sample.id, []).append(sample)
    return [*found.values()]


def _timed(samples: Sequence[Sample], eos: bool) -> _Timed:
    def summed(arms: Sequence[Arm]) -> tuple[int, float]:
        left_out = 0 if eos else sum(arm.finish == "eos" for arm in arms)
        tokens = sum(len(arm.tokens) for arm in arms) - left_out
        return tokens, math.fsum(arm.seconds.total for arm in arms)

    return _Timed(summed([s.vanilla for s in samples]), summed([s.method for s in samples]))


def _estimate(processes: Sequence[_Process], s_per_token: bool = False) -> Estimate:
    """The ratio of the arms' mean tokens/s, or s/token, and its interval by the delta method."""

    def rates(timed: _Timed) -> tuple[float, float] | None:
        (tokens, seconds), (others, spent) = timed
        if s_per_token:
            return (seconds / tokens, spent / others) if tokens and others else None
        return (tokens / seconds, others / spent) if seconds and spent else None

    rated = [[(i, pair) for i, t in each if (pair := rates(t))] for each in processes]
    pairs = [pair for each in rated for _, pair in each]
    vanilla, method = mean(v for v, _ in pairs), mean(m for _, m in pairs)
    if not vanilla or not method:
        return Estimate()
    speedup, sign = (vanilla / method, -1) if s_per_token else (method / vanilla, 1)
    interval = None
    influence = [[(i, sign * (m / method - v / vanilla)) for i, (v, m) in each] for each in rated]
    with contextlib.suppress(OverflowError, ValueError):  # no prompt in all, or one of thousands
        ratios = [[(i, speedup * math.exp(x)) for i, x in each] for each in influence]
        if len(ratios) > 1:
            interval = repeated_ratio_interval([{str(i): r for i, r in each} for each in ratios])[1]
        else:
            interval = paired_ratio_interval([ratio for _, ratio in ratios[0]])[1]
    per_s = [over(1, rate) if s_per_token else rate for rate in (method, vanilla)]
    return Estimate(
        speedup=speedup, ci95=interval, tokens_per_s=per_s[0], tokens_per_s_vanilla=per_s[1]
    )
