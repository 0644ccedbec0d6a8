"""A completion cut into what the prefill, the draft and the bonus tokens wrote, for colouring it as
Self-SD's Figure 1 does.
"""

from collections.abc import Sequence
from typing import Any

from skipbench.runs.provenance import installed
from skipbench.runs.record import Arm

Kinds = list[tuple[str, int]]
"""Kind of each piece (prefill, accepted, rejected, bonus, rest) and its number of tokens."""


def kinds_of(arm: Arm) -> Kinds:
    """What the output is made of, in order.

    Rejected tokens are counted only: records do not hold their ids.
    """
    left = len(arm.tokens)
    found: Kinds = []

    def take(kind: str, count: int) -> None:
        nonlocal left
        count = min(count, left)
        left -= count
        if count > 0:
            found.append((kind, count))

    take("prefill", 1)
    for turn in arm.rounds:
        kept = min(turn.accepted, turn.emitted)
        take("accepted", kept)
        if turn.nodes > turn.accepted:
            found.append(("rejected", turn.nodes - turn.accepted))
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


def pieces_of(arm: Arm, text: str | None, tokenizer: Any) -> tuple[list[list[Any]], str]:
    """`[kind, tokens, text]` of each piece, and how its text was found: tokenizer, proportion, or
    counts.
    """
    kinds = kinds_of(arm)
    counts = [0 if kind == "rejected" else count for kind, count in kinds]
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
    return [[kind, count, text[start:end]] for (kind, count), start, end in found], how


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
