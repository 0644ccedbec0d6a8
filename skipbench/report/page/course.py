"""Rounds and traces of a run over time: numbers for the charts of its page."""

from collections.abc import Sequence
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.runs.record import Sample
from skipbench.skipset import SkipSet

MOST_POINTS = 1000  # of one curve, so that hundreds of runs fit into one file
MOST_SETS = 200
# Skip sets have a map of their own; the others are the draft length again, or positions.
NOT_DRAWN = ("skip", "steps", "optimised", "step", "weights", "searching")


def courses(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One curve per quantity: `name`, `values` over all samples in order, `starts` of the samples,
    `of` how many values.

    The draft length comes from the rounds; the rest is whatever the trace holds as numbers, or as
    lists of them (their mean).
    """
    names = dict.fromkeys(
        ["draft length", "accepted", *(name for s in samples for name in s.trace)]
    )
    found = []
    for name in names:
        parts = [_values(sample, name) for sample in samples]
        values = [v for part in parts for v in part]
        if not any(len(part) > 1 for part in parts) and len(values) < 2:
            continue
        starts = [sum(map(len, parts[:i])) for i in range(len(parts))]
        shown = values[:MOST_POINTS]
        by_round = all(
            len(p) in (0, len(s.method.rounds)) for p, s in zip(parts, samples, strict=True)
        )
        starts = [s for s in starts if s < len(shown)]
        unit = "round" if by_round else "record"
        found.append(
            {"name": name, "values": shown, "starts": starts, "of": len(values), "by": unit}
        )
    return found


def _values(sample: Sample, name: str) -> list[float]:
    if name == "draft length":
        return [turn.steps for turn in sample.method.rounds]
    if name == "accepted":
        return [turn.accepted for turn in sample.method.rounds]
    if name in NOT_DRAWN:
        return []
    found = sample.trace.get(name)
    values = [_number(v) for v in found] if isinstance(found, list) else []
    return [v for v in values if v is not None]


def _number(value: Any) -> float | None:
    if isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        return round(sum(value) / len(value), 5)
    return (
        round(value, 5) if isinstance(value, int | float) and not isinstance(value, bool) else None
    )


def skip_sets(samples: Sequence[Sample], layers: int | None) -> dict[str, Any] | None:
    """The skip sets in the order of their use: `layers`, and `sets` of `[sample, round, attention,
    mlp]`; None without any.
    """
    used: list[tuple[int, int, str]] = []
    for sample in samples:
        found = sample.trace.get("skip") or ([[0, sample.skip]] if sample.skip else [])
        for at, text in found:
            if not used or used[-1][2] != text:
                used.append((sample.index, int(at), str(text)))
    if layers is None or not any(text for _, _, text in used):
        return None
    try:
        parsed = [(i, at, SkipSet.parse(text, layers)) for i, at, text in used[:MOST_SETS]]
    except SkipbenchError:
        return None
    return {
        "layers": layers,
        "of": len(used),
        "sets": [[i, at, list(s.attention), list(s.mlp)] for i, at, s in parsed],
    }
