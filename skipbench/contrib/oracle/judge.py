"""The oracle: outputs of any engine beside the model's own choices, one verdict each."""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from skipbench.contrib.oracle.causes import Judged, cause_of
from skipbench.contrib.oracle.check import check, counts
from skipbench.contrib.oracle.outputs import Output
from skipbench.contrib.oracle.prompts import prompt_ids, unsure
from skipbench.contrib.oracle.replay import Replay
from skipbench.contrib.oracle.sampling import Draws, SamplingTest, Settings
from skipbench.contrib.oracle.texts import Texts
from skipbench.decode.lossless import Verdict, logit_blocks
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM

SPELLINGS = 16  # times that a text is spelt with other tokens before it counts as another text
WIDENED_BYTES = 2**32  # size in float32 up to which weights are widened once, not per output
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
        self.settings = settings
        self._draws: Draws | None = None
        self._vocabulary = lm.model.get_input_embeddings().weight.shape[0]
        configs = lm.config, getattr(lm.model, "generation_config", None), tokenizer
        pads = {getattr(config, "pad_token_id", None) for config in configs}
        self._pads = frozenset(pad for pad in pads if isinstance(pad, int))

    def judge(self, outputs: Sequence[Output]) -> Iterator[Judged]:
        """Judges one after another; raises SkipbenchError for unreadable prompts, before all."""
        pairs = [(output, self._prompt(output)) for output in outputs]
        kinds = {self._settings_of(output) for output in outputs if not output.unread}
        if len(kinds := {kind for kind in kinds if kind.temperature > 0}) > 1:
            raise SkipbenchError(f"{len(kinds)} settings of sampling; verify each in its own file")
        self._draws = next((Draws(kind) for kind in kinds), None)
        small = 4 * sum(p.numel() for p in self.lm.model.parameters()) <= WIDENED_BYTES
        self.lm.widened = {} if small else None
        try:
            for output, prompt in pairs:
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
        return frozenset(t for t in (*self.eos, *output.ends) if 0 <= t < self._vocabulary)

    def _ids(self, output: Output, prompt: list[int]) -> list[int]:
        """Its ids without padding; of a text, as the tokenizer spells it."""
        if output.ids is None:
            return Texts(self.tokenizer, prompt).ids(output.text or "")
        eos, ids = self._ends(output), list(output.ids)
        ends = (i + 1 for i, token in enumerate(ids) if token in eos)
        if (end := next(ends, None)) is None and output.stop:  # a batch pads behind stop strings
            end = next((i for i in range(len(ids), 0, -1) if ids[i - 1] not in self._pads), None)
        return ids[:end] if {*ids[end:]} <= eos | self._pads | {*output.pads} else ids

    def _doubts(
        self, output: Output, prompt: list[int], ids: list[int], verdict: Verdict | None = None
    ) -> list[str]:
        """Why tokens that are not the model's may be right."""
        found = output.doubts + unsure(self.tokenizer, output, prompt, self.chat)
        if output.ids is None and not (output.text or "").strip():
            found.append("a text that is blank")
        tail = ids[verdict.position or 0 :] if verdict and verdict.wanted is None else []
        if len({*tail}) == 1 < len(tail):
            found.append(f"only token {tail[0]} behind its end, which may be padding")
        return found

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
        doubts = self._doubts(output, prompt, ids)
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
        ids, verdict, best = self._spelt(output, prompt, ids)
        verdict = replace(verdict, id=output.id)
        if verdict.kind == "wrong" and (doubts := self._doubts(output, prompt, ids, verdict)):
            given = ", ".join(doubts)
            why = f"it parts from the model at token {verdict.position}, and the record has {given}"
            verdict = replace(verdict, kind="unchecked", cause=None, error=why)
        judged = Judged(output, prompt, ids, best, verdict)
        if verdict.kind == "wrong" and verdict.cause is None:
            with self.lm.cache.turn():
                cause = cause_of(judged, Replay(self.lm), self.tokenizer, self._ends(output))
            judged = judged._replace(verdict=replace(verdict, cause=cause))
        return judged

    def _sampled(self, draws: Draws, output: Output, prompt: list[int], ids: list[int]) -> Judged:
        with torch.inference_mode():
            logits = torch.cat([*logit_blocks(self.lm, prompt, ids, self.own)])
            verdict = draws.add(ids, logits[:-1], self.lm.dtype)
        choice = logits.argmax(-1).tolist()
        return Judged(output, prompt, ids, choice, replace(verdict, id=output.id))

    def _spelt(
        self, output: Output, prompt: list[int], ids: list[int]
    ) -> tuple[list[int], Verdict, list[int]]:
        """Its ids and their check; a text may be spelt with other tokens than the tokenizer's."""
        written, limit, eos = output.ids is None, output.limit, self._ends(output)
        # a text that is spelt otherwise has more tokens, hardly twice as many
        count = output.count or 2 * len(ids) if written else len(ids)
        short = not output.finish and limit is not None and count < limit
        full = written and limit is not None and len(ids) >= limit  # no room for an EOS
        ended = ((output.finish == "stop" and not full) or short) and not output.stop
        how = eos, ended, self.own, None if written else limit
        texts = Texts(self.tokenizer, prompt)
        for left in range(SPELLINGS if written else 0, -1, -1):
            verdict, best = check(self.lm, prompt, ids, *how)
            replay = Replay(self.lm)  # a check may overwrite the rows of the cache
            known = replay, prompt, output.text or "", ids, verdict, eos
            if not left or (other := texts.respelt(*known)) is None:
                break
            ids = other
        fits = output.stop and verdict.kind != "wrong"
        if fits and (wrong := texts.stopped(replay, output, prompt, ids, eos)):
            verdict = wrong
        return ids, verdict, best
