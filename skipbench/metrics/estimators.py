"""Speedups as the papers' scripts compute them, prefill included; sources: docs/metrics.md."""

import contextlib
import math
from collections.abc import Sequence

from skipbench.metrics.acceptance import mean, over
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.runs.measures import Estimate, Estimators
from skipbench.runs.record import VANILLA, Arm, Turn


def estimators(sound: Sequence[Turn], arm: str) -> Estimators:
    """Each paper's speedup of an arm, of turns that did not fail."""
    turns, questions = [[turn] for turn in sound], dict[str, list[Turn]]()
    for turn in sound:
        questions.setdefault(turn.unit, []).append(turn)
    return Estimators(
        swift=_estimate(turns, arm),
        self_sd=_estimate(turns, arm, s_per_token=True),
        knapspec=_estimate(turns, arm, eos=False),
        clasp=_estimate([*questions.values()], arm),
    )


def _rate(arms: Sequence[Arm], s_per_token: bool, eos: bool) -> float | None:
    """Tokens/s, or s/token, of all turns of a question."""
    left_out = 0 if eos else sum(arm.finish == "eos" for arm in arms)
    tokens = sum(len(arm.tokens) for arm in arms) - left_out
    seconds = math.fsum(arm.seconds.total for arm in arms)
    return over(seconds, tokens) if s_per_token else over(tokens, seconds)


def _estimate(
    questions: Sequence[Sequence[Turn]], arm: str, s_per_token: bool = False, eos: bool = True
) -> Estimate:
    """The ratio of the arms' mean tokens/s, or s/token, and its interval by the delta method."""
    pairs = list[tuple[float, float]]()
    for turns in questions:
        vanilla = _rate([turn.arms[VANILLA] for turn in turns], s_per_token, eos)
        method = _rate([turn.arms[arm] for turn in turns], s_per_token, eos)
        if vanilla is not None and method is not None:
            pairs.append((vanilla, method))
    vanilla, method = (mean(pair[at] for pair in pairs) for at in (0, 1))
    if not vanilla or not method:
        return Estimate()
    speedup, sign = (vanilla / method, -1) if s_per_token else (method / vanilla, 1)
    interval = None
    influence = [sign * (m / method - v / vanilla) for v, m in pairs]
    if arm != VANILLA:
        with contextlib.suppress(OverflowError, ValueError):  # a prompt of thousands
            interval = paired_ratio_interval([speedup * math.exp(x) for x in influence])[1]
    rate = over(1, method) if s_per_token else method
    return Estimate(speedup=speedup, ci95=interval, tokens_per_s=rate)
