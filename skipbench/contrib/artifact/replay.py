"""Replays the rounds of a run with other costs: accepted tokens, skip sets, rows and contexts are
those of its records, and only the seconds of draft steps and verifications are exchanged.

Records hold no passes of adaptation, of drafts that are looked up, and of the host's work: these
keep their time in passes of vanilla.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skipbench.contrib.artifact.costs import Costs
from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import rounds_with_sets
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


def project(samples: Sequence[Sample], costs: Costs) -> Replayed:
    """Seconds on a machine of these `costs`. Raises SkipbenchError where nothing was decoded."""
    (vanilla_s, draft_s, verify_s), own = _passes_s(samples, costs), measured(samples)
    if not own.tokens or not own.vanilla_tokens or not vanilla_s:
        raise SkipbenchError("the run holds no decoded tokens; nothing can be projected")
    if not own.vanilla_pass_s:
        raise SkipbenchError("the run has no times of vanilla; nothing can be projected")
    scale = vanilla_s / own.vanilla_pass_s
    return replace(
        own,
        vanilla_pass_s=vanilla_s,
        vanilla_other_s=own.vanilla_other_s * scale,
        draft_s=draft_s or own.draft_s * scale,
        verify_s=verify_s,
        adapt_s=own.adapt_s * scale,
        other_s=own.other_s * scale,
    )
