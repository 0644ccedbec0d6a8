"""One answer while it is decoded: an iterator of pieces of text, with counts and time."""

import dataclasses
import time
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from skipbench.decode.loop import Generation, NotFinite, Step
from skipbench.decode.text import Detokenizer, Piece, StopStrings
from skipbench.errors import SkipbenchError

Finish = Literal["eos", "length", "stop", "unfinished"]


@dataclass
class Answer:
    """Output of one prompt, and what the method did for it.

    Attributes:
        prompt_tokens: length of the prompt.
        method: name of the method.
        text: without special tokens and without the stop string.
        tokens: emitted ids; an EOS, and the tokens of a stop string, are among them.
        finish: `eos`, `length` (max_new_tokens), `stop` (a stop string), or `unfinished`.
        rounds: verification passes, each a full forward; the prefill is not among them.
        drafted: draft steps; a guess that needs no forward pass counts one per token.
        accepted: draft tokens that verification accepted.
        seconds: from the call to the last token, time of whoever reads the stream left out.
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
    seconds: float = 0.0
    first_token_s: float = 0.0

    def __str__(self) -> str:
        return self.text

    @property
    def tokens_per_s(self) -> float:
        """Decoded tokens per second, without the prefill and its token; 0 where none was."""
        decode_s = self.seconds - self.first_token_s
        return (len(self.tokens) - 1) / decode_s if decode_s > 0 and len(self.tokens) > 1 else 0.0

    @property
    def tokens_per_round(self) -> float:
        """M: tokens emitted per verification pass; 1 for vanilla."""
        return (len(self.tokens) - 1) / self.rounds if self.rounds else 1.0


class Stream:
    """Iterates over the pieces of an answer as they are decoded."""

    def __init__(
        self,
        steps: Generator[Step, None, Generation],
        tokenizer: Any,
        stop: Sequence[str],
        prompt_tokens: int,
        method: str,
    ) -> None:
        """
        Args:
            steps: of `decode.loop.stream`.
            stop: texts before which the output ends.

        Raises:
            SkipbenchError: an empty stop string.
        """
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
        return dataclasses.replace(self._answer, tokens=list(self._answer.tokens))

    @property
    def answer(self) -> Answer:
        """The whole answer: decodes the rest."""
        for _ in self:
            pass
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
                finish: Finish = end.value.finish
                break
            except NotFinite as error:
                raise SkipbenchError(
                    f"{error}; float16 may overflow, try dtype bfloat16 or float32"
                ) from error
            finally:
                answer.seconds += time.perf_counter() - began
            if step.round is None:
                answer.first_token_s = answer.seconds
            else:
                answer.rounds += 1
                answer.drafted += step.round.steps
                answer.accepted += sum(source != "" for source in step.sources)
            pieces: list[Piece] = []
            for token, source in zip(step.tokens, step.sources, strict=True):
                answer.tokens.append(token)
                unfinished.append(token)
                if text := self._text.add(token):
                    pieces += stops.add(Piece(text, tuple(unfinished), source))
                    unfinished = []
                if stops.found is not None:
                    self._steps.close()
                    answer.finish = "stop"
                    yield from pieces
                    return
            yield from pieces
        rest = self._text.rest()
        pieces = [*stops.add(Piece(rest, tuple(unfinished)))] if rest else []
        answer.finish = finish if stops.found is None else "stop"
        yield from pieces
        if stops.found is None:
            yield from stops.rest()
