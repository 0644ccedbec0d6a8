"""Acceptance of drafts, and the modelled speeds: TPT (KnapSpec) and E(Spd) (SWIFT)."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from skipbench.metrics.costs import PLAIN, Latency
from skipbench.metrics.formulas import (
    expected_speedup_measured,
    expected_speedup_paper,
    expected_tokens,
)
from skipbench.runs.measures import ExpectedSpeedup, Skipped
from skipbench.runs.record import Round, Sample, Verified
from skipbench.skipset import SkipSet


def over(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def mean(values: Iterable[float]) -> float | None:
    listed = list(values)
    return fmean(listed) if listed else None


def alpha(rounds: Sequence[Round]) -> float | None:
    """Accepted draft tokens / draft steps, pooled (SWIFT B.3)."""
    return over(sum(r.accepted for r in rounds), sum(r.steps for r in rounds))


def alpha_cond(rounds: Sequence[Round]) -> float | None:
    """Chance that a draft token is accepted once verification comes to it: KnapSpec's alpha (2.1,
    Eq. 1).

    Draft tokens after a rejected one count neither way, unlike in `alpha`. None where nothing was
    drafted.
    """
    accepted = sum(r.accepted for r in rounds)
    return over(accepted, accepted + sum(r.accepted < r.steps for r in rounds))


def accepted_by_position(rounds: Sequence[Round]) -> list[float]:
    """Share of the rounds with at least i + 1 draft steps whose step i + 1 was accepted on the
    chain.
    """
    longest = max((r.steps for r in rounds), default=0)
    return [fmean(r.chain > i for r in rounds if r.steps > i) for i in range(longest)]


def skipped(sound: Sequence[Sample], layers: int) -> Skipped:
    sets = [SkipSet.parse(s.skip, layers) for s in sound]
    return Skipped(
        attention=mean(len(z.attention) for z in sets),
        mlp=mean(len(z.mlp) for z in sets),
        ratio=mean(z.ratio for z in sets),
    )


def rounds_with_sets(
    sample: Sample, layers: int
) -> Iterator[tuple[Round, SkipSet | None, Verified]]:
    """The rounds with the skip set that each drafted with, and how each was verified.

    The set is that of the trace, else that at the end of the sample; None for drafts without a
    forward pass. A verification that a record of an earlier version does not describe is plain.
    """
    changes = sample.trace.get("skip") or ([[0, sample.skip]] if sample.skip else [])
    sets = {int(at): SkipSet.parse(text, layers) for at, text in changes}
    hows = {int(at): Verified(*how) for at, *how in sample.trace.get("verified", [])}
    skip, how = None, PLAIN
    for number, round_ in enumerate(sample.method.rounds):
        skip, how = sets.get(number, skip), hows.get(number, how)
        yield round_, skip, how


def _mean_step_cost(
    sound: Sequence[Sample], layers: int, cost: Callable[[SkipSet], float]
) -> float | None:
    """Mean of `cost` over draft steps, by the set that drafted: 0 for steps without a forward pass,
    None for those of a draft model, which latencies of the target do not price.

    A method that drafts with several sets in one round traces them under `sets`, and per round the
    steps of each under `steps_by_set`.
    """
    if any("draft_model" in sample.trace for sample in sound):
        return None
    costs, steps = list[float](), 0
    for sample in sound:
        steps += sum(r.steps for r in sample.method.rounds)
        if "steps_by_set" in sample.trace:
            each = [cost(SkipSet.parse(text, layers)) for text in sample.trace["sets"]]
            for counts in sample.trace["steps_by_set"]:
                costs += [n * c for n, c in zip(counts, each, strict=True)]
            continue
        drafts = rounds_with_sets(sample, layers)
        costs += [0.0 if skip is None else r.steps * cost(skip) for r, skip, _ in drafts]
    return over(math.fsum(costs), steps)


def expected_M(rounds: Sequence[Round]) -> float | None:
    """Tokens per round by KnapSpec Eq. 1, to compare with the measured M.

    Rounds that drafted have the conditional alpha and the mean draft length; the others emit one
    token. None without rounds, and where steps are fewer than the tokens along one path, for which
    Eq. 1 has no meaning.

    Eq. 1 takes tokens to be accepted independently. Where a stop rule ends drafts at doubtful
    tokens they are not, and it gives less than M: `scripts/eq1.py`.
    """
    drafted = [r for r in rounds if r.steps]
    if not rounds or sum(r.accepted for r in drafted) > sum(r.steps for r in drafted):
        return None
    if not drafted:
        return 1.0
    tokens = expected_tokens(alpha_cond(drafted) or 0.0, fmean(r.steps for r in drafted))
    return (tokens * len(drafted) + len(rounds) - len(drafted)) / len(rounds)


def tokens_per_time(
    sound: Sequence[Sample], rounds: Sequence[Round], layers: int, latency: Latency | None
) -> float | None:
    M = expected_M(rounds)
    if latency is None or M is None:
        return None
    draft_s = _mean_step_cost(sound, layers, latency.pass_s)
    if draft_s is None and any(r.steps for r in rounds):
        return None
    steps = fmean(r.steps for r in rounds)
    return M / (steps * (draft_s or 0.0) + latency.pass_s())


def expected_speedup(
    sound: Sequence[Sample],
    rounds: Sequence[Round],
    M: float | None,
    alpha: float | None,
    layers: int,
    vanilla_s_per_token: float | None,
) -> ExpectedSpeedup:
    # With nothing accepted Eq. 6 is 0 / 0: it infers the number of draft steps from the accepted
    # ones.
    if not alpha or M is None or M < 1:
        return ExpectedSpeedup()
    paper_c = _mean_step_cost(sound, layers, lambda z: 1 - z.ratio)
    draft_s = math.fsum(s.method.seconds.draft for s in sound)
    verify_s = math.fsum(s.method.seconds.verify for s in sound)
    c = over(over(draft_s, sum(r.steps for r in rounds)), vanilla_s_per_token)
    v = over(over(verify_s, len(rounds)), vanilla_s_per_token)
    return ExpectedSpeedup(
        paper=None if paper_c is None else expected_speedup_paper(M, alpha, paper_c),
        measured_cost=expected_speedup_measured(M, alpha, c, v) if c is not None and v else None,
    )
