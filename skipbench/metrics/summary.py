"""`metrics.json` from the samples of a run. Sums are exact (`fsum`), so the order of the samples
does not matter.

A value that cannot be computed is None, never nan and never a 0 that stands for nothing.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from skipbench.metrics.formulas import (
    expected_speedup_measured,
    expected_speedup_paper,
    expected_tokens,
)
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.scores import mean_scores, score_equal, score_summary
from skipbench.metrics.waits import waits
from skipbench.runs.record import Arm, Round, Sample, Seconds
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


def summarise(
    samples: Sequence[Sample],
    layers: int,
    latency: Latency | None,
    roofline_s_per_token: float | None,
    peak_memory_bytes: int | None,
) -> dict[str, Any]:
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
    acceptance = _acceptance(sound, rounds)
    vanilla_s_per_token = _over(
        _decode_s(s.vanilla for s in sound), _emitted(s.vanilla for s in sound)
    )
    method_s_per_token = _over(
        _decode_s(s.method for s in sound), _emitted(s.method for s in sound)
    )
    return {
        "samples": len(sound),
        "rounds": len(rounds),
        **acceptance,
        "M_eq1": expected_M(rounds),
        "accepted_by_position": _accepted_by_position(rounds),
        "tpt": _tpt(sound, rounds, layers, latency),
        "tpt_vanilla": _over(1, latency.target_s()) if latency and vanilla_s_per_token else None,
        "tokens_per_s": _over(1, method_s_per_token),
        "tokens_per_s_vanilla": _over(1, vanilla_s_per_token),
        "expected_speedup": _expected_speedup(
            sound, rounds, acceptance, layers, vanilla_s_per_token
        ),
        "speedup": {"micro": _over(vanilla_s_per_token, method_s_per_token), **_speedup(sound)},
        "speedup_by_search": _by_search(sound),
        "seconds": {
            f.name: math.fsum(getattr(s.method.seconds, f.name) for s in sound) if sound else None
            for f in dataclasses.fields(Seconds)
        },
        "lossless": {
            name: sum(s.lossless == label for s in samples)
            for name, label in (
                ("identical", "identical"),
                ("ties", "tie"),
                ("diverged", "diverged"),
                ("unchecked", "unchecked"),
                ("sampled", "sampled"),
                ("failed", "failed"),
            )
        },
        "looped": sum(s.method.looped for s in sound),
        **waits([s.method for s in sound], ""),
        **waits([s.vanilla for s in sound], "_vanilla"),
        "skipped": _skipped(sound, layers),
        "score": score_summary(sound, mean_scores),
        "score_equal": score_equal(sound),
        "peak_memory_bytes": peak_memory_bytes,
        "roofline_fraction_vanilla": _over(roofline_s_per_token, vanilla_s_per_token),
    }


def _over(numerator: float | None, denominator: float | None) -> float | None:
    return None if numerator is None or not denominator else numerator / denominator


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return fmean(found) if found else None


def _emitted(arms: Iterable[Arm]) -> int:
    """Tokens of the rounds; the one that prefill emits is not among them."""
    return sum(r.emitted for arm in arms for r in arm.rounds)


def _decode_s(arms: Iterable[Arm]) -> float:
    return math.fsum(arm.seconds.decode for arm in arms)


def _alpha(rounds: Sequence[Round]) -> float | None:
    return _over(sum(r.accepted for r in rounds), sum(r.steps for r in rounds))


def alpha_cond(rounds: Sequence[Round]) -> float | None:
    """Chance that a draft token is accepted once verification comes to it: KnapSpec's alpha (2.1,
    Eq. 1).

    Draft tokens behind a rejected one count neither way, unlike in `alpha`. None where nothing was
    drafted.
    """
    accepted = sum(r.accepted for r in rounds)
    return _over(accepted, accepted + sum(r.accepted < r.steps for r in rounds))


def _acceptance(sound: Sequence[Sample], rounds: Sequence[Round]) -> dict[str, float | None]:
    """M and alpha of SWIFT B.3, alpha of KnapSpec 2.1, tau of CLaSp 4.

    A round is one verification pass.
    """
    drafted = [r for r in rounds if r.steps]
    per_sample = (_alpha(s.method.rounds) for s in sound)
    return {
        "M": _mean(r.emitted for r in rounds),
        "alpha": _alpha(drafted),
        "alpha_macro": _mean(a for a in per_sample if a is not None),
        "alpha_chain": _over(sum(r.chain for r in drafted), sum(r.steps for r in drafted)),
        "alpha_cond": alpha_cond(drafted),
        "tau": _mean(r.emitted for r in drafted),
        "tau_draft": _mean(r.accepted for r in drafted),
    }


def _accepted_by_position(rounds: Sequence[Round]) -> list[float]:
    """Of the rounds with at least i + 1 draft steps, the share whose step i + 1 was accepted on the
    chain.
    """
    longest = max((r.steps for r in rounds), default=0)
    return [fmean(r.chain > i for r in rounds if r.steps > i) for i in range(longest)]


def _skipped(sound: Sequence[Sample], layers: int) -> dict[str, float | None]:
    sets = [SkipSet.parse(s.skip, layers) for s in sound]
    return {
        "attention": _mean(len(z.attention) for z in sets),
        "mlp": _mean(len(z.mlp) for z in sets),
        "ratio": _mean(z.ratio for z in sets),
    }


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
    return _over(math.fsum(costs), steps)


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


def _tpt(
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


def _expected_speedup(
    sound: Sequence[Sample],
    rounds: Sequence[Round],
    acceptance: dict[str, float | None],
    layers: int,
    vanilla_s_per_token: float | None,
) -> dict[str, float | None]:
    M, alpha = acceptance["M"], acceptance["alpha"]
    paper_c = _mean_step_cost(sound, layers, lambda z: 1 - z.ratio)
    # With nothing accepted Eq. 6 is 0 / 0: it infers the number of draft steps from the accepted
    # ones.
    if not alpha or M is None or M < 1:
        return {"paper": None, "measured_cost": None}
    draft_s = math.fsum(s.method.seconds.draft for s in sound)
    verify_s = math.fsum(s.method.seconds.verify for s in sound)
    c = _over(_over(draft_s, sum(r.steps for r in rounds)), vanilla_s_per_token)
    v = _over(_over(verify_s, len(rounds)), vanilla_s_per_token)
    return {
        "paper": None if paper_c is None else expected_speedup_paper(M, alpha, paper_c),
        "measured_cost": expected_speedup_measured(M, alpha, c, v) if c is not None and v else None,
    }


def speedups(samples: Iterable[Sample]) -> dict[int, float]:
    """Speedup of each prompt by its index, of one process; those that failed or decoded nothing
    have none.
    """
    pairs = {s.index: _pair(s) for s in samples if s.lossless != "failed"}
    return {index: v / m for index, (v, m) in pairs.items() if v and m}


def _speedup(sound: Sequence[Sample]) -> dict[str, Any]:
    """The aggregations of per-sample rates that the papers use, over samples in which both arms
    decoded something.
    """
    timed = [(v, m) for v, m in map(_pair, sound) if v and m]
    mean, interval = paired_ratio_interval([v / m for v, m in timed]) if timed else (None, None)
    return {
        # SWIFT: mean tokens/s
        "macro": _over(_mean(1 / m for _, m in timed), _mean(1 / v for v, _ in timed)),
        # Self-SD: mean s/token
        "s_per_token": _over(_mean(v for v, _ in timed), _mean(m for _, m in timed)),
        "paired": mean,
        "ci95": None if interval is None else list(interval),
        "end_to_end": _over(
            _end_to_end(s.method for s in sound), _end_to_end(s.vanilla for s in sound)
        ),
    }


def _by_search(sound: Sequence[Sample]) -> dict[str, Any] | None:
    """Speedups of the prompts that began while the method searched its skip set, and of those
    behind the search; None for a method that does not search while it decodes.
    """
    parts = {
        name: [s for s in sound if s.trace.get("searching") == [lasts]]
        for name, lasts in (("during", True), ("after", False))
    }
    if not parts["during"]:
        return None
    return {
        name: {"samples": len(part), **{k: _speedup(part)[k] for k in ("paired", "ci95")}}
        for name, part in parts.items()
    }


def _pair(sample: Sample) -> tuple[float | None, float | None]:
    return _s_per_token(sample.vanilla), _s_per_token(sample.method)


def _s_per_token(arm: Arm) -> float | None:
    return _over(arm.seconds.decode, _emitted([arm]))


def _end_to_end(arms: Iterable[Arm]) -> float | None:
    found = list(arms)
    return _over(
        sum(len(arm.tokens) for arm in found), math.fsum(arm.seconds.total for arm in found)
    )
