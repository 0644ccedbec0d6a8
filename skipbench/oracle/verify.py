"""The oracle: outputs of any engine beside the model's own choices, one verdict each."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.oracle.causes import END, Judged, Search
from skipbench.oracle.check import check, logit_blocks, own_error, parted
from skipbench.oracle.outputs import Output
from skipbench.oracle.prompts import Texts, prompt_ids
from skipbench.oracle.replay import Replay
from skipbench.oracle.sampling import Draws, SamplingTest, Settings
from skipbench.oracle.verdict import Cause, Verdict, counts

SPELLINGS = 16  # times that a text is spelt with other tokens before it counts as another text
WIDENED_BYTES = 2**32  # size in float32 up to which weights are widened once, not per output
NEAR = 8  # outputs before and after a wrong one whose prompts may be its own
RIGHT = 3  # identical outputs that a cause must not make wrong
STOP_TOKENS = 16  # tokens after an output in which its stop string has to appear
GREEDY = Settings(0.0)


class Verification(msgspec.Struct, frozen=True):
    """Verdicts on outputs, in their order.

    Attributes:
        verdicts: of the outputs that were judged, which are fewer than `outputs` after Ctrl-C.
        outputs: number of outputs in the file.
        format: of the records.
        dtype: the stated one, whose rounding decides what is a tie.
        sampling: of those that were drawn.
    """

    verdicts: list[Verdict]
    outputs: int
    format: str
    model: str
    dtype: str
    sampling: SamplingTest | None = None

    @property
    def counts(self) -> dict[str, int]:
        return counts(self.verdicts)

    def failed(self, on: str = "wrong") -> bool:
        """Whether an output is wrong or could not be checked, or with `on="tie"` not identical."""
        bad = {"wrong", "unchecked"} | ({"tie"} if on == "tie" else set())
        return bool(bad & self.counts.keys()) or bool(self.sampling and self.sampling.wrong)


class Oracle:
    """Judges outputs by one model.

    Args:
        eos: ids that end an output.
        chat: form of prompts that are text: `none` or `template`.
        own: computes as the model's engine does, in its dtype, instead of in float32.
        settings: of sampling, where the records do not say.
    """

    def __init__(
        self,
        lm: LM,
        tokenizer: Any,
        eos: frozenset[int],
        chat: str = "none",
        own: bool = False,
        settings: Settings = GREEDY,
    ) -> None:
        self.lm, self.tokenizer, self.eos, self.chat, self.own = lm, tokenizer, eos, chat, own
        self.settings, self._replay = settings, Replay(lm)
        self._draws: Draws | None = None
        self._near, self._right = dict[str, list[int]](), list[Judged]()

    def judge(self, outputs: Sequence[Output]) -> Iterator[Judged]:
        """Judges one after another; raises SkipbenchError for unreadable prompts, before all."""
        prompts = [prompt_ids(self.tokenizer, output, self.chat) for output in outputs]
        pairs = list(zip(outputs, prompts, strict=True))
        settings = [self._settings_of(output) for output in outputs]
        if len(kinds := {one for one in settings if one.temperature > 0}) > 1:
            raise SkipbenchError(f"{len(kinds)} settings of sampling; verify each in its own file")
        for kind in kinds:
            drawn = (pair for pair, s in zip(pairs, settings, strict=True) if s == kind)
            self._draws = Draws(kind, [(p, self._ids(o, p)) for o, p in drawn])
        small = 4 * sum(p.numel() for p in self.lm.model.parameters()) <= WIDENED_BYTES
        self.lm.widened = {} if small else None
        self._right = list[Judged]()
        try:
            for at, (output, prompt) in enumerate(pairs):
                self._near = {o.id: ids for o, ids in pairs[max(0, at - NEAR) :][: 2 * NEAR]}
                yield self._one(output, prompt)
        finally:
            self.lm.widened = None

    def result(self, judged: Sequence[Judged], outputs: int, form: str, name: str) -> Verification:
        """The verdicts on `judged`, of so many `outputs` of one format; `name` is the model's."""
        verdicts, dtype = [one.verdict for one in judged], str(self.lm.dtype)
        sampling = self._draws.result() if self._draws else None
        return Verification(verdicts, outputs, form, name, dtype.removeprefix("torch."), sampling)

    def _settings_of(self, output: Output) -> Settings:
        given = {name: getattr(output, name) for name in Settings._fields}
        known = {name: value for name, value in given.items() if value is not None}
        return self.settings._replace(**known)

    def _ids(self, output: Output, prompt: list[int]) -> list[int]:
        """Its ids without padding; of a text, as the tokenizer spells it."""
        if output.ids is None:
            return Texts(self.tokenizer, prompt).ids(output.text or "")
        pads = self.eos | {self.tokenizer.pad_token_id}
        ids = list(output.ids)
        end = next((i + 1 for i, token in enumerate(ids) if token in self.eos), len(ids))
        return ids[:end] if {*ids[end:]} <= pads else ids

    def _one(self, output: Output, prompt: list[int]) -> Judged:
        ids, error = self._ids(output, prompt), ""
        vocabulary = self.lm.model.get_input_embeddings().weight.shape[0]
        if len(prompt) + len(ids) > self.lm.max_positions:
            error = f"{len(prompt) + len(ids)} tokens; the model reads {self.lm.max_positions}"
        elif not prompt or not all(0 <= t < vocabulary for t in (*prompt, *ids)):
            error = f"no prompt, or an id outside of 0 to {vocabulary - 1}: another tokenizer"
        if error:
            verdict = Verdict("unchecked", output.id, len(ids), error=error)
            return Judged(output, prompt, ids, [], verdict)
        if self._draws is not None and self._settings_of(output).temperature > 0:
            return self._sampled(self._draws, output, prompt, ids)
        ids, verdict, best = self._greedy(output, prompt, ids)
        verdict = replace(verdict, id=output.id)
        judged = Judged(output, prompt, ids, best, verdict)
        if verdict.kind == "wrong" and verdict.cause is None:
            with self.lm.cache.turn():
                known = self.tokenizer, self.eos, judged, self._near, self._right
                cause = Search(self._replay, *known).cause()
            judged = judged._replace(verdict=replace(verdict, cause=cause))
        elif verdict.kind == "identical":
            self._right = [*self._right, judged][-RIGHT:]
        return judged

    def _sampled(self, draws: Draws, output: Output, prompt: list[int], ids: list[int]) -> Judged:
        with torch.inference_mode():
            logits = torch.cat([*logit_blocks(self.lm, prompt, ids, self.own)])
            verdict = draws.add(prompt, ids, logits[:-1], self.lm.dtype)
        known = len(output.logprobs) == len(ids) > 0
        gap = parted(logits[:-1], ids, output.logprobs) if known else None
        verdict = replace(verdict, id=output.id, logprob_difference=gap)
        return Judged(output, prompt, ids, logits.argmax(-1).tolist(), verdict)

    def _greedy(
        self, output: Output, prompt: list[int], ids: list[int]
    ) -> tuple[list[int], Verdict, list[int]]:
        """Its ids and their check; a text may be spelt with other tokens than the tokenizer's."""
        written, limit = output.ids is None, output.limit
        short = not output.finish and limit is not None and len(ids) < limit
        ended = (output.finish == "stop" or short) and not output.stop
        how = self.eos, ended, self.own, output.logprobs, None if written else limit
        texts = Texts(self.tokenizer, prompt)
        for left in range(SPELLINGS if written else 0, -1, -1):
            verdict, best = self._checked(prompt, ids, *how)
            self._replay = Replay(self.lm)  # the rows of the cache may be overwritten
            other = self._respelt(texts, prompt, output.text or "", ids, verdict) if left else None
            if other is None:
                break
            ids = other
        fits = output.stop and verdict.kind != "wrong"
        if fits and (wrong := self._stop(output, texts, prompt, ids)):
            verdict = replace(wrong, logprob_difference=verdict.logprob_difference)
        return ids, verdict, best

    def _checked(
        self,
        prompt: list[int],
        ids: list[int],
        eos: frozenset[int],
        ended: bool,
        own: bool,
        logprobs: Sequence[float],
        limit: int | None,
    ) -> tuple[Verdict, list[int]]:
        """As `check`, with ties as wide as `own_error` allows."""
        verdict, best = check(self.lm, prompt, ids, eos, ended, own, logprobs, limit)
        at, given = verdict.position, verdict.given
        if verdict.kind != "wrong" or at is None or verdict.wanted is None:
            return verdict, best
        others = eos if given is None else {given}
        bound = own_error(self.lm, prompt + ids[:at], verdict.wanted, others)
        if bound is None or (given in eos and at + 1 < len(ids)):
            return verdict, best
        if given is None:  # the model might have ended here, too
            return self._checked(prompt, ids, eos, False, own, logprobs, limit)
        left, ended = None if limit is None else limit - at - 1, ended and given not in eos
        done = prompt + ids[: at + 1], ids[at + 1 :]
        later, _ = self._checked(*done, eos, ended, own, (), left)
        if later.kind == "wrong":
            verdict = replace(later, position=at + 1 + (later.position or 0), tokens=len(ids))
        else:
            verdict = replace(verdict, kind="tie", bound=bound, ties=verdict.ties + 1 + later.ties)
        return verdict, best

    def _respelt(
        self, texts: Texts, prompt: list[int], text: str, ids: list[int], verdict: Verdict
    ) -> list[int] | None:
        """The ids of the same text with the model's token where `ids` part from it, or without the
        last ones where the text ends inside that token; None where it writes another text.
        """
        at, wanted = verdict.position, verdict.wanted
        if verdict.kind != "wrong" or at is None or wanted is None or wanted in self.eos:
            return None
        head = [*ids[:at], wanted]
        said = texts.text(head)
        while len(head) < at + 4 and said == texts.text(ids[:at]):  # inside a character
            head += self._replay.greedy(prompt + head, 1, self.eos)
            said = texts.text(head)
        if said.startswith(text):
            return ids[:at]
        if not text.startswith(said):
            spaces = said[: len(said) - len(said.lstrip())]
            text = spaces + text  # an engine that strips its text
            if at or not spaces or not text.startswith(said):
                return None
        found = head + texts.ids(text[len(said) :])
        return found if found != ids else None

    def _stop(
        self, output: Output, texts: Texts, prompt: list[int], ids: list[int]
    ) -> Verdict | None:
        """A verdict on an output that goes on after a stop string, or ends before none."""
        text = texts.text(ids)
        for stop in output.stop:
            if stop and (place := text.find(stop)) >= 0 and place + len(stop) < len(text.rstrip()):
                at = next(i for i in range(len(ids)) if stop in texts.text(ids[: i + 1])) + 1
                if at >= len(ids):
                    continue
                cause = Cause(END, f"it goes on after the stop string {stop!r}")
                return Verdict("wrong", tokens=len(ids), position=at, given=ids[at], cause=cause)
        ended = {*ids[-1:]} & self.eos or text.endswith(tuple(output.stop))
        if output.finish != "stop" or ended:
            return None
        more = self._replay.greedy(prompt + ids, STOP_TOKENS, self.eos)
        later = texts.text(ids + more)
        ends = [later.find(stop) for stop in output.stop if stop in later]
        ends += [len(texts.text(ids + more[:-1]))] if {*more} & self.eos else []
        if ends and later[: min(ends)].rstrip() == text.rstrip():
            return None
        cause = Cause(END, f"the output ends; the model goes on without EOS or {output.stop}")
        return Verdict("wrong", tokens=len(ids), position=len(ids), wanted=more[0], cause=cause)
