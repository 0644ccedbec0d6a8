"""The oracle: outputs of any engine beside the model's own choices, one verdict each."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from skipbench.contrib.oracle.causes import HALF, Judged, Search
from skipbench.contrib.oracle.check import check, counts, parted
from skipbench.contrib.oracle.outputs import Output
from skipbench.contrib.oracle.prompts import prompt_ids, unsure
from skipbench.contrib.oracle.replay import Replay
from skipbench.contrib.oracle.sampling import Draws, SamplingTest, Settings
from skipbench.contrib.oracle.stated import NO_EOS
from skipbench.contrib.oracle.texts import Texts
from skipbench.decode.lossless import Cause, Verdict, logit_blocks, own_error
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM

SPELLINGS = 16  # times that a text is spelt with other tokens before it counts as another text
WIDENED_BYTES = 2**32  # size in float32 up to which weights are widened once, not per output
NEAR = 8  # outputs before and after a wrong one whose prompts may be its own
RIGHT = 3  # identical outputs that a cause must not make wrong
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
        """Whether an output is wrong or could not be checked, whichever of the two `on` names, or
        with `on="tie"` not identical.
        """
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
        self._vocabulary = lm.model.get_input_embeddings().weight.shape[0]
        configs = lm.config, getattr(lm.model, "generation_config", None), tokenizer
        pads = {getattr(config, "pad_token_id", None) for config in configs}
        self._pads = frozenset(pad for pad in pads if isinstance(pad, int))
        self._near, self._right = dict[str, list[int]](), list[Judged]()

    def judge(self, outputs: Sequence[Output]) -> Iterator[Judged]:
        """Judges one after another; raises SkipbenchError for unreadable prompts, before all."""
        pairs = [(output, self._prompt(output)) for output in outputs]
        drawn = [(o, p, self._ids(o, p)) for o, p in pairs if self._settings_of(o).temperature > 0]
        drawn = [case for case in drawn if not self._why(*case)]
        if len(kinds := {self._settings_of(output) for output, *_ in drawn}) > 1:
            raise SkipbenchError(f"{len(kinds)} settings of sampling; verify each in its own file")
        for kind in kinds:
            self._draws = Draws(kind, [(prompt, ids) for _, prompt, ids in drawn])
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

    def _prompt(self, output: Output) -> list[int]:
        """Ids of its prompt without padding on the left: pads, or one token before a first BOS."""
        if output.unread:
            return []
        ids, bos = prompt_ids(self.tokenizer, output, self.chat), self.tokenizer.bos_token_id
        pads = self._pads - {bos}
        if output.prompt_ids and bos in ids and len({*ids[: ids.index(bos)]}) == 1:
            pads |= {ids[0]}
        start = next((i for i, token in enumerate(ids) if token not in pads), 0)
        known = all(0 <= token < self._vocabulary for token in ids)
        return (ids[start:] if output.prompt_ids else ids) if known else []

    def _ends(self, output: Output) -> frozenset[int]:
        ids = (*(self.eos if output.eos is None else output.eos), *output.ends)
        return frozenset(token for token in ids if 0 <= token < self._vocabulary)

    def _ids(self, output: Output, prompt: list[int]) -> list[int]:
        """Its ids without padding; of a text, as the tokenizer spells it."""
        if output.ids is None:
            return Texts(self.tokenizer, prompt, output.special).ids(output.text or "")
        eos, ids = self._ends(output), list(output.ids)
        ends = (i + 1 for i, token in enumerate(ids) if token in eos and i >= output.least)
        if (end := next(ends, None)) is None and output.stop:  # a batch pads behind stop strings
            end = next((i for i in range(len(ids), 0, -1) if ids[i - 1] not in self._pads), None)
        return ids[:end] if {*ids[end:]} <= eos | self._pads | {*output.pads} else ids

    def _doubts(
        self, output: Output, prompt: list[int], ids: list[int], verdict: Verdict | None = None
    ) -> list[str]:
        """Why tokens that are not the model's may be right. No setting allows any behind an end."""
        tail = ids[verdict.position or 0 :] if verdict else []
        if verdict and verdict.wanted is None:
            same = len({*tail}) == 1 < len(tail)
            return [f"only token {tail[0]} behind its end, which may be padding"] if same else []
        found = output.doubts + unsure(self.tokenizer, output, prompt, self.chat)
        blank = output.ids is None and not (output.text or "").strip()
        return [*found, "a text that is blank"] if blank else found

    def _why(self, output: Output, prompt: list[int], ids: list[int]) -> str:
        """Why an output cannot be checked; nothing where it can."""
        tokens, count = len(prompt) + len(ids), output.count or 0
        if output.unread:
            return output.unread
        if tokens > self.lm.max_positions:
            return f"{tokens} tokens; the model reads {self.lm.max_positions}"
        if not prompt or not all(0 <= token < self._vocabulary for token in ids):
            return f"no prompt, or an id outside of 0 to {self._vocabulary - 1}: another tokenizer"
        if not ids and (output.finish != "stop" or count > 1):
            return "no token of it was read"
        if 2 * len(ids) + 2 < count:
            return f"its record counts {count} tokens, of which {len(ids)} were read"
        doubts = self._doubts(output, prompt, ids) + output.drawn
        if output.least and (output.ids is None or output.least < NO_EOS):
            doubts.append("tokens before which no EOS ends it")
        if doubts and self._settings_of(output).temperature > 0:
            return f"the test of sampling knows no {', '.join(doubts)}"
        return ""

    def _one(self, output: Output, prompt: list[int]) -> Judged:
        ids = [] if output.unread else self._ids(output, prompt)
        if why := self._why(output, prompt, ids):
            verdict = Verdict("unchecked", output.id, len(ids), error=why)
            return Judged(output, prompt, ids, [], verdict)
        if self._draws is not None and self._settings_of(output).temperature > 0:
            return self._sampled(self._draws, output, prompt, ids)
        ids, verdict, best = self._greedy(output, prompt, ids)
        verdict = replace(verdict, id=output.id)
        if verdict.kind == "wrong" and (doubts := self._doubts(output, prompt, ids, verdict)):
            given = ", ".join(doubts)
            why = f"it parts from the model at token {verdict.position}, and the record has {given}"
            verdict = replace(verdict, kind="unchecked", cause=None, error=why)
        judged = Judged(output, prompt, ids, best, verdict)
        if verdict.kind == "wrong" and verdict.cause is None:
            with self.lm.cache.turn():
                known = self.tokenizer, self._ends(output), judged, self._near, self._right
                cause = self._half(judged) or Search(self._replay, *known).cause()
            judged = judged._replace(verdict=replace(verdict, cause=cause))
        elif verdict.kind == "identical":
            self._right = [*self._right, judged][-RIGHT:]
        return judged

    def _half(self, judged: Judged) -> Cause | None:
        """Where rounding to float16 could decide every gap of an output of a float32 model."""
        ids = judged.ids
        if judged.verdict.gap is None or self.lm.dtype != torch.float32:
            return None
        if self._replay.follows(judged.prompt, ids, dtype=torch.float16) < len(ids):
            return None
        text = f"{len(judged.wrong)} of {len(ids)} tokens are not the model's"
        return Cause(HALF, f"{text}, each by a gap that float16 can decide")

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
        """Its ids and their check. Where EOS is ignored, a text may hide one, or have none."""
        eos = self._ends(output)
        if output.ids is None and output.least == NO_EOS:
            found = self._spelt(output, prompt, ids, frozenset(), 0)
            if found[1].kind != "wrong":
                return found
        return self._spelt(output, prompt, ids, eos, output.least)

    def _spelt(
        self, output: Output, prompt: list[int], ids: list[int], eos: frozenset[int], least: int
    ) -> tuple[list[int], Verdict, list[int]]:
        """As `_greedy`; a text may be spelt with other tokens than the tokenizer's."""
        written, limit = output.ids is None, output.limit
        # a text that is spelt otherwise has more tokens, hardly twice as many
        count = output.count or 2 * len(ids) if written else len(ids)
        short = not output.finish and limit is not None and count < limit
        full = written and limit is not None and len(ids) >= limit  # no room for an EOS
        ended = ((output.finish == "stop" and not full) or short) and not output.stop
        how = eos, ended, self.own, output.logprobs, None if written else limit, least
        texts = Texts(self.tokenizer, prompt, output.special)
        for left in range(SPELLINGS if written else 0, -1, -1):
            verdict, best = self._checked(prompt, ids, *how)
            self._replay = Replay(self.lm)  # the rows of the cache may be overwritten
            known = self._replay, prompt, output.text or "", ids, verdict, eos
            if not left or (other := texts.respelt(*known)) is None:
                break
            ids = other
        fits = output.stop and verdict.kind != "wrong"
        if fits and (wrong := texts.stopped(self._replay, output, prompt, ids, eos)):
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
        least: int,
    ) -> tuple[Verdict, list[int]]:
        """As `check`, with ties as wide as `own_error` allows."""
        verdict, best = check(self.lm, prompt, ids, eos, ended, own, logprobs, limit, least)
        at, given = verdict.position, verdict.given
        if verdict.kind != "wrong" or at is None or verdict.wanted is None:
            return verdict, best
        others = eos if given is None else {given}
        bound = own_error(self.lm, prompt + ids[:at], verdict.wanted, others)
        if bound is None or (given in eos and least <= at and at + 1 < len(ids)):
            return verdict, best
        if given is None:  # the model might have ended here, too
            return self._checked(prompt, ids, eos, False, own, logprobs, limit, least)
        left, ended = None if limit is None else limit - at - 1, ended and given not in eos
        done = prompt + ids[: at + 1], ids[at + 1 :]
        later, _ = self._checked(*done, eos, ended, own, (), left, max(0, least - at - 1))
        if later.kind == "wrong":
            verdict = replace(later, position=at + 1 + (later.position or 0), tokens=len(ids))
        else:
            verdict = replace(verdict, kind="tie", bound=bound, ties=verdict.ties + 1 + later.ties)
        return verdict, best
