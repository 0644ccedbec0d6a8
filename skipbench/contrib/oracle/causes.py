"""The likely cause of a wrong output, where the model shows it: the end, another form of the
prompt, or a draft token that was kept after a rejection. Of any other fault no cause is named.
"""

from typing import Any, NamedTuple

from skipbench.contrib.oracle.outputs import Output
from skipbench.contrib.oracle.prompts import other_prompts
from skipbench.contrib.oracle.replay import Replay
from skipbench.decode.lossless import END, Cause, Verdict

WINDOW = 32  # tokens from the divergence on that a cause has to explain
RARE = 0.35  # share of wrong tokens up to which they are single ones
LIKELY = 6  # a draft's token is one of so many likeliest
PROMPT = "prompt: another template or BOS"
KEPT = "draft token kept after a rejection"


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


def cause_of(case: Judged, replay: Replay, tokenizer: Any, eos: frozenset[int]) -> Cause | None:
    """The likely cause of a wrong output, with what speaks for it; None where nothing does."""
    return _end(case, replay, eos) or _prompt(case, replay, tokenizer) or _kept(case, replay)


def _end(case: Judged, replay: Replay, eos: frozenset[int]) -> Cause | None:
    """It goes on where it has to end, or ends where the model goes on."""
    ids, at, verdict = case.ids, case.at, case.verdict
    if verdict.given is None:
        return Cause(END, f"the output ends, the model goes on with token {verdict.wanted}")
    if verdict.wanted is None:
        last = f"{ids[at - 1]}, which ends an output"
        what = last if ids[at - 1] in eos else f"the {at} tokens asked for"
        return Cause(END, f"it goes on after {what}")
    if verdict.wanted not in eos:
        return None
    rest = ids[at:][:WINDOW]
    count = replay.follows([*case.prompt, *ids[:at], verdict.wanted], rest)
    text = f"the model ends here with {verdict.wanted}"
    return Cause(END, f"{text}; after it, {count} of the next {len(rest)} tokens follow")


def _prompt(case: Judged, replay: Replay, tokenizer: Any) -> Cause | None:
    """After another form of the prompt all tokens are the model's, from the first one to the last
    of the window.
    """
    ids = case.ids[: case.at + WINDOW]
    for name, other in other_prompts(tokenizer, case.output, case.prompt).items():
        if other != case.prompt and replay.follows(other, ids) == len(ids):
            return Cause(PROMPT, f"after {name}, the first {len(ids)} tokens are all the model's")
    return None


def _kept(case: Judged, replay: Replay) -> Cause | None:
    """Single wrong tokens, each among the likeliest, which the model's own follow."""
    wrong, rest = case.wrong, len(case.ids) - case.at
    if rest < 2 or len(wrong) > max(1, RARE * rest):
        return None
    logits = replay.logits(case.prompt + case.ids[:-1], len(case.ids))
    ranks = [int((logits[place] > logits[place][case.ids[place]]).sum()) + 1 for place in wrong]
    seen = [{*case.prompt, *case.ids[:place]} for place in wrong]
    pairs = zip(wrong, seen, strict=True)
    # as a penalty of repeated tokens does: each time a new token in the place of one that is there
    penalty = all(case.best[p] in there and case.ids[p] not in there for p, there in pairs)
    if max(ranks) > LIKELY or penalty:
        return None
    text = f"{len(wrong)} of {rest} tokens from here on are not the model's"
    return Cause(KEPT, f"{text}, each of rank {max(ranks)} or above; the others follow from them")
