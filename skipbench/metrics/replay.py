"""Replays the rounds of a run with other costs: what its records say of accepted tokens, skip sets,
rows and contexts stays, and only the seconds of a draft step and of a verification are exchanged.

Adaptation, drafts that are looked up, and the host's work of a round have no passes that a record
tells: they keep their time in passes of vanilla.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from skipbench.errors import SkipbenchError
from skipbench.metrics.costs import Costs
from skipbench.runs.record import Round, Sample, Verified
from skipbench.skipset import SkipSet


@dataclass(frozen=True)
class Replayed:
    """Seconds of decoding, without prefill, summed over the samples; `tokens` of the rounds."""

    tokens: int
    vanilla_tokens: int
    vanilla_pass_s: float
    vanilla_other_s: float
    draft_s: float
    verify_s: float
    adapt_s: float
    other_s: float

    @property
    def method_s(self) -> float:
        return self.draft_s + self.verify_s + self.adapt_s + self.other_s

    @property
    def vanilla_s(self) -> float:
        return self.vanilla_pass_s + self.vanilla_other_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.method_s

    @property
    def tokens_per_s_vanilla(self) -> float:
        return self.vanilla_tokens / self.vanilla_s

    @property
    def speedup(self) -> float:
        return self.tokens_per_s / self.tokens_per_s_vanilla


def measured(samples: Sequence[Sample]) -> Replayed:
    """What the run's own clock counted."""
    sound = [s for s in samples if s.lossless != "failed"]
    ours = [s.method.seconds for s in sound]
    return Replayed(
        sum(r.emitted for s in sound for r in s.method.rounds),
        sum(r.emitted for s in sound for r in s.vanilla.rounds),
        sum(s.vanilla.seconds.verify for s in sound),
        sum(s.vanilla.seconds.decode - s.vanilla.seconds.verify for s in sound),
        *(sum(getattr(x, phase) for x in ours) for phase in ("draft", "verify", "adapt", "other")),
    )


def computed(samples: Sequence[Sample], costs: Costs) -> Replayed:
    """The passes of a run at given costs; adaptation and host work are none.

    Raises:
        SkipbenchError: no sample decoded anything.
    """
    sound = [s for s in samples if s.lossless != "failed"]
    vanilla_s = draft_s = verify_s = 0.0
    for sample in sound:
        at: float = sample.prompt_tokens
        for round_ in sample.vanilla.rounds:
            vanilla_s += costs.verify_s(at, 1, Verified())
            at += round_.emitted
        at, before = sample.prompt_tokens, 1
        for round_, skip, how in rounds_with_sets(sample, costs.layers):
            if skip is not None:
                draft_s += costs.draft_s(at, round_.steps, skip, how)
            rows = 1 + round_.nodes + how.extra_rows
            drafted = skip is not None and round_.steps > 0
            verify_s += costs.verify_s(at, rows, how, drafted, 1 if drafted else before)
            before = rows
            at += round_.emitted
    found = measured(samples)
    if not found.tokens or not found.vanilla_tokens or not vanilla_s:
        raise SkipbenchError("the run holds no decoded tokens; nothing can be projected")
    return Replayed(found.tokens, found.vanilla_tokens, vanilla_s, 0.0, draft_s, verify_s, 0.0, 0.0)


def project(samples: Sequence[Sample], there: Costs, here: Costs | None = None) -> Replayed:
    """The run's seconds on another machine.

    Args:
        there: costs of that machine.
        here: costs of the machine of the run: then each phase keeps its ratio of measured to
            computed seconds over that of vanilla, which holds the host's work and the kernels that
            reach less of the roofline. Without it every pass takes what `there` says.
    """
    far, own = computed(samples, there), measured(samples)
    if not own.vanilla_pass_s:
        raise SkipbenchError("the run has no times of vanilla; nothing can be projected")
    scale = far.vanilla_pass_s / own.vanilla_pass_s
    drafted, verified = far.draft_s or own.draft_s * scale, far.verify_s
    if here is not None:
        near = computed(samples, here)
        vanilla = own.vanilla_pass_s / near.vanilla_pass_s
        drafted *= own.draft_s / near.draft_s / vanilla if near.draft_s else 1.0
        verified *= own.verify_s / near.verify_s / vanilla
    return Replayed(
        far.tokens,
        far.vanilla_tokens,
        far.vanilla_pass_s,
        own.vanilla_other_s * scale,
        drafted,
        verified,
        own.adapt_s * scale,
        own.other_s * scale,
    )


def best_length(samples: Sequence[Sample], costs: Costs, most: int) -> list[tuple[int, float]]:
    """Draft lengths 1 .. `most` with the speedup that each would have at a fixed length, best
    first.

    A token of step i is accepted as often, behind accepted ones, as the run's i-th was; beyond its
    longest draft, as its last was.
    """
    rounds = [r for s in samples for r in s.method.rounds if r.steps]
    chance = list[float]()
    for step in range(most):
        reached = [r for r in rounds if r.chain >= step and r.steps > step]
        if len(reached) >= 5 or not chance:
            chance.append(_mean([float(r.chain > step) for r in reached]) if reached else 0.0)
        else:
            chance.append(chance[-1])
    skips = [
        skip
        for s in samples
        for _, skip, _ in rounds_with_sets(s, costs.layers)
        if skip is not None
    ]
    context = _mean([s.prompt_tokens + len(s.vanilla.tokens) / 2 for s in samples])
    one = costs.verify_s(context, 1, Verified())
    found, along, expected = list[tuple[int, float]](), 1.0, 1.0
    for length in range(1, most + 1):
        along *= chance[length - 1]
        expected += along
        draft = _mean([costs.draft_s(context, length, skip, Verified()) for skip in skips])
        seconds = draft + costs.verify_s(context, 1 + length, Verified(), True)
        found.append((length, expected * one / seconds))
    return sorted(found, key=lambda pair: -pair[1])


def rounds_with_sets(
    sample: Sample, layers: int
) -> Iterator[tuple[Round, SkipSet | None, Verified]]:
    """The rounds with the set that each drafted with, `None` where drafts need no pass, and how
    each was verified: a plain chain where a record of an earlier version does not say.
    """
    changes = sample.trace.get("skip") or ([[0, sample.skip]] if sample.skip else [])
    sets = {int(at): SkipSet.parse(text, layers) for at, text in changes}
    hows = {int(at): Verified(*how) for at, *how in sample.trace.get("verified", [])}
    current, how = None, Verified()
    for number, round_ in enumerate(sample.method.rounds):
        current, how = sets.get(number, current), hows.get(number, how)
        yield round_, current, how


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
