"""`metrics.json` from the samples of a run in any order; what cannot be computed is None."""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from statistics import fmean
from typing import Any

from msgspec.structs import asdict

from skipbench.draft_plan import DraftPlan
from skipbench.metrics import acceptance
from skipbench.metrics.acceptance import PassSeconds, mean, over
from skipbench.metrics.estimators import estimators
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.runs import measures
from skipbench.runs.measures import GroupScores, Metrics, Percentiles, Score
from skipbench.runs.record import Arm, Round, Sample, Seconds, speedups

PERCENTILES = (50, 90, 99)
ArmScores = dict[str, measures.Scores]  # scores by arm, vanilla and method


def summarise(
    samples: Sequence[Sample],
    layers: int,
    pass_s: PassSeconds | None,
    roofline_s_per_token: float | None,
    peak_memory_bytes: int | None,
) -> Metrics:
    """The contents of `metrics.json`. Failed samples count in `lossless.failed` alone.

    Args:
        layers: layers of the target model.
        pass_s: for `tpt`.
        roofline_s_per_token: minimum time of a forward on one token by memory bandwidth.
        peak_memory_bytes: passed through.

    Raises SkipbenchError for a skip set that does not fit a model of `layers` layers.
    """
    sound = [s for s in samples if s.lossless != "failed"]
    rounds = [r for s in sound for r in s.method.rounds]
    vanilla, method = [s.vanilla for s in sound], [s.method for s in sound]
    vanilla_s_per_token, method_s_per_token = _s_per_token(vanilla), _s_per_token(method)
    labels: Counter[str] = Counter(s.lossless for s in samples)
    scores = [s.score for s in sound if s.score]
    phases = Seconds.__struct_fields__ if sound else ()
    seconds = {p: math.fsum(getattr(arm.seconds, p) for arm in method) for p in phases}
    return Metrics(
        samples=len(sound),
        **_acceptance(sound, rounds, layers),
        **_waits(method, ""),
        **_waits(vanilla, "_vanilla"),
        tpt=acceptance.tokens_per_time(sound, rounds, layers, pass_s),
        tpt_vanilla=over(1, pass_s(None)) if pass_s and vanilla_s_per_token else None,
        tokens_per_s=over(1, method_s_per_token),
        tokens_per_s_vanilla=over(1, vanilla_s_per_token),
        expected_speedup=acceptance.expected_speedup(sound, rounds, layers, vanilla_s_per_token),
        speedup=_speedup(sound),
        estimators=estimators(sound),
        seconds=measures.PhaseSeconds(**seconds),
        lossless=measures.Lossless(ties=labels.pop("tie", 0), **labels),
        looped=sum(arm.looped for arm in method),
        skipped=_skipped(sound, layers),
        score=score_summary(sound, mean_scores),
        score_equal=all(x.get("vanilla") == x.get("method") for x in scores) if scores else None,
        peak_memory_bytes=peak_memory_bytes,
        setup_s=mean(took for s in sound for took in s.trace.get("setup_s", [])),
        roofline_fraction_vanilla=over(roofline_s_per_token, vanilla_s_per_token),
    )


def _acceptance(sound: Sequence[Sample], rounds: Sequence[Round], layers: int) -> dict[str, Any]:
    """The fields of `Metrics` on rounds, drafts and what was accepted of them."""
    drafted = [r for r in rounds if r.steps]
    per_sample = (acceptance.alpha(s.method.rounds) for s in sound)
    return {
        "rounds": len(rounds),
        "M": mean(r.emitted for r in rounds),  # SWIFT B.3
        "alpha": acceptance.alpha(drafted),  # SWIFT B.3
        "alpha_macro": mean(a for a in per_sample if a is not None),
        "alpha_chain": over(sum(r.chain for r in drafted), sum(r.steps for r in drafted)),
        "alpha_cond": acceptance.alpha_cond(drafted),  # KnapSpec 2.1
        "tau": mean(r.emitted for r in drafted),  # CLaSp 4
        "tau_draft": mean(r.accepted for r in drafted),
        "M_eq1": acceptance.expected_M(rounds),
        "accepted_by_position": acceptance.accepted_by_position(rounds),
        "accepted_share": over(sum(r.accepted for r in rounds), sum(r.nodes for r in rounds)),
        "draft_steps": over(sum(r.steps for r in rounds), len(rounds)),
        "draft_passes": over(acceptance.draft_passes(sound, layers), len(rounds)),
        "rows": over(acceptance.rows(sound, layers), len(rounds)),
    }


def _waits(arms: Sequence[Arm], suffix: str) -> dict[str, Any]:
    """The fields of `Metrics` that a user waits for: times to a token."""
    return {
        f"ttft_s{suffix}": percentiles([(arm.seconds.prefill, 1) for arm in arms]),
        f"s_per_output_token{suffix}": _s_per_output_token(arms),
    }


def _skipped(sound: Sequence[Sample], layers: int) -> measures.Skipped:
    plans = [DraftPlan.parse(s.skip, layers) for s in sound]
    return measures.Skipped(
        attention=mean(len(plan.attention) for plan in plans),
        mlp=mean(len(plan.mlp) for plan in plans),
        ratio=mean(plan.ratio for plan in plans),
    )


def _s_per_token(arms: Sequence[Arm]) -> float | None:
    """Seconds of decoding per token of the rounds; the one that prefill emits is not among them."""
    return over(math.fsum(arm.seconds.decode for arm in arms), sum(arm.emitted for arm in arms))


def paired(samples: Sequence[Sample]) -> measures.Paired:
    """The speedups of a run with and without the prefill, and their intervals, if any."""
    whole, decoding = speedups(samples), speedups(samples, prefill=False)
    e2e, ends = paired_ratio_interval([*whole.values()]) if whole else (None, None)
    decoded, ci95 = paired_ratio_interval([*decoding.values()]) if decoding else (None, None)
    return measures.Paired(e2e=e2e, e2e_ci95=ends, paired=decoded, ci95=ci95, by_question=whole)


def _speedup(sound: Sequence[Sample]) -> measures.Speedup:
    """The papers' aggregations of per-sample rates, over samples in which both arms decoded."""
    pairs = ((s.vanilla.s_per_token, s.method.s_per_token) for s in sound)
    timed = [(v, m) for v, m in pairs if v and m]
    method, vanilla = [s.method for s in sound], [s.vanilla for s in sound]
    return measures.Speedup(
        micro=over(_s_per_token(vanilla), _s_per_token(method)),
        macro=over(mean(1 / m for _, m in timed), mean(1 / v for v, _ in timed)),  # SWIFT
        s_per_token=over(mean(v for v, _ in timed), mean(m for _, m in timed)),  # Self-SD
        end_to_end=over(_end_to_end(method), _end_to_end(vanilla)),
        **asdict(paired(sound)),
    )


def _end_to_end(arms: Sequence[Arm]) -> float | None:
    return over(sum(len(arm.tokens) for arm in arms), math.fsum(arm.seconds.total for arm in arms))


def _s_per_output_token(arms: Sequence[Arm]) -> Percentiles | None:
    """Seconds per output token after the first; the tokens of a round share its seconds equally."""
    known = [arm for arm in arms if len(arm.round_s) == len(arm.rounds)]
    timed = [pair for arm in known for pair in zip(arm.round_s, arm.rounds, strict=True)]
    return percentiles([(seconds / r.emitted, r.emitted) for seconds, r in timed if r.emitted])


def percentiles(weighted: Sequence[tuple[float, int]]) -> Percentiles | None:
    """The smallest values that at least 50, 90 and 99 percent of the weight do not exceed."""
    if not weighted:
        return None
    ordered = sorted(weighted)
    ends = list(itertools.accumulate(weight for _, weight in ordered))
    at = {f"p{share}": bisect.bisect_left(ends, share * ends[-1] / 100) for share in PERCENTILES}
    return Percentiles(**{name: ordered[n][0] for name, n in at.items()})


def mean_scores(sound: Sequence[Sample]) -> ArmScores:
    """Mean of each scorer over the samples that it scored, per arm."""
    means: ArmScores = {}
    for arm in ("vanilla", "method"):
        pairs = (pair for s in sound for pair in s.score.get(arm, {}).items())
        finite = itertools.groupby(sorted(p for p in pairs if math.isfinite(p[1])), itemgetter(0))
        means[arm] = {name: fmean(value for _, value in same) for name, same in finite}
    return means


def score_summary(
    sound: Sequence[Sample], scores: Callable[[Sequence[Sample]], ArmScores]
) -> Score:
    """`scores` (by arm and name) of all samples, and by every label of every group."""
    by: dict[str, dict[str, GroupScores]] = {}
    for group, label in sorted({pair for s in sound for pair in s.groups.items()}):
        members = [s for s in sound if s.groups.get(group) == label]
        by.setdefault(group, {})[label] = GroupScores(**scores(members), samples=len(members))
    return Score(**scores(sound), by=by)
