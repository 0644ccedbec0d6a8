"""The likely cause of a wrong output: each is tried on the model, and named where the output goes
on as it makes the model go on.

A cause is an edit of what the engine's cache or prompt held. An edit is believed where it explains
at least two tokens that the model would not emit; one wrong token that the rest follows is a token
that was not verified.
"""

import unicodedata
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import NoRepeatNGramLogitsProcessor, RepetitionPenaltyLogitsProcessor

from skipbench.contrib.oracle.outputs import Output
from skipbench.contrib.oracle.prompts import other_prompts
from skipbench.contrib.oracle.replay import Replay
from skipbench.contrib.oracle.texts import Texts
from skipbench.decode.answer import BROKEN
from skipbench.decode.lossless import END as END
from skipbench.decode.lossless import Cause, Verdict

WINDOW = 32  # tokens after the divergence that an edit has to explain
BACK = 6  # rows before the divergence that may be the fault
NEXT = 6  # most likely tokens of the divergence, of which a rejected one may have been read
ALTERNATIVES = 2  # most likely other tokens of a position, of which a stale row may be

MANY = 0.35  # share of wrong tokens from which on they are no single ones
GAP, GAPS = 3, 8  # tokens in a row that may be missing, and places
WRONG = 3  # wrong tokens of which each has to be explained by the same kind of edit
FEW = 4  # tokens at the end of an output, too few to show a second wrong one
BEGUN = 3  # tokens after which an output that was the model's has begun with its prompt and weights
CUTS = 16  # beginnings of a prompt that is cut on its left

PENALTIES: dict[str, Any] = {
    f"a repetition penalty of {p}": RepetitionPenaltyLogitsProcessor(p)
    for p in (1.05, 1.1, 1.15, 1.2, 1.3, 1.5)
} | {f"no {n} tokens repeated": NoRepeatNGramLogitsProcessor(n) for n in (2, 3, 4)}
"""Processors that a checkpoint's generation_config.json may bring along, by name."""

PROMPT = "prompt: another template or BOS"
ORDER = "output of another request"
TEXT = "detokenisation"
MISSING = "bonus token missing"
DOUBLED = "bonus token doubled"
STALE = "output of another position: a stale K/V row"
POSITIONS = "wrong position ids"
KEPT = "draft token kept after a rejection"
SHOWN = "another token shown than the engine went on with"
RANK = "another rank than the first"
PROCESSOR = "logits processor"
MODEL = "another model or template"
HALF = "float16 somewhere in the engine"


class Judged(NamedTuple):
    """An output: ids of its prompt and its own, the model's choices, and the verdict."""

    output: Output
    prompt: list[int]
    ids: list[int]
    best: list[int]
    verdict: Verdict

    @property
    def at(self) -> int:
        return self.verdict.position or 0

    @property
    def wrong(self) -> list[int]:
        """Positions whose token is not the model's choice after the tokens before it."""
        pairs = enumerate(zip(self.ids, self.best, strict=False))
        return [i for i, (token, best) in pairs if token != best and i >= self.at]


class Edit(NamedTuple):
    """What an engine may have held: a context, and positions off by `shift` from `at` on."""

    cause: str
    kind: str
    what: str
    context: list[int]
    at: int | None = None
    shift: int = 0
    skip: int = 0  # first tokens of the output that are not the engine's own


class Search(NamedTuple):
    """The search for the cause of one output, `case`.

    Attributes:
        near: prompts of other outputs of the file, by name.
        right: other outputs of the file that are identical.
    """

    replay: Replay
    tokenizer: Any
    eos: frozenset[int]
    case: Judged
    near: dict[str, list[int]]
    right: list[Judged]

    @property
    def prefix(self) -> list[int]:
        return self.case.prompt + self.case.ids[: self.case.at]

    @property
    def rest(self) -> list[int]:
        return self.case.ids[self.case.at :][:WINDOW]

    def cause(self) -> Cause:
        """The likely cause, with what speaks for it."""
        if cause := self._end() or self._prompt() or self._text() or self._missing():
            return cause
        rest = self.rest
        edits = [(self._length(edit, rest), edit) for edit in self._edits(self.case.at)]
        length, edit = max(edits, key=lambda pair: pair[0])
        # a token that is repeated is the evidence itself
        needed = 1 if edit.skip or len(rest) < FEW else 2
        if (count := self._explained(length)) >= needed and length > 1 + edit.skip:
            text = f"{edit.what}: {_of(length - edit.skip, rest[edit.skip :])} follow"
            return Cause(edit.cause, f"{text}, {count} of them not the model's otherwise")
        kinds = [edit for length, edit in sorted(edits, key=lambda pair: -pair[0]) if length > 0]
        return self._repeated(kinds) or self._unedited()

    def _explained(self, length: int) -> int:
        """Wrong positions among the next `length`."""
        return sum(i < self.case.at + length for i in self.case.wrong)

    def _end(self) -> Cause | None:
        ids, at, verdict = self.case.ids, self.case.at, self.case.verdict
        if verdict.given is None:
            return Cause(END, f"the output ends, the model goes on with token {verdict.wanted}")
        if verdict.wanted is None:
            last = f"{ids[at - 1]}, which ends an output"
            what = last if ids[at - 1] in self.eos else f"the {at} tokens asked for"
            return Cause(END, f"it goes on after {what}")
        if verdict.wanted not in self.eos:
            return None
        count = self.replay.follows([*self.prefix, verdict.wanted], self.rest)
        text = f"the model ends here with {verdict.wanted}"
        return Cause(END, f"{text}; after it, {_of(count, self.rest)} follow")

    def _prompt(self) -> Cause | None:
        """Another form of the prompt, or another prompt, after which more of the output is the
        model's. Of two wrong tokens or one, identical outputs have to be the model's so, too.
        """
        case, used = self.case, self.case.prompt
        ids = case.ids[: case.at + WINDOW]
        forms = other_prompts(self.tokenizer, case.output, used)
        others = dict[str, list[int]]()
        if len(case.wrong) > 2:
            starts = range(1, len(used), max(1, len(used) // CUTS))
            forms |= {f"the last {len(used) - at} tokens of it": used[at:] for at in starts}
            others = {f"the prompt of output {name}": given for name, given in self.near.items()}
        pairs = [(self.replay.follows(o, ids), n) for n, o in (forms | others).items() if o != used]
        length, name = max(pairs, key=lambda pair: pair[0], default=(0, ""))
        if self._explained(length - case.at) <= 2:
            again = [(other_prompts(self.tokenizer, *one[:2]), one) for one in self.right]
            followed = (self.replay.follows(f.get(name, o.prompt), o.ids) for f, o in again)
            if length < len(ids) or [*followed] != [len(one.ids) for one in self.right]:
                return None
        evidence = f"after {name}, {_of(length, ids)} are the model's"
        return Cause(ORDER if name in others else PROMPT, evidence)

    def _text(self) -> Cause | None:
        """The same letters: only spaces, the form of a character, or special tokens differ."""
        case, decode = self.case, self.tokenizer.decode
        if case.output.ids is not None or not case.output.text:
            return None
        texts, before = Texts(self.tokenizer, case.prompt, case.output.special), case.ids[: case.at]
        ids = before + self.rest
        made = before + self.replay.greedy(self.prefix, len(self.rest) + 4, self.eos)
        for special in (True, False):
            whole = decode(made, skip_special_tokens=special)
            every = (whole, texts.text(ids), texts.text(before))
            forms = ("".join(unicodedata.normalize("NFKC", text).split()) for text in every)
            wanted, given, same = (form.replace(BROKEN, "") for form in forms)
            if wanted.startswith(given) and len(given) > len(same) + 3:
                return Cause(TEXT, "only spaces, forms of characters or special tokens differ")
        return None

    def _missing(self) -> Cause | None:
        """The model's tokens put in wherever the output parts, at fewer places than are wrong."""
        context, rest, done, places = self.prefix, self.rest, 0, 0
        while done < len(rest) and places < GAPS:
            lost = self.replay.greedy(context, GAP, frozenset())
            tries = (
                (n, self.replay.follows(context + lost[:n], rest[done:])) for n in range(1, GAP + 1)
            )
            n, count = next((pair for pair in tries if pair[1]), (0, 0))
            if not count:
                break
            context += [*lost[:n], *rest[done : done + count]]
            places, done = places + 1, done + count
        if done < 2 or places >= self._explained(done):
            return None
        text = f"with the model's tokens put in at {places} places, the first here"
        return Cause(MISSING, f"{text}, {_of(done, rest)} follow")

    def _length(self, edit: Edit, rest: list[int]) -> int:
        """Tokens of `rest` that an edit explains, those that it skips among them."""
        count = self.replay.follows(edit.context, rest[edit.skip :], edit.at, edit.shift)
        return count + edit.skip if count else 0

    def _repeated(self, edits: list[Edit]) -> Cause | None:
        """A kind of edit that explains the first wrong tokens, one by one."""
        left, places = list(edits), self.case.wrong[1:WRONG]
        for place in places:
            rest, kinds = self.case.ids[place : place + 2], {edit.kind for edit in left}
            again = [edit for edit in self._edits(place) if edit.kind in kinds]
            kinds = {edit.kind for edit in again if self._length(edit, rest)}
            left = [edit for edit in left if edit.kind in kinds]
        if not (left and places):
            return None
        also = f"so do those at {', '.join(map(str, places))} in the same way"
        return Cause(left[0].cause, f"{left[0].what}: the token follows; {also}")

    def _edits(self, at: int) -> Iterator[Edit]:
        """Contexts of `at` with a row too few or many, of another token, or at another position."""
        case = self.case
        tokens, end = case.prompt + case.ids[:at], len(case.prompt) + at
        first = max(1, end - BACK)
        wanted, given = case.best[at], case.ids[at]
        if given == tokens[-1]:
            yield Edit(DOUBLED, "left", "without the token that it repeats", tokens, skip=1)
            yield Edit(DOUBLED, "both", "after a token that it repeats", [*tokens, given], skip=1)
        likely = self.replay.logits(tokens, end - first + 1).topk(NEXT).indices.tolist()
        for place in range(end - 1, first - 1, -1):
            before, token, after = tokens[:place], tokens[place], tokens[place + 1 :]
            name = f"position {place - len(case.prompt)}"
            for shift in (1, -1, 2):
                what = f"positions off by {shift:+} from {name} on"
                yield Edit(POSITIONS, f"{shift:+}", what, tokens, place, shift)
            yield Edit(STALE, "without", f"without the K/V row of {name}", before + after)
            yield Edit(STALE, "hole", f"with a hole at {name}", before + after, place, 1)
            twice = [*before, token, *tokens[place:]]
            yield Edit(STALE, "twice", f"with the K/V row of {name} twice", twice)
            for other in [o for o in likely[place - first] if o != token][:ALTERNATIVES]:
                what = f"with the row of token {other} at {name}"
                yield Edit(STALE, "other", what, [*before, other, *after])
                more = [*before, token, other, *after]
                yield Edit(STALE, "more", f"with a row of token {other} after {name}", more)
                what = f"seeing token {other} beside {name}"
                yield Edit(STALE, "beside", what, more, place + 1, -1)
        for other in (o for o in likely[-1] if o != wanted):
            what = f"with a row of token {other} after the last"
            yield Edit(STALE, "next", what, [*tokens, other])

    def _unedited(self) -> Cause:
        """What no edit explains: another choice among the logits, one wrong token that the rest
        follows, or many.
        """
        case, rest = self.case, self.rest
        wrong, total = case.wrong, len(case.ids) - case.at
        logits = self.replay.logits(case.prompt + case.ids[:-1], len(case.ids)).cpu()
        given = logits.gather(-1, torch.tensor(case.ids)[:, None])
        ranks = ((logits > given).sum(-1)[torch.tensor(wrong)] + 1).tolist()
        rank, same = Counter(ranks).most_common(1)[0]
        if len(wrong) > 2 and same > 0.9 * len(wrong):
            return Cause(RANK, f"{same} of {len(wrong)} wrong tokens have rank {rank}")
        if cause := _processor(case, logits):
            return cause
        kept, shown = (
            self.replay.follows([*self.prefix, token], rest[1:])
            for token in (rest[0], case.best[case.at])
        )
        if shown > kept + 1:
            return Cause(SHOWN, f"with the model's in its place, {_of(shown, rest[1:])} follow")
        unlikely = max(ranks) > NEXT and kept < min(FEW, len(rest) - 1)
        if (len(wrong) > MANY * total or unlikely) and total > 3:
            own = f"{total - len(wrong)} of {total} tokens from here on are the model's"
            if case.at < BEGUN:
                return Cause(MODEL, f"{own}, and no other form of the prompt explains them")
            text = f"{own}, all {case.at} before are: rows of the cache have become others"
            return Cause(STALE, text)
        return Cause(KEPT, f"the output goes on from it: {_of(kept, rest[1:])} follow")


def _of(count: int, rest: list[int]) -> str:
    return f"{count} of the next {len(rest)} tokens"


def _processor(case: Judged, logits: Tensor) -> Cause | None:
    """A processor of logits with which nearly all tokens are the model's."""
    tokens, begin, left = torch.tensor([[*case.prompt, *case.ids]]), len(case.prompt), {}
    for name, process in PENALTIES.items():
        rows = enumerate(logits[:, None], begin)
        chosen = [int(process(tokens[:, :at], row.clone()).argmax()) for at, row in rows]
        left[name] = sum(a != b for a, b in zip(chosen, case.ids, strict=True))
    name, total = min(left, key=lambda one: left[one]), len(case.ids)
    if 4 * left[name] > len(case.wrong):
        return None
    text = f"with {name}, {total - left[name]} of {total} tokens are the model's"
    return Cause(PROCESSOR, f"{text}, {total - len(case.wrong)} without")
