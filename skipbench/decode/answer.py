"""One answer while it is decoded: an iterator of pieces of text, whole characters and nothing after
a stop string, with counts and time.
"""

import copy
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from skipbench.decode.loop import Step
from skipbench.decode.rounds import NotFinite
from skipbench.decode.sampling import Logprob
from skipbench.errors import SkipbenchError

Decode = Callable[[list[int]], str]  # ids -> text
BROKEN = "\ufffd"  # a tokenizer shows it for the first bytes of a character
Finish = Literal["eos", "length", "stop", "unfinished"]


@dataclass
class Answer:
    """Output of one prompt, with the method's counts and seconds.

    Attributes:
        prompt_tokens: length of the prompt.
        method: name of the method.
        text: without special tokens and without the stop string.
        tokens: emitted ids; an EOS, and the tokens of a stop string, are among them.
        finish: `eos`, `length` (max_new_tokens), `stop` (a stop string), or `unfinished`.
        rounds: verification passes, each a full forward; the prefill is not among them.
        drafted: draft steps; a guess that needs no forward pass counts one per token.
        accepted: draft tokens that verification accepted.
        per_round: draft steps and accepted tokens of each round.
        sources: how many of them each source proposed.
        logprobs: per token, where they were asked for.
        seconds: from the call to the last token, without the time between two reads of a stream.
        first_token_s: from the call to the first token (TTFT): the prefill.
    """

    prompt_tokens: int
    method: str
    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish: Finish = "unfinished"
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0
    per_round: list[tuple[int, int]] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)
    logprobs: list[Logprob] = field(default_factory=list)
    seconds: float = 0.0
    first_token_s: float = 0.0

    def __str__(self) -> str:
        return self.text

    @property
    def tokens_per_s(self) -> float:
        """Decoded tokens per second, without the prefill and its token; 0 without any."""
        decode_s = self.seconds - self.first_token_s
        return (len(self.tokens) - 1) / decode_s if decode_s > 0 and len(self.tokens) > 1 else 0.0

    @property
    def tokens_per_round(self) -> float:
        """M: tokens emitted per verification pass; 1 for vanilla."""
        return (len(self.tokens) - 1) / self.rounds if self.rounds else 1.0


@dataclass(frozen=True)
class Piece:
    """Text of one or more tokens; `str` and `print` give the text.

    Attributes:
        text: may be empty where a stop string cut it.
        tokens: ids, in order.
        source: of the last token, as in `Step.sources`.
    """

    text: str
    tokens: tuple[int, ...]
    source: str = ""

    def __str__(self) -> str:
        return self.text


class Detokenizer:
    """Text of one token after another, decoded after the few before it, since a tokenizer drops the
    space in front of a first token; as in vLLM and text-generation-inference.
    """

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._tokens: list[int] = []
        self._before, self._shown = 0, 0  # the window begins; its tokens up to here are shown

    def rest(self) -> str:
        """Text that is not shown yet, such as a broken character at the end of an output."""
        shown = self._decode(self._tokens[self._before : self._shown])
        return self._decode(self._tokens[self._before :])[len(shown) :]

    def add(self, token: int) -> str:
        """The text that `token` completes; empty inside a character of several tokens."""
        self._tokens.append(token)
        if not (text := self.rest()) or text.endswith(BROKEN):
            return ""
        self._before, self._shown = self._shown, len(self._tokens)
        return text


class StopStrings:
    """Holds back a possible beginning of a stop string, and cuts the output before one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = stop
        self._held: list[Piece] = []
        self.stopped_by: str | None = None
        """The stop string that the output ends before."""

    def add(self, piece: Piece) -> Iterator[Piece]:
        """Yields pieces that are safe to show; those before a stop string once it is complete."""
        self._held.append(piece)
        text = "".join(held.text for held in self._held)
        if places := {word: text.find(word) for word in self._stop if word in text}:
            self.stopped_by = min(places, key=lambda word: (places[word], -len(word)))
            length = places[self.stopped_by]
            for held in self.rest():
                yield Piece(held.text[:length], held.tokens, held.source)
                length = max(0, length - len(held.text))
            return
        starts = (n for word in self._stop for n in range(1, len(word)) if text.endswith(word[:n]))
        safe = len(text) - max(starts, default=0)
        while self._held and len(self._held[0].text) <= safe:
            safe -= len(self._held[0].text)
            yield self._held.pop(0)

    def rest(self) -> Iterator[Piece]:
        """Yields the pieces held back when the output ends without a stop string."""
        while self._held:
            yield self._held.pop(0)


class Stream:
    """Iterates over the pieces of an answer as they are decoded."""

    def __init__(
        self,
        steps: Generator[Step, None, Literal["eos", "length", "stop"] | None],
        tokenizer: Any,
        stop: Sequence[str],
        prompt_tokens: int,
        method: str,
    ) -> None:
        """`steps`: of `decode.loop.stream`; `stop`: texts, none empty, before which it ends."""
        if "" in stop:
            raise SkipbenchError("stop: an empty text stops before the first token; leave it out")
        self._steps, self._answer = steps, Answer(prompt_tokens, method)
        self._text = Detokenizer(lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)))
        self._stops, self._pieces = StopStrings(stop), self._decode()

    def __iter__(self) -> Iterator[Piece]:
        return self

    def __next__(self) -> Piece:
        piece = next(self._pieces)
        self._answer.text += piece.text
        return piece

    @property
    def so_far(self) -> Answer:
        """The answer up to the last piece that was read."""
        return copy.deepcopy(self._answer)

    @property
    def answer(self) -> Answer:
        """The whole answer: decodes the rest."""
        list(self)
        return self.so_far

    def close(self) -> None:
        """Ends the answer where it is."""
        self._steps.close()
        self._pieces.close()

    def _decode(self) -> Generator[Piece, None, None]:
        """The pieces of every round, then the text that was held back."""
        answer, stops = self._answer, self._stops
        unfinished: list[int] = []  # tokens of a character that is not complete
        while True:
            began = time.perf_counter()
            try:
                step = next(self._steps)
            except StopIteration as end:
                finish: Finish = end.value
                break
            except NotFinite as error:
                raise SkipbenchError(str(error)) from error
            finally:
                answer.seconds += time.perf_counter() - began
            if step.round is None:
                answer.first_token_s = answer.seconds
            else:
                answer.rounds += 1
                answer.drafted += step.round.steps
                taken = [source for source in step.sources if source]
                answer.accepted += len(taken)
                answer.per_round.append((step.round.steps, len(taken)))
                for source in taken:
                    answer.sources[source] = answer.sources.get(source, 0) + 1
            pieces, before = list[Piece](), len(answer.tokens)
            for token, source in zip(step.tokens, step.sources, strict=True):
                answer.logprobs += step.logprobs[len(answer.tokens) - before :][:1]
                answer.tokens.append(token)
                unfinished.append(token)
                if text := self._text.add(token):
                    pieces += stops.add(Piece(text, tuple(unfinished), source))
                    unfinished = []
                if stops.stopped_by is not None:
                    self._steps.close()
                    answer.finish = "stop"
                    yield from pieces
                    return
            yield from pieces
        rest = self._text.rest()
        pieces = [*stops.add(Piece(rest, tuple(unfinished)))] if rest else []
        answer.finish = finish if stops.stopped_by is None else "stop"
        yield from pieces
        if stops.stopped_by is None:
            yield from stops.rest()
