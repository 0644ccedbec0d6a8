"""A completion cut into what the prefill, the draft with its sources, and the bonus tokens wrote,
for colouring it as Self-SD's Figure 1 does.
"""

from collections.abc import Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

from skipbench.runs.record import SOURCES, Arm

Kinds = list[tuple[str, int, str]]
"""Kind of each piece (prefill, accepted, rejected, bonus, rest), its number of tokens, and the
letter of the source of accepted ones, of `SOURCES`; empty where the record does not say it.
"""


def letters_of(trace: Mapping[str, Any]) -> list[str]:
    """Letters of the sources of the accepted tokens, per round; empty where none are traced."""
    found = trace.get("source")
    known = isinstance(found, list) and all(
        isinstance(letters, str) and SOURCES.keys() >= set(letters) for letters in found
    )
    return list(found) if found and known else []


def kinds_of(arm: Arm, letters: Sequence[str] = ()) -> Kinds:
    """Splits the output into pieces, in order.

    Rejected tokens are counted only: records do not hold their ids.

    Args:
        letters: of `letters_of`.
    """
    left = len(arm.tokens)
    found: Kinds = []

    def take(kind: str, count: int, source: str = "") -> None:
        nonlocal left
        count = min(count, left)
        left -= count
        if count > 0:
            found.append((kind, count, source))

    take("prefill", 1)
    for number, turn in enumerate(arm.rounds):
        kept = min(turn.accepted, turn.emitted)
        sources = letters[number][:kept] if number < len(letters) else ""
        for source, run in groupby(sources):
            take("accepted", len(list(run)), source)
        take("accepted", kept - len(sources))
        if turn.nodes > turn.accepted:
            found.append(("rejected", turn.nodes - turn.accepted, ""))
        take("bonus", turn.emitted - kept)
    take("rest", left)
    return found


def pieces_of(
    arm: Arm, text: str | None, token_chars: Sequence[int], letters: Sequence[str] = ()
) -> tuple[list[list[Any]], str]:
    """`[kind, tokens, text, source]` of each piece, and what they show: pieces, text, or counts.

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
