"""What was drafted and accepted, and the modelled speeds: TPT (KnapSpec) and E(Spd) (SWIFT)."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from skipbench.metrics.formulas import (
    expected_speedup_measured,
    expected_speedup_paper,
    expected_tokens,
)
from skipbench.runs.measures import ExpectedSpeedup, Skipped
from skipbench.runs.record import Round, Sample
from skipbench.skipset import SkipSet


@dataclass(frozen=True)
class Latency:
    """Seconds a sub-layer and the lm_head take on one token, profiled in the engine under test."""

    attention_s: float
    mlp_s: float
    head_s: float
    layers: int
    context_tokens: int
    """Committed tokens at which `attention_s` was measured."""

    def target_s(self) -> float:
        """Seconds of one full forward: KnapSpec's t_Target, below Eq. 4, and the lm_head."""
        return self.draft_s(0, 0)

    def draft_s(self, skipped_attention: float, skipped_mlp: float) -> float:
        """Seconds of one draft step: KnapSpec's t_Draft, below Eq. 4, and the lm_head; takes
        numbers of layers.
        """
        kept_attention, kept_mlp = self.layers - skipped_attention, self.layers - skipped_mlp
        return kept_attention * self.attention_s + kept_mlp * self.mlp_s + self.head_s


def over(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def alpha(rounds: Sequence[Round]) -> float | None:
    """Accepted draft tokens / draft steps, pooled (SWIFT B.3)."""
    return over(sum(r.accepted for r in rounds), sum(r.steps for r in rounds))


def alpha_cond(rounds: Sequence[Round]) -> float | None:
    """Chance that a draft token is accepted once verification comes to it: KnapSpec's alpha (2.1,
    Eq. 1).

    Draft tokens behind a rejected one count neither way, unlike in `alpha`. None where nothing was
    drafted.
    """
    accepted = sum(r.accepted for r in rounds)
    return over(accepted, accepted + sum(r.accepted < r.steps for r in rounds))


def accepted_by_position(rounds: Sequence[Round]) -> list[float]:
    """Of the rounds with at least i + 1 draft steps, the share whose step i + 1 was accepted on the
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


def _drafting_sets(sample: Sample, layers: int) -> Iterator[SkipSet | None]:
    """Skip set that each round drafted with, from the trace, else the set at the end of the sample.

    None: the drafts need no forward pass.
    """
    changes = sample.trace.get("skip") or ([[0, sample.skip]] if sample.skip else [])
    sets = {at: SkipSet.parse(text, layers) for at, text in changes}
    current = None
    for number in range(len(sample.method.rounds)):
        current = sets.get(number, current)
        yield current


def _mean_step_cost(
    sound: Sequence[Sample], layers: int, cost: Callable[[SkipSet], float]
) -> float | None:
    """Mean of `cost` over draft steps, by the set that drafted; 0 for one without a forward
    pass, None for those of a model of its own, which no latency of the target's sub-layers tells.

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
        for r, skip in zip(sample.method.rounds, _drafting_sets(sample, layers), strict=True):
            costs.append(0.0 if skip is None else r.steps * cost(skip))
    return over(math.fsum(costs), steps)


def expected_M(rounds: Sequence[Round]) -> float | None:
    """Tokens per round by KnapSpec Eq. 1, to be held against the measured M.

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

    def set_s(skip: SkipSet) -> float:
        return latency.draft_s(len(skip.attention), len(skip.mlp))

    draft_s = _mean_step_cost(sound, layers, set_s)
    if draft_s is None and any(r.steps for r in rounds):
        return None
    steps = fmean(r.steps for r in rounds)
    return M / (steps * (draft_s or 0.0) + latency.target_s())


def expected_speedup(
    sound: Sequence[Sample],
    rounds: Sequence[Round],
    M: float | None,
    alpha: float | None,
    layers: int,
    vanilla_s_per_token: float | None,
) -> ExpectedSpeedup:
    paper_c = _mean_step_cost(sound, layers, lambda z: 1 - z.ratio)
    # With nothing accepted Eq. 6 is 0 / 0: it infers the number of draft steps from the accepted
    # ones.
    if not alpha or M is None or M < 1:
        return ExpectedSpeedup()
    draft_s = math.fsum(s.method.seconds.draft for s in sound)
    verify_s = math.fsum(s.method.seconds.verify for s in sound)
    c = over(over(draft_s, sum(r.steps for r in rounds)), vanilla_s_per_token)
    v = over(over(verify_s, len(rounds)), vanilla_s_per_token)
    return ExpectedSpeedup(
        paper=None if paper_c is None else expected_speedup_paper(M, alpha, paper_c),
        measured_cost=expected_speedup_measured(M, alpha, c, v) if c is not None and v else None,
    )
