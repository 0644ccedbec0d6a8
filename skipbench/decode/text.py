"""Tokens to text while they are decoded: whole characters, and nothing after a stop string."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

Decode = Callable[[list[int]], str]
BROKEN = "\ufffd"  # a tokenizer shows it for the first bytes of a character


@dataclass(frozen=True)
class Piece:
    """A bit of text, one or more tokens long; `str` and `print` give the text.

    Attributes:
        text: added to the output by the tokens; may be empty where a stop string cut it.
        tokens: ids, in order.
        source: what proposed the last token; empty for the target, `draft` where the method does
            not say more.
    """

    text: str
    tokens: tuple[int, ...]
    source: str = ""

    def __str__(self) -> str:
        return self.text


class Detokenizer:
    """Text of one token after another.

    Tokens are decoded after the few before them, since a tokenizer drops the space in front of a
    first token; as vLLM and text-generation-inference do.
    """

    def __init__(self, decode: Decode) -> None:
        """`decode`: ids -> text."""
        self._decode = decode
        self._tokens: list[int] = []
        self._before, self._shown = 0, 0  # the window begins; its tokens up to here are shown

    def rest(self) -> str:
        """Text that is not shown yet, such as a broken character at the end of an output."""
        before = self._decode(self._tokens[self._before : self._shown])
        return self._decode(self._tokens[self._before :])[len(before) :]

    def add(self, token: int) -> str:
        """The text that `token` completes; empty inside a character of several tokens."""
        self._tokens.append(token)
        text = self.rest()
        if not text or text.endswith(BROKEN):
            return ""
        self._before, self._shown = self._shown, len(self._tokens)
        return text


class StopStrings:
    """Holds back a possible beginning of a stop string, and cuts the output before one."""

    def __init__(self, stop: Sequence[str]) -> None:
        """`stop`: texts, none of them empty."""
        self._stop = stop
        self._held: list[Piece] = []
        self.found: str | None = None
        """The stop string that the output ends before."""

    def add(self, piece: Piece) -> Iterator[Piece]:
        """Yields pieces that are safe to show; once `found`, all that is left before it."""
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        if places := {word: text.find(word) for word in self._stop if word in text}:
            self.found = min(places, key=lambda word: (places[word], -len(word)))
            length = places[self.found]
            for held in self.rest():
                yield Piece(held.text[:length], held.tokens, held.source)
                length = max(0, length - len(held.text))
            return
        safe = len(text) - max((_overlap(text, word) for word in self._stop), default=0)
        while self._held and len(self._held[0].text) <= safe:
            safe -= len(self._held[0].text)
            yield self._held.pop(0)

    def rest(self) -> Iterator[Piece]:
        """Yields the pieces held back when the output ends without a stop string."""
        held, self._held = self._held, []
        yield from held


def _overlap(text: str, word: str) -> int:
    """Length of the longest end of `text` that begins `word`."""
    longest = min(len(text), len(word) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(word[:n])), 0)
