"""A completion cut into what the prefill, the draft with its sources, and the bonus tokens wrote,
for colouring it as Self-SD's Figure 1 does.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from skipbench.runs.provenance import installed
from skipbench.runs.record import SOURCES, Arm

Kinds = list[tuple[str, int, str]]
"""Kind of each piece (prefill, accepted, rejected, bonus, rest), its number of tokens, and the
letter of the source of accepted ones, of `SOURCES`; empty where the record does not say it.
"""


def letters_of(trace: Mapping[str, Any]) -> list[str]:
    """By round, the letters of the sources of the accepted tokens; empty where none are traced."""
    found = trace.get("source")
    known = isinstance(found, list) and all(
        isinstance(letters, str) and SOURCES.keys() >= set(letters) for letters in found
    )
    return list(found) if found and known else []


def kinds_of(arm: Arm, letters: Sequence[str] = ()) -> Kinds:
    """What the output is made of, in order.

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


def tokenizer_of(folder: str | None) -> Any:
    """The tokenizer of a model's folder, without torch; None where there is no `tokenizer.json`
    that can be read.
    """
    path = installed(folder or "") / "tokenizer.json"
    if not folder or not path.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception:  # the library raises nothing narrower for a damaged file
        return None


def pieces_of(
    arm: Arm, text: str | None, tokenizer: Any, letters: Sequence[str] = ()
) -> tuple[list[list[Any]], str]:
    """`[kind, tokens, text, source]` of each piece, and how its text was found: tokenizer,
    proportion, or counts; `letters` as for `kinds_of`.
    """
    kinds = kinds_of(arm, letters)
    counts = [0 if kind == "rejected" else count for kind, count, _ in kinds]
    if tokenizer is not None:
        text, ends = _decoded_ends(arm.tokens, counts, tokenizer)
        how = "tokenizer"
    elif text is not None:
        ends = [round(len(text) * done / max(1, len(arm.tokens))) for done in _sums(counts)]
        how = "proportion"
    else:
        text, ends, how = "", [0] * len(counts), "counts"
    starts = [0, *ends[:-1]]
    found = zip(kinds, starts, ends, strict=True)
    return [[kind, n, text[start:end], source] for (kind, n, source), start, end in found], how


def _decoded_ends(
    tokens: Sequence[int], counts: Sequence[int], tokenizer: Any
) -> tuple[str, list[int]]:
    """The whole text, and where in it each piece ends: prefixes are decoded, as a token alone may
    lose its space.
    """
    text = str(tokenizer.decode(list(tokens)))
    ends: list[int] = []
    for done in _sums(counts):
        # A character of several tokens belongs to the piece that completes it.
        prefix = (
            text
            if done == len(tokens)
            else str(tokenizer.decode(list(tokens[:done]))).rstrip("\ufffd")
        )
        ends.append(max(ends[-1] if ends else 0, min(len(prefix), len(text))))
    return text, ends


def _sums(counts: Sequence[int]) -> list[int]:
    return [sum(counts[: i + 1]) for i in range(len(counts))]
