"""Replays the rounds of a run with other costs: accepted tokens, skip sets, rows and contexts are
those of its records, and only the seconds of draft steps and verifications are exchanged.

Records hold no passes of adaptation, of drafts that are looked up, and of the host's work: these
keep their time in passes of vanilla.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import conditional_acceptance, rounds_with_sets
from skipbench.metrics.costs import Costs
from skipbench.runs.record import Sample


@dataclass(frozen=True)
class Replayed:
    """Seconds of decoding, without prefill, and counts, summed over the samples."""

    tokens: int
    vanilla_tokens: int
    rounds: int
    vanilla_pass_s: float
    vanilla_other_s: float
    draft_s: float
    verify_s: float
    adapt_s: float
    other_s: float

    @property
    def vanilla_s(self) -> float:
        return self.vanilla_pass_s + self.vanilla_other_s

    @property
    def decode_s(self) -> float:
        return self.draft_s + self.verify_s + self.adapt_s + self.other_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.decode_s

    @property
    def tokens_per_s_vanilla(self) -> float:
        return self.vanilla_tokens / self.vanilla_s

    @property
    def micro(self) -> float:
        """Speedup of all samples together: the ratio of totals, not the headline `speedup`."""
        return self.tokens_per_s / self.tokens_per_s_vanilla


def measured(samples: Sequence[Sample]) -> Replayed:
    """The seconds that the run's clock counted."""
    sound = [s for s in samples if s.lossless != "failed"]
    ours = [s.method.seconds for s in sound]
    return Replayed(
        sum(s.method.emitted for s in sound),
        sum(s.vanilla.emitted for s in sound),
        sum(len(s.method.rounds) for s in sound),
        sum(s.vanilla.seconds.verify for s in sound),
        sum(s.vanilla.seconds.decode - s.vanilla.seconds.verify for s in sound),
        *(sum(getattr(x, phase) for x in ours) for phase in ("draft", "verify", "adapt", "other")),
    )


def _passes_s(samples: Sequence[Sample], costs: Costs) -> tuple[float, float, float]:
    """Seconds of vanilla's passes, of draft steps and of verifications at given costs."""
    vanilla_s = draft_s = verify_s = 0.0
    for sample in (s for s in samples if s.lossless != "failed"):
        at = sample.prompt_tokens
        for round_ in sample.vanilla.rounds:
            vanilla_s += costs.verify_s(at, 1)
            at += round_.emitted
        at, before = sample.prompt_tokens, 1
        for round_, skip, how in rounds_with_sets(sample, costs.layers):
            rows = 1 + round_.nodes + how.extra_rows
            if skip is not None and round_.steps:
                draft_s += costs.draft_s(at, round_.steps, skip, how)
                before = 0
            verify_s += costs.verify_s(at, rows, how, before)
            before = rows
            at += round_.emitted
    return vanilla_s, draft_s, verify_s


def project(samples: Sequence[Sample], there: Costs, here: Costs | None = None) -> Replayed:
    """The run's seconds on another machine.

    Args:
        there: costs of that machine.
        here: costs of the run's machine: then each phase keeps its ratio of measured to computed
            seconds over that of vanilla. Without it every pass takes what `there` says.

    Raises SkipbenchError where no sample decoded anything, or vanilla's seconds are missing.
    """
    (vanilla_s, draft_s, verify_s), own = _passes_s(samples, there), measured(samples)
    if not own.tokens or not own.vanilla_tokens or not vanilla_s:
        raise SkipbenchError("the run holds no decoded tokens; nothing can be projected")
    if not own.vanilla_pass_s:
        raise SkipbenchError("the run has no times of vanilla; nothing can be projected")
    scale = vanilla_s / own.vanilla_pass_s
    draft_s = draft_s or own.draft_s * scale
    if here is not None:
        near_vanilla_s, near_draft_s, near_verify_s = _passes_s(samples, here)
        vanilla = own.vanilla_pass_s / near_vanilla_s
        draft_s *= own.draft_s / near_draft_s / vanilla if near_draft_s else 1.0
        verify_s *= own.verify_s / near_verify_s / vanilla
    return replace(
        own,
        vanilla_pass_s=vanilla_s,
        vanilla_other_s=own.vanilla_other_s * scale,
        draft_s=draft_s,
        verify_s=verify_s,
        adapt_s=own.adapt_s * scale,
        other_s=own.other_s * scale,
    )


def best_length(samples: Sequence[Sample], costs: Costs, longest: int) -> list[tuple[int, float]]:
    """Draft lengths 1 .. `longest` with the speedup of each at a fixed length, best first.

    A token of step i is accepted as often, after accepted ones, as the run's i-th was; beyond its
    longest draft, as its last was.
    """
    rounds = [r for s in samples for r in s.method.rounds if r.steps]
    drafts = (skip for s in samples for _, skip, _ in rounds_with_sets(s, costs.layers))
    sets = [skip for skip in drafts if skip is not None]
    context = fmean(s.prompt_tokens + len(s.vanilla.tokens) / 2 for s in samples)
    one, ranked = costs.verify_s(context, 1), list[tuple[int, float]]()
    chance, along, expected = 0.0, 1.0, 1.0
    counts = iter(conditional_acceptance((r.steps, r.chain) for r in rounds))
    for length in range(1, longest + 1):
        reached, accepted = next(counts, (0, 0))
        if reached >= 5 or (reached and length == 1):
            chance = accepted / reached
        along *= chance
        expected += along
        draft_s = fmean(costs.draft_s(context, length, skip) for skip in sets) if sets else 0.0
        seconds = draft_s + costs.verify_s(context, 1 + length, before=0)
        ranked.append((length, expected * one / seconds))
    return sorted(ranked, key=lambda pair: -pair[1])
