"""Acceptance of drafts, and the modelled speeds: TPT (KnapSpec) and E(Spd) (SWIFT)."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean
from typing import Any

from skipbench.draft_plan import DraftPlan
from skipbench.metrics import formulas
from skipbench.runs.measures import ExpectedSpeedup
from skipbench.runs.record import Arm, Round, Verified

PassSeconds = Callable[[DraftPlan | None], float]
"""Seconds of a pass of one row at one context, by its plan; `None` for the full model."""
PLAIN = Verified()


def over(numerator: float | None, denominator: float | None) -> float | None:
    """The ratio; None without one of the two, or over zero."""
    return None if numerator is None or not denominator else numerator / denominator


def mean(values: Iterable[float]) -> float | None:
    """The mean; None of no values."""
    listed = list(values)
    return fmean(listed) if listed else None


def alpha(rounds: Sequence[Round]) -> float | None:
    """Accepted draft tokens / draft steps, pooled (SWIFT B.3)."""
    return over(sum(r.accepted for r in rounds), sum(r.steps for r in rounds))


def alpha_cond(rounds: Sequence[Round]) -> float | None:
    """KnapSpec's alpha (2.1, Eq. 1): without the tokens after a rejected one."""
    accepted = sum(r.accepted for r in rounds)
    return over(accepted, accepted + sum(r.accepted < r.steps for r in rounds))


def accepted_by_position(rounds: Sequence[Round]) -> list[float]:
    """Share of the rounds with at least i + 1 draft steps whose chain was accepted so far."""
    longest = max((r.steps for r in rounds), default=0)
    return [fmean(r.chain > i for r in rounds if r.steps > i) for i in range(longest)]


def speculative_decoding(drafts: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Drafts (length, accepted), one per verification and at least one, by vLLM's names: its
    `metrics.speculative_decoding`.
    """
    longest, counts = max(length for length, _ in drafts), Counter(drafts)
    drafted, accepted = (sum(each) for each in zip(*drafts, strict=True))
    return {
        "num_spec_tokens": longest,
        "num_spec_steps": len(drafts),
        "num_draft_tokens": drafted,
        "num_accepted_draft_tokens": accepted,
        "mean_acceptance_length": 1 + accepted / len(drafts),
        "draft_acceptance_rate": over(accepted, drafted),
        "acceptance_histogram": [sum(a == n for _, a in drafts) for n in range(longest + 1)],
        "acceptance_histogram_by_draft_length": {
            k: [counts[k, n] for n in range(k + 1)] for k in sorted({k for k, _ in counts})
        },
    }


def rounds_with_sets(arm: Arm, layers: int) -> Iterator[tuple[Round, DraftPlan | None, Verified]]:
    """Rounds, each with the skip set that drafted (None without a pass) and its verification."""
    sets = {int(at): DraftPlan.parse(text, layers) for at, text in arm.skip_changes}
    hows = {int(at): Verified(*how) for at, *how in arm.trace.get("verified", [])}
    skip, how = None, PLAIN
    for number, round_ in enumerate(arm.rounds):
        skip, how = sets.get(number, skip), hows.get(number, how)
        yield round_, skip, how


def _mean_step_cost(
    arms: Sequence[Arm], layers: int, cost: Callable[[DraftPlan], float]
) -> float | None:
    """Mean of `cost` over draft steps: 0 of those without a pass, None of a draft model's."""
    if any("draft_model" in arm.trace for arm in arms):
        return None
    costs = list[float]()
    for arm in arms:
        drafts = rounds_with_sets(arm, layers)
        costs += [r.steps * cost(skip) for r, skip, _ in drafts if skip is not None]
    return over(math.fsum(costs), sum(r.steps for arm in arms for r in arm.rounds))


def draft_passes(arms: Sequence[Arm], layers: int) -> int | None:
    """Draft steps that were forward passes; None where the trace does not distinguish them."""
    passes = 0
    for arm in arms:
        if "draft_model" in arm.trace:
            passes += sum(r.steps for r in arm.rounds)
        elif "source" in arm.trace and arm.trace.get("sets"):
            return None
        else:
            drafts = rounds_with_sets(arm, layers)
            passes += sum(r.steps for r, skip, _ in drafts if skip is not None)
    return passes


def rows(arms: Sequence[Arm], layers: int) -> int:
    """Rows of all verifications: the pending token, the drafted ones and a method's own."""
    drafts = (each for arm in arms for each in rounds_with_sets(arm, layers))
    return sum(1 + r.nodes + how.extra_rows for r, _, how in drafts)


def expected_M(rounds: Sequence[Round]) -> float | None:
    """Tokens per round by KnapSpec Eq. 1: conditional alpha and mean draft length of the rounds
    that drafted; the others emit one token. None without rounds, or with fewer steps than accepted.
    Less than M where a stop rule ends drafts at doubtful tokens (docs/records.md).
    """
    drafted = [r for r in rounds if r.steps]
    if not rounds or sum(r.accepted for r in drafted) > sum(r.steps for r in drafted):
        return None
    if not drafted:
        return 1.0
    tokens = formulas.expected_tokens(alpha_cond(drafted) or 0.0, fmean(r.steps for r in drafted))
    return (tokens * len(drafted) + len(rounds) - len(drafted)) / len(rounds)


def tokens_per_time(
    arms: Sequence[Arm], rounds: Sequence[Round], layers: int, pass_s: PassSeconds | None
) -> float | None:
    """TPT in tokens/s (KnapSpec Eq. 4); None without `pass_s`, or without a rate of acceptance."""
    M = expected_M(rounds)
    if pass_s is None or M is None:
        return None
    draft_s = _mean_step_cost(arms, layers, pass_s)
    if draft_s is None and any(r.steps for r in rounds):
        return None
    steps = fmean(r.steps for r in rounds)
    return M / (steps * (draft_s or 0.0) + pass_s(None))


def expected_speedup(
    arms: Sequence[Arm], rounds: Sequence[Round], layers: int, vanilla_s_per_token: float | None
) -> ExpectedSpeedup:
    """E(Spd) (SWIFT Eq. 6) by the paper's cost of a draft step, c = 1 - r, and by measured ones."""
    M, accepted = mean(r.emitted for r in rounds), alpha([r for r in rounds if r.steps])
    # with nothing accepted Eq. 6, which infers the draft steps from accepted tokens, is 0 / 0
    if not accepted or M is None or M < 1:
        return ExpectedSpeedup()
    paper_c = _mean_step_cost(arms, layers, lambda z: 1 - z.ratio)
    draft_s = math.fsum(arm.seconds.draft for arm in arms)
    verify_s = math.fsum(arm.seconds.verify for arm in arms)
    c = over(over(draft_s, sum(r.steps for r in rounds)), vanilla_s_per_token)
    v = over(over(verify_s, len(rounds)), vanilla_s_per_token)
    return ExpectedSpeedup(
        paper=None if paper_c is None else formulas.expected_speedup(M, accepted, paper_c),
        measured_cost=formulas.expected_speedup(M, accepted, c, v) if c is not None and v else None,
    )
