"""`metrics.json` from the turns of an arm in any order; what cannot be computed is None."""

import bisect
import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from operator import itemgetter
from statistics import fmean
from typing import Any

from msgspec import convert
from msgspec.structs import replace

from skipbench.draft_plan import DraftPlan
from skipbench.metrics import acceptance
from skipbench.metrics.acceptance import PassSeconds, mean, over
from skipbench.metrics.estimators import estimators
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.prices import PARTS, Latencies, Prices
from skipbench.runs import measures
from skipbench.runs.measures import GroupScores, Metrics, Percentiles, Score, Scores
from skipbench.runs.record import VANILLA, Arm, Round, Seconds, Turn, first, paired
from skipbench.runs.run import Run

PERCENTILES = (50, 90, 99)


def summarise(
    turns: Sequence[Turn], arm: str, layers: int, pass_s: PassSeconds | None = None
) -> Metrics:
    """`metrics.json` of an arm, whose failed turns count in `lossless.failed` alone. Raises
    SkipbenchError for a skip set that does not fit a model of `layers` layers.

    `pass_s` is for `tpt`.
    """
    sound = [turn for turn in turns if turn.arms[arm].lossless != "failed"]
    arms, vanilla = ([turn.arms[name] for turn in sound] for name in (arm, VANILLA))
    rounds = [r for one in arms for r in one.rounds]
    labels = Counter(str(turn.arms[arm].lossless) for turn in turns)
    phases = Seconds.__struct_fields__ if sound else ()
    seconds = {p: math.fsum(getattr(one.seconds, p) for one in arms) for p in phases}
    scored = [(theirs.score, own.score) for theirs, own in zip(vanilla, arms, strict=True)]
    return Metrics(
        samples=len(sound),
        **_acceptance(arms, rounds, layers),
        **_speeds(arms),
        tpt=acceptance.tokens_per_time(arms, rounds, layers, pass_s),
        expected_speedup=acceptance.expected_speedup(arms, rounds, layers, _s_per_token(vanilla)),
        speedup=_speedup(sound, arm),
        estimators=estimators(sound, arm),
        seconds=measures.PhaseSeconds(**seconds),
        lossless=measures.Lossless(ties=labels.pop("tie", 0), **labels),
        looped=sum(one.looped for one in arms),
        skipped=_skipped(arms, layers),
        score=score_summary(sound, arm, mean_scores),
        score_equal=all(x == y for x, y in scored) if any(x for x, _ in scored) else None,
        setup_s=mean(took for one in arms for took in one.trace.get("setup_s", [])),
        vanilla=_baseline(sound, pass_s),
    )


def measured(turns: Sequence[Turn], arm: str, layers: int, model: Latencies | None) -> Metrics:
    """`summarise` with the seconds of the model's parts, at the mean context of the turns."""
    if model is None or not turns:
        return summarise(turns, arm, layers)
    lengths = (turn.prompt_tokens + len(turn.arms[VANILLA].tokens) / 2 for turn in turns)
    context, prices = round(fmean(lengths)), Prices(model=model)
    metrics = summarise(turns, arm, layers, partial(prices.pass_s, 1, context))
    of_parts = {f"{part}_s": prices.part_s(part, context) for part in PARTS}
    profiled = measures.Profiled(**of_parts, layers=model.layers)
    baseline = replace(metrics.baseline, profiled=profiled)
    return replace(metrics, profiled=profiled, vanilla=baseline)


def first_of(run: Run, limit: int | None) -> Run:
    """A run over the first `limit` questions of its dataset, all where it is None; without metrics
    where it has fewer than it was asked for.
    """
    turns, layers = first(run.turns, limit), run.provenance.layers
    if not run.has(limit) or layers is None or (run.metrics and run.metrics.turns == len(turns)):
        return run
    parts = run.provenance.parts
    known = convert(parts, Latencies) if parts else None
    return replace(run, kept=turns, metrics=measured(turns, run.arm, layers, known))


def _baseline(sound: Sequence[Turn], pass_s: PassSeconds | None) -> Metrics:
    """What vanilla, as fast as itself and without drafts, has of the numbers of `summarise`."""
    arms = [turn.arms[VANILLA] for turn in sound]
    s_per_token = _s_per_token(arms)
    decoded = None if s_per_token is None else 1.0
    return Metrics(
        samples=len(sound),
        M=decoded,
        **_speeds(arms),
        tpt=over(1, pass_s(None)) if pass_s and s_per_token else None,
        speedup=measures.Speedup(e2e=decoded),
        estimators=estimators(sound, VANILLA),
        score=score_summary(sound, VANILLA, mean_scores),
    )


def _speeds(arms: Sequence[Arm]) -> dict[str, Any]:
    """The fields of `Metrics` on rates, and on times that a user waits for."""
    return {
        "tokens_per_s": over(1, _s_per_token(arms)),
        "ttft_s": percentiles([(arm.seconds.prefill, 1) for arm in arms]),
        "s_per_output_token": _s_per_output_token(arms),
    }


def _acceptance(arms: Sequence[Arm], rounds: Sequence[Round], layers: int) -> dict[str, Any]:
    """The fields of `Metrics` on rounds, drafts and what was accepted of them."""
    drafted = [r for r in rounds if r.steps]
    per_sample = (acceptance.alpha(arm.rounds) for arm in arms)
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
        "draft_passes": over(acceptance.draft_passes(arms, layers), len(rounds)),
        "rows": over(acceptance.rows(arms, layers), len(rounds)),
    }


def _skipped(arms: Sequence[Arm], layers: int) -> measures.Skipped:
    plans = [DraftPlan.parse(arm.skip, layers) for arm in arms]
    return measures.Skipped(
        attention=mean(len(plan.attention) for plan in plans),
        mlp=mean(len(plan.mlp) for plan in plans),
        ratio=mean(plan.ratio for plan in plans),
    )


def _s_per_token(arms: Sequence[Arm]) -> float | None:
    """Seconds of decoding per token of the rounds; the one that prefill emits is not among them."""
    return over(math.fsum(arm.seconds.decode for arm in arms), sum(arm.emitted for arm in arms))


def _speedup(turns: Sequence[Turn], arm: str) -> measures.Speedup:
    """The speedups of an arm with and without the prefill, and their intervals, if any."""
    whole, decoding = (paired(turns, VANILLA, arm, prefill) for prefill in (True, False))
    e2e, ends = paired_ratio_interval([*whole.values()]) if whole else (None, None)
    decoded, ci95 = paired_ratio_interval([*decoding.values()]) if decoding else (None, None)
    return measures.Speedup(e2e=e2e, e2e_ci95=ends, paired=decoded, ci95=ci95, by_question=whole)


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


def mean_scores(sound: Sequence[Turn], arm: str) -> Scores:
    """Mean of each scorer over the turns that it scored."""
    pairs = (pair for turn in sound for pair in turn.arms[arm].score.items())
    finite = itertools.groupby(sorted(p for p in pairs if math.isfinite(p[1])), itemgetter(0))
    return {name: fmean(value for _, value in same) for name, same in finite}


def score_summary(
    sound: Sequence[Turn], arm: str, scores: Callable[[Sequence[Turn], str], Scores]
) -> Score:
    """`scores` of an arm over all turns, and by every label of every group."""
    by: dict[str, dict[str, GroupScores]] = {}
    for group, label in sorted({pair for turn in sound for pair in turn.groups.items()}):
        members = [turn for turn in sound if turn.groups.get(group) == label]
        found = GroupScores(means=scores(members, arm), samples=len(members))
        by.setdefault(group, {})[label] = found
    return Score(means=scores(sound, arm), by=by)
