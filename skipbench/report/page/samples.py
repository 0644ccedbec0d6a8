"""Samples of a run as its page shows them: curves over time, skip sets, and coloured text."""

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from skipbench.errors import SkipbenchError
from skipbench.runs.record import SOURCES, Arm, Sample
from skipbench.skipset import SkipSet

MOST_POINTS = 1000  # of one curve, so that hundreds of runs fit into one file
MOST_SETS = 200
# Skip sets have a map of their own; the others are the draft length again, or positions.
NOT_DRAWN = ("skip", "steps", "optimised", "step", "weights", "searching")


def courses(samples: Sequence[Sample]) -> list[dict[str, Any]]:
    """One curve per quantity: `name`, `values` over all samples in order, `starts` of the samples,
    `of` how many values, `by` round or record.

    The draft length comes from the rounds, the rest from numbers, or lists of them (their mean), in
    the trace.
    """
    found = []
    for name in dict.fromkeys(["draft length", "accepted", *(n for s in samples for n in s.trace)]):
        parts = [_values(sample, name) for sample in samples]
        lengths = [len(part) for part in parts]
        if max(lengths, default=0) < 2 and sum(lengths) < 2:
            continue
        shown = [v for part in parts for v in part][:MOST_POINTS]
        starts = [s for s in accumulate(lengths[:-1], initial=0) if s < len(shown)]
        rounds = zip(lengths, samples, strict=True)
        by = "round" if all(n in (0, len(s.method.rounds)) for n, s in rounds) else "record"
        curve = {"name": name, "values": shown, "starts": starts, "of": sum(lengths), "by": by}
        found.append(curve)
    return found


def _values(sample: Sample, name: str) -> list[float]:
    if name in ("draft length", "accepted"):
        return [r.accepted if name == "accepted" else r.steps for r in sample.method.rounds]
    found = sample.trace.get(name)
    values = map(_number, found) if isinstance(found, list) and name not in NOT_DRAWN else ()
    return [v for v in values if v is not None]


def _number(value: Any) -> float | None:
    if isinstance(value, list) and value and all(isinstance(v, int | float) for v in value):
        value = sum(value) / len(value)
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return round(value, 5) if numeric else None


def skip_sets(samples: Sequence[Sample], layers: int | None) -> dict[str, Any] | None:
    """The skip sets in the order of their use: `layers`, `of` how many, and `sets` of `[sample,
    round, attention, mlp]`; None without any.
    """
    changes = ((s.index, int(at), str(text)) for s in samples for at, text in s.skip_changes)
    used = [next(same) for _, same in groupby(changes, key=lambda change: change[2])]
    if layers is None or not any(text for _, _, text in used):
        return None
    try:
        parsed = [(i, at, SkipSet.parse(text, layers)) for i, at, text in used[:MOST_SETS]]
    except SkipbenchError:
        return None
    sets = [[i, at, list(s.attention), list(s.mlp)] for i, at, s in parsed]
    return {"layers": layers, "of": len(used), "sets": sets}


def letters_of(trace: Mapping[str, Any]) -> list[str]:
    """Letters of the sources of the accepted tokens, per round; empty where none are traced."""
    found = trace.get("source")
    known = isinstance(found, list) and all(
        isinstance(letters, str) and SOURCES.keys() >= set(letters) for letters in found
    )
    return list(found) if found and known else []


def kinds_of(arm: Arm, letters: Sequence[str] = ()) -> list[tuple[str, int, str]]:
    """Splits the output into pieces, in order: the kind (prefill, accepted, rejected, bonus, rest),
    the number of tokens, and the source's letter of accepted ones, empty if it is not recorded.

    Rejected tokens are counted only: records do not hold their ids.

    Args:
        letters: of `letters_of`.
    """
    pieces = [("prefill", 1, "")]
    for number, turn in enumerate(arm.rounds):
        kept = min(turn.accepted, turn.emitted)
        sources = letters[number][:kept] if number < len(letters) else ""
        pieces += [("accepted", len(list(run)), source) for source, run in groupby(sources)]
        pieces.append(("accepted", kept - len(sources), ""))
        pieces.append(("rejected", turn.nodes - turn.accepted, ""))
        pieces.append(("bonus", turn.emitted - kept, ""))
    pieces.append(("rest", len(arm.tokens), ""))
    found, left = [], len(arm.tokens)
    for kind, count, source in pieces:
        if kind != "rejected":
            count = min(count, left)
            left -= count
        if count > 0:
            found.append((kind, count, source))
    return found


def pieces_of(
    arm: Arm, text: str | None, token_chars: Sequence[int], letters: Sequence[str] = ()
) -> tuple[list[list[Any]], str]:
    """`[kind, tokens, text, source]` of each piece, as Self-SD's Figure 1 colours them, and what
    they show: pieces, text, or counts.

    Args:
        token_chars: of the record of `text`; without them the text is one piece.
        letters: as for `kinds_of`.
    """
    kinds = kinds_of(arm, letters)
    if text is None:
        return [[kind, n, "", source] for kind, n, source in kinds], "counts"
    if len(token_chars) != len(arm.tokens):
        return [["rest", len(arm.tokens), text, ""]], "text"
    ends = [0, *accumulate(token_chars)]
    ends[-1] = len(text)
    pieces, done = list[list[Any]](), 0
    for kind, n, source in kinds:
        before, done = done, done + (0 if kind == "rejected" else n)
        pieces.append([kind, n, text[ends[before] : ends[done]], source])
    return pieces, "pieces"
