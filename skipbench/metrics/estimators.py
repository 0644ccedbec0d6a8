"""Speedups as the papers' scripts compute them, prefill included; sources: docs/metrics.md."""

import contextlib
import math
from collections.abc import Sequence

from skipbench.metrics.acceptance import mean, over
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.runs.measures import Estimate, Estimators
from skipbench.runs.record import Arm, Sample


def estimators(samples: Sequence[Sample]) -> Estimators:
    """Each paper's speedup of the samples that did not fail."""
    sound = [s for s in samples if s.lossless != "failed"]
    prompts = [[s] for s in sound]
    return Estimators(
        swift=_estimate(prompts),
        self_sd=_estimate(prompts, s_per_token=True),
        knapspec=_estimate(prompts, eos=False),
        clasp=_estimate(_questions(sound)),
    )


def _questions(samples: Sequence[Sample]) -> list[list[Sample]]:
    """The turns of each question; a sample without turns is a question."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.question or sample.id, []).append(sample)
    return [*found.values()]


def _rate(arms: Sequence[Arm], s_per_token: bool, eos: bool) -> float | None:
    """Tokens/s, or s/token, of all turns of a question."""
    left_out = 0 if eos else sum(arm.finish == "eos" for arm in arms)
    tokens = sum(len(arm.tokens) for arm in arms) - left_out
    seconds = math.fsum(arm.seconds.total for arm in arms)
    return over(seconds, tokens) if s_per_token else over(tokens, seconds)


def _estimate(
    questions: Sequence[Sequence[Sample]], s_per_token: bool = False, eos: bool = True
) -> Estimate:
    """The ratio of the arms' mean tokens/s, or s/token, and its interval by the delta method."""
    pairs = list[tuple[float, float]]()
    for turns in questions:
        vanilla = _rate([s.vanilla for s in turns], s_per_token, eos)
        method = _rate([s.method for s in turns], s_per_token, eos)
        if vanilla is not None and method is not None:
            pairs.append((vanilla, method))
    vanilla, method = (mean(pair[arm] for pair in pairs) for arm in (0, 1))
    if not vanilla or not method:
        return Estimate()
    speedup, sign = (vanilla / method, -1) if s_per_token else (method / vanilla, 1)
    interval = None
    influence = [sign * (m / method - v / vanilla) for v, m in pairs]
    with contextlib.suppress(OverflowError, ValueError):  # a prompt of thousands
        interval = paired_ratio_interval([speedup * math.exp(x) for x in influence])[1]
    per_s = [over(1, rate) if s_per_token else rate for rate in (method, vanilla)]
    return Estimate(
        speedup=speedup, ci95=interval, tokens_per_s=per_s[0], tokens_per_s_vanilla=per_s[1]
    )
