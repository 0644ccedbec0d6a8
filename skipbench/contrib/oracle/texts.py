"""Outputs that are known as text only: their ids, other spellings, and stop strings."""

from typing import Any

from skipbench.contrib.oracle.outputs import Output
from skipbench.contrib.oracle.replay import Replay
from skipbench.decode.answer import BROKEN
from skipbench.decode.lossless import END, Cause, Verdict

ANCHOR = 4  # last tokens of the prompt to decode with: a first token alone loses its space
STOP_TOKENS = 16  # tokens after an output in which its stop string has to appear


class Texts:
    """Texts of outputs after a prompt, without special tokens."""

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        self._tokenizer, self._anchor = tokenizer, prompt[-ANCHOR:]
        self._start = len(self._decode(self._anchor))

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def text(self, ids: list[int]) -> str:
        """The text that these ids add to the prompt, whole characters only."""
        return self._decode(self._anchor + ids)[self._start :].rstrip(BROKEN)

    def ids(self, text: str) -> list[int]:
        """Ids of a text that goes on after other tokens."""
        return list(self._tokenizer.encode(text, add_special_tokens=False)) if text else []

    def respelt(
        self,
        replay: Replay,
        prompt: list[int],
        text: str,
        ids: list[int],
        verdict: Verdict,
        eos: frozenset[int],
    ) -> list[int] | None:
        """The ids of the same text with the model's token where `ids` part from it, or without the
        last ones where the text ends inside that token; None where it writes another text.
        """
        at, wanted = verdict.position, verdict.wanted
        if verdict.kind != "wrong" or at is None or wanted is None or wanted in eos:
            return None
        head = [*ids[:at], wanted]
        said = self.text(head)
        while len(head) < at + 4 and said == self.text(ids[:at]):  # inside a character
            head += replay.greedy(prompt + head, 1, eos)
            said = self.text(head)
        if verdict.given is None:  # spaces that an engine cut off its text
            return None if said[len(text) :].strip() else head
        if said.startswith(text):
            return ids[:at]
        if not text.startswith(said):
            spaces = said[: len(said) - len(said.lstrip())]
            text = spaces + text  # an engine that strips its text
            if at or not spaces or not text.startswith(said):
                return None
        found = head + self.ids(text[len(said) :])
        return found if found != ids else None

    def stopped(
        self, replay: Replay, output: Output, prompt: list[int], ids: list[int], eos: frozenset[int]
    ) -> Verdict | None:
        """A verdict on an output that goes on after a stop string, or ends before none."""
        text = self.text(ids)
        for stop in output.stop:
            if stop and (place := text.find(stop)) >= 0 and place + len(stop) < len(text.rstrip()):
                at = next(i for i in range(len(ids)) if stop in self.text(ids[: i + 1])) + 1
                if at >= len(ids):
                    continue
                cause = Cause(END, f"it goes on after the stop string {stop!r}")
                return Verdict("wrong", tokens=len(ids), position=at, given=ids[at], cause=cause)
        ended = {*ids[-1:]} & eos or text.endswith(tuple(output.stop))
        if output.finish != "stop" or ended:
            return None
        more = replay.greedy(prompt + ids, STOP_TOKENS, eos)
        later = self.text(ids + more)
        ends = [later.find(stop) for stop in output.stop if stop in later]
        ends += [len(self.text(ids + more[:-1]))] if {*more} & eos else []
        if ends and later[: min(ends)].rstrip() == text.rstrip():
            return None
        cause = Cause(END, f"the output ends; the model goes on without EOS or {output.stop}")
        return Verdict("wrong", tokens=len(ids), position=len(ids), wanted=more[0], cause=cause)
