"""`metrics.json` from the samples of a run. Sums are exact (`fsum`), so the order of the samples
does not matter.

A value that cannot be computed is None, never nan and never a 0 that stands for nothing.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterable, Sequence

from skipbench.metrics.acceptance import (
    accepted_by_position,
    alpha,
    alpha_cond,
    expected_M,
    expected_speedup,
    mean,
    over,
    skipped,
    tokens_per_time,
)
from skipbench.metrics.costs import Latency
from skipbench.metrics.interval import Interval, paired_ratio_interval
from skipbench.metrics.scores import mean_scores, score_equal, score_summary
from skipbench.metrics.waits import joules_per_token, s_per_output_token, ttft_s
from skipbench.runs.measures import (
    BySearch,
    Lossless,
    Metrics,
    PhaseSeconds,
    SearchPart,
    Speedup,
)
from skipbench.runs.record import Arm, Sample, Seconds


def summarise(
    samples: Sequence[Sample],
    layers: int,
    latency: Latency | None,
    roofline_s_per_token: float | None,
    peak_memory_bytes: int | None,
) -> Metrics:
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
    drafted = [r for r in rounds if r.steps]
    M, pooled = mean(r.emitted for r in rounds), alpha(drafted)
    per_sample = (alpha(s.method.rounds) for s in sound)
    vanilla, method = [s.vanilla for s in sound], [s.method for s in sound]
    vanilla_s_per_token = over(_decode_s(vanilla), _emitted(vanilla))
    method_s_per_token = over(_decode_s(method), _emitted(method))
    labels = Counter(s.lossless for s in samples)
    return Metrics(
        samples=len(sound),
        rounds=len(rounds),
        M=M,  # SWIFT B.3
        alpha=pooled,  # SWIFT B.3
        alpha_macro=mean(a for a in per_sample if a is not None),
        alpha_chain=over(sum(r.chain for r in drafted), sum(r.steps for r in drafted)),
        alpha_cond=alpha_cond(drafted),  # KnapSpec 2.1
        tau=mean(r.emitted for r in drafted),  # CLaSp 4
        tau_draft=mean(r.accepted for r in drafted),
        M_eq1=expected_M(rounds),
        accepted_by_position=accepted_by_position(rounds),
        tpt=tokens_per_time(sound, rounds, layers, latency),
        tpt_vanilla=over(1, latency.pass_s()) if latency and vanilla_s_per_token else None,
        tokens_per_s=over(1, method_s_per_token),
        tokens_per_s_vanilla=over(1, vanilla_s_per_token),
        expected_speedup=expected_speedup(sound, rounds, M, pooled, layers, vanilla_s_per_token),
        speedup=_speedup(sound),
        speedup_by_search=_by_search(sound),
        seconds=PhaseSeconds(
            **{
                f.name: math.fsum(getattr(arm.seconds, f.name) for arm in method)
                for f in dataclasses.fields(Seconds)
                if sound
            }
        ),
        lossless=Lossless(
            identical=labels["identical"],
            ties=labels["tie"],
            diverged=labels["diverged"],
            unchecked=labels["unchecked"],
            sampled=labels["sampled"],
            failed=labels["failed"],
        ),
        looped=sum(arm.looped for arm in method),
        ttft_s=ttft_s(method),
        s_per_output_token=s_per_output_token(method),
        joules_per_token=joules_per_token(method),
        ttft_s_vanilla=ttft_s(vanilla),
        s_per_output_token_vanilla=s_per_output_token(vanilla),
        joules_per_token_vanilla=joules_per_token(vanilla),
        skipped=skipped(sound, layers),
        score=score_summary(sound, mean_scores),
        score_equal=score_equal(sound),
        peak_memory_bytes=peak_memory_bytes,
        roofline_fraction_vanilla=over(roofline_s_per_token, vanilla_s_per_token),
    )


def _emitted(arms: Sequence[Arm]) -> int:
    """Tokens of the rounds; the one that prefill emits is not among them."""
    return sum(arm.emitted for arm in arms)


def _decode_s(arms: Sequence[Arm]) -> float:
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
    ratios = [s.speedup for s in samples if s.speedup is not None]
    return paired_ratio_interval(ratios) if ratios else (None, None)


def _speedup(sound: Sequence[Sample]) -> Speedup:
    """The aggregations of per-sample rates that the papers use, over samples in which both arms
    decoded something.
    """
    pairs = ((s.vanilla.s_per_token, s.method.s_per_token) for s in sound)
    timed = [(v, m) for v, m in pairs if v and m]
    ratio, interval = paired(sound)
    method, vanilla = [s.method for s in sound], [s.vanilla for s in sound]
    return Speedup(
        micro=over(
            over(_decode_s(vanilla), _emitted(vanilla)), over(_decode_s(method), _emitted(method))
        ),
        macro=over(mean(1 / m for _, m in timed), mean(1 / v for v, _ in timed)),  # SWIFT
        s_per_token=over(mean(v for v, _ in timed), mean(m for _, m in timed)),  # Self-SD
        paired=ratio,
        ci95=interval,
        end_to_end=over(_end_to_end(method), _end_to_end(vanilla)),
    )


def _by_search(sound: Sequence[Sample]) -> BySearch | None:
    """Speedups of the prompts that began while the method searched its skip set, and of those
    after the search; None for a method that does not search while it decodes.
    """
    during, after = (
        [s for s in sound if s.trace.get("searching") == [lasts]] for lasts in (True, False)
    )
    if not during:
        return None
    parts = []
    for part in (during, after):
        ratio, interval = paired(part)
        parts.append(SearchPart(samples=len(part), paired=ratio, ci95=interval))
    return BySearch(during=parts[0], after=parts[1])


def _end_to_end(arms: Sequence[Arm]) -> float | None:
    return over(sum(len(arm.tokens) for arm in arms), math.fsum(arm.seconds.total for arm in arms))
