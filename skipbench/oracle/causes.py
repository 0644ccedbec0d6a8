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

from skipbench.oracle.outputs import Output
from skipbench.oracle.prompts import Texts, other_prompts
from skipbench.oracle.replay import Replay
from skipbench.oracle.verdict import Cause, Verdict

WINDOW = 32  # tokens after the divergence that an edit has to explain
BACK = 6  # rows before the divergence that may be the fault
NEXT = 6  # most likely tokens of the divergence, of which a rejected one may have been read
ALTERNATIVES = 2  # most likely other tokens of a position, of which a stale row may be

MANY = 0.35  # share of wrong tokens from which on they are no single ones
GAP, GAPS = 3, 8  # tokens in a row that may be missing, and in all
WRONG = 3  # wrong tokens of which each has to be explained by the same kind of edit
FEW = 4  # tokens at the end of an output, too few to show a second wrong one
BEGUN = 3  # tokens after which an output that was the model's has begun with its prompt and weights

PROMPT = "prompt: another template or BOS"
END = "stop or EOS rule"
TEXT = "detokenisation"
MISSING = "bonus token missing"
DOUBLED = "bonus token doubled"
STALE = "output of another position: a stale K/V row"
POSITIONS = "wrong position ids"
KEPT = "draft token kept after a rejection"
SHOWN = "another token shown than the engine went on with"
RANK = "another rank than the first"
MODEL = "another model or template"


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


def cause_of(replay: Replay, tokenizer: Any, case: Judged, eos: frozenset[int]) -> Cause:
    """The likely cause, with what speaks for it."""
    for find in (_end, _prompt, _text):
        if (cause := find(replay, tokenizer, case, eos)) is not None:
            return cause
    prefix, rest = case.prompt + case.ids[: case.at], case.ids[case.at : case.at + WINDOW]
    if (cause := _missing(replay, case, prefix, rest)) is not None:
        return cause
    edits = [(_length(replay, edit, rest), edit) for edit in _edits(replay, case, case.at)]
    length, edit = max(edits, key=lambda pair: pair[0])
    # a token that is repeated is the evidence itself
    needed = 1 if edit.skip or len(rest) < FEW else 2
    if (count := _explained(case, length)) >= needed and length > 1 + edit.skip:
        text = f"{edit.what}: {_of(length - edit.skip, rest[edit.skip :])} follow"
        return Cause(edit.cause, f"{text}, {count} of them not the model's otherwise")
    kinds = [edit for length, edit in sorted(edits, key=lambda pair: -pair[0]) if length > 0]
    return _repeated(replay, case, kinds) or _one_token(replay, case, prefix, rest)


def _missing(replay: Replay, case: Judged, prefix: list[int], rest: list[int]) -> Cause | None:
    """The model's token put in wherever the output parts; believed for fewer than wrong ones."""
    context, done, put = list(prefix), 0, list[int]()
    while done < len(rest) and len(put) < GAPS:
        lost = replay.greedy(context, 1, frozenset())
        while not (count := replay.follows(context + lost, rest[done:])) and len(lost) < GAP:
            lost += replay.greedy(context + lost, 1, frozenset())
        if not count:
            break
        context += [*lost, *rest[done : done + count]]
        put, done = put + lost, done + count
    if done > 1 and len(put) < _explained(case, done):
        text = f"with {len(put)} of the model's tokens put in, {put[0]} here"
        return Cause(MISSING, f"{text}, {_of(done, rest)} follow")
    return None


def _length(replay: Replay, edit: Edit, rest: list[int]) -> int:
    """Tokens of `rest` that an edit explains, those that it skips among them."""
    count = replay.follows(edit.context, rest[edit.skip :], edit.at, edit.shift)
    return count + edit.skip if count else 0


def _repeated(replay: Replay, case: Judged, edits: list[Edit]) -> Cause | None:
    """A kind of edit that explains the first wrong tokens, one by one."""
    left, places = list(edits), case.wrong[1:WRONG]
    for place in places:
        rest = case.ids[place : place + 2]
        again = [e for e in _edits(replay, case, place) if e.kind in {one.kind for one in left}]
        kinds = {e.kind for e in again if _length(replay, e, rest)}
        left = [edit for edit in left if edit.kind in kinds]
    if not (left and places):
        return None
    also = f"so do those at {', '.join(map(str, places))} in the same way"
    return Cause(left[0].cause, f"{left[0].what}: the token follows; {also}")


def _explained(case: Judged, length: int) -> int:
    """Wrong positions among the next `length`."""
    return sum(case.at <= i < case.at + length for i in case.wrong)


def _of(count: int, rest: list[int]) -> str:
    return f"{count} of the next {len(rest)} tokens"


def _end(replay: Replay, _: Any, case: Judged, eos: frozenset[int]) -> Cause | None:
    at, verdict = case.at, case.verdict
    if verdict.given is None:
        return Cause(END, f"the output ends, the model goes on with token {verdict.wanted}")
    if verdict.wanted is None:
        return Cause(END, f"it goes on after {case.ids[at - 1]}, which ends an output")
    if verdict.wanted in eos:
        rest = case.ids[at:][:WINDOW]
        count = replay.follows([*case.prompt, *case.ids[:at], verdict.wanted], rest)
        text = f"the model ends here with {verdict.wanted}"
        return Cause(END, f"{text}; after it, {_of(count, rest)} follow")
    return None


def _prompt(replay: Replay, tokenizer: Any, case: Judged, _: Any) -> Cause | None:
    """Another form of the prompt after which the output is the model's for longer."""
    ids, others = case.ids[: case.at + WINDOW], other_prompts(tokenizer, case.output, case.prompt)
    lengths = [(replay.follows(ids_, ids), name) for name, ids_ in others if ids_ != case.prompt]
    length, name = max(lengths, key=lambda pair: pair[0], default=(0, ""))
    if length == len(ids) or _explained(case, length - case.at) > 2:
        return Cause(PROMPT, f"after {name}, {_of(length, ids)} are the model's")
    return None


def _text(replay: Replay, tokenizer: Any, case: Judged, eos: frozenset[int]) -> Cause | None:
    """The same letters: only spaces, the form of a character, or special tokens differ."""
    if case.output.ids is not None or not case.output.text:
        return None
    texts, ids = Texts(tokenizer, case.prompt), case.ids[: case.at + WINDOW]
    made = replay.greedy(case.prompt + case.ids[: case.at], len(ids) - case.at + 4, eos)
    for special in (True, False):
        whole = tokenizer.decode(case.ids[: case.at] + made, skip_special_tokens=special)
        every = (whole, texts.text(ids), texts.text(ids[: case.at]))
        forms = ("".join(unicodedata.normalize("NFKC", text).split()) for text in every)
        wanted, given, before = (form.replace("\ufffd", "") for form in forms)
        if wanted.startswith(given) and len(given) > len(before) + 3:
            return Cause(TEXT, "only spaces, forms of characters or special tokens differ")
    return None


def _edits(replay: Replay, case: Judged, at: int) -> Iterator[Edit]:
    """Contexts of `at` with a row too few, too many, of another token, or at another position."""
    tokens, end = case.prompt + case.ids[:at], len(case.prompt) + at
    first = max(1, end - BACK)
    wanted, given = case.best[at], case.ids[at]
    if given == tokens[-1]:
        yield Edit(DOUBLED, "left", "without the token that it repeats", tokens, skip=1)
        yield Edit(DOUBLED, "both", "after a token that it repeats", [*tokens, given], skip=1)
    likely = replay.logits(tokens, end - first + 1).topk(NEXT).indices.tolist()
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
        others = [other for other in likely[place - first] if other != token][:ALTERNATIVES]
        for other in others:
            what = f"with the row of token {other} at {name}"
            yield Edit(STALE, "other", what, [*before, other, *after])
            more = [*before, token, other, *after]
            yield Edit(STALE, "more", f"with a row of token {other} after {name}", more)
            what = f"seeing token {other} beside {name}"
            yield Edit(STALE, "beside", what, more, place + 1, -1)
    for other in (o for o in likely[-1] if o != wanted):
        what = f"with a row of token {other} after the last"
        yield Edit(STALE, "next", what, [*tokens, other])


def _one_token(replay: Replay, case: Judged, prefix: list[int], rest: list[int]) -> Cause:
    """What no edit explains: one wrong token that the rest follows, or many."""
    wrong, total = case.wrong, len(case.ids) - case.at
    logits = replay.logits(case.prompt + case.ids[:-1], len(case.ids))
    given = logits.gather(-1, torch.tensor(case.ids)[:, None])
    ranks = ((logits > given).sum(-1)[torch.tensor(wrong)] + 1).tolist()
    rank, same = Counter(ranks).most_common(1)[0]
    if len(wrong) > 2 and same > 0.9 * len(wrong):
        return Cause(RANK, f"{same} of {len(wrong)} wrong tokens have rank {rank} of the logits")
    kept, shown = (
        replay.follows([*prefix, token], rest[1:]) for token in (rest[0], case.best[case.at])
    )
    if shown > kept + 1:
        return Cause(SHOWN, f"with the model's token in its place, {_of(shown, rest[1:])} follow")
    if len(wrong) > MANY * total and total > 3:
        own = f"{total - len(wrong)} of {total} tokens from here on are the model's"
        if case.at < BEGUN:
            return Cause(MODEL, f"{own}, and no other form of the prompt explains them")
        text = f"{own}, all {case.at} before are: rows of the cache have become others"
        return Cause(STALE, text)
    return Cause(KEPT, f"the output goes on from it: {_of(kept, rest[1:])} follow")
