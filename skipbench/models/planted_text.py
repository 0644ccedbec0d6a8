"""What a planted model says, and which of its sub-layers it needs for that."""

import random
from itertools import accumulate, cycle, pairwise
from typing import NamedTuple

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError

LENGTH = 6  # words of a phrase
REACH = 5  # phrases back to the one that decides what follows
OWNED = 0.6  # share of the words behind which a sub-layer decides
SPREAD = 100.0  # the largest strength over the smallest
DECOYS = (1, 1, 3, 15)  # tokens that lead where a sub-layer is missing, by word in turn
PERIOD = 64  # phrases, at least, until a text repeats itself as a whole
DRAWS = 3000  # of which one has that, unless there are few phrases
LEAST, MOST = 4 * LENGTH, 20 * LENGTH  # words of a text


class PlantedText(NamedTuple):
    """A text without end, of phrases whose words follow one another.

    Word `n` is word `n % LENGTH` of phrase `n // LENGTH`. Behind phrase p comes `on[p]` if the
    phrase `REACH` before p is in `chosen`, else `off[p]`. So phrases repeat, in changing order.
    """

    ids: list[int]  # the token of each word
    read_as: list[int]  # by token, the word as which the model reads it; every token is read as one
    on: list[int]
    off: list[int]
    chosen: frozenset[int]
    owners: dict[int, int]  # by word, the sub-layer without which a decoy follows
    decoys: dict[int, list[int]]  # by word, the tokens of its decoys, the last of which leads

    def shares(self, layers: int) -> list[float]:
        """By sub-layer, the share of the text's tokens that are wrong without it.

        A token needs one sub-layer at most, besides sub-layer 1 (the first MLP), which all need.
        So a draft is right for 1 less the sum of what it leaves out: `alpha_cond` of a long text.
        Sub-layer 0 decides between two phrases, of which the one without it is right half of the
        time.
        """
        found = [0.0] * (2 * layers)
        for owner in self.owners.values():
            found[owner] += 1 / len(self.ids)
        found[:2] = 0.5 / LENGTH, 1.0
        return found


def strengths(redundant: DraftPlan, seed: int) -> dict[int, float]:
    """Strength by sub-layer, largest first: all behind the first layer but those of `redundant`, in
    drawn order. Each is the same part of the one before, the last 1 / `SPREAD` of the first; their
    sum is `OWNED`.
    """
    others = [s for s in range(2, 2 * redundant.layers) if s not in redundant.skipped]
    random.Random(seed).shuffle(others)
    sizes = [SPREAD ** (-i / max(1, len(others) - 1)) for i in range(len(others))]
    return {s: OWNED * size / sum(sizes) for s, size in zip(others, sizes, strict=True)}


def planted_text(
    redundant: DraftPlan, seed: int, words: int, most: int, owners: int
) -> PlantedText:
    """Draws the text of a model, of `most` words, in which no word needs a `redundant` sub-layer,
    and the others need one of the `owners` strongest. Of the tokenizer's `words` the first and the
    last eighth, where it keeps those that are no text, are never said. Raises SkipbenchError for
    too few.
    """
    spoken = range(words // 8, words - words // 8)
    count = min(MOST, most, int(len(spoken) / (1 + OWNED))) // (2 * LENGTH) * 2 * LENGTH
    if count < LEAST:
        few = f"{words} tokens, or the hidden size, are too few for a text of {LEAST} words"
        raise SkipbenchError(f"planted: {few}; wanted 64 or more of both")
    draw = random.Random(seed)
    places = [n for n in range(count) if 0 < n % LENGTH < LENGTH - 1]
    sizes = dict(list(strengths(redundant, seed).items())[:owners])
    ends = [round(count * total) for total in accumulate(sizes.values(), initial=0.0)]
    owned = dict[int, int]()
    drawn = draw.sample(places, ends[-1])
    for owner, (start, end) in zip(sizes, pairwise(ends), strict=True):
        owned |= dict.fromkeys(drawn[start:end], owner)
    said = draw.sample(spoken, count + len(owned))
    ids, pool = said[:count], said[count:]
    sized = zip(owned, cycle(DECOYS), strict=False)
    decoys = {word: draw.sample(pool, min(number, len(pool))) for word, number in sized}
    read_as = [draw.randrange(count) for _ in range(words)]
    for n, token in enumerate(ids):
        read_as[token] = n
    orders = _orders(draw, count // LENGTH)
    return PlantedText(ids, read_as, *orders, owned, decoys)


def _orders(draw: random.Random, phrases: int) -> tuple[list[int], list[int], frozenset[int]]:
    """Draws `on`, `off` and `chosen` until no text repeats itself within `PERIOD` phrases, or the
    best of `DRAWS`.

    A phrase comes behind one phrase of `chosen` and one of the others, so that two pasts never lead
    to the same one: all texts are circles, and none runs into another.
    """
    half, best, found = phrases // 2, 0, None
    for _ in range(DRAWS):
        part, targets = (draw.sample(range(phrases), phrases) for _ in range(2))
        on, off = [0] * phrases, [0] * phrases
        for behind in (part[:half], part[half:]):
            for follow, into in ((on, targets[:half]), (off, targets[half:])):
                for phrase, target in zip(behind, draw.sample(into, half), strict=True):
                    follow[phrase] = target
        if any(phrase in (on[phrase], off[phrase]) for phrase in range(phrases)):
            continue  # one would follow itself
        drawn = on, off, frozenset(part[:half])
        if (period := _shortest(*drawn)) > best:
            best, found = period, drawn
        if best >= PERIOD:
            break
    assert found is not None
    return found


def _shortest(on: list[int], off: list[int], chosen: frozenset[int]) -> int:
    """Phrases until the first of all texts repeats itself."""
    pasts, seen, found = 1 << REACH, set[int](), []
    for begin in range(len(on) * pasts):
        at, before = begin, len(seen)
        while at not in seen:
            seen.add(at)
            phrase, past = divmod(at, pasts)  # its lowest bit is of the phrase `REACH` before
            after = on[phrase] if past & 1 else off[phrase]
            at = after * pasts + (past >> 1) + (phrase in chosen) * (pasts >> 1)
        found.append(len(seen) - before or len(on) * pasts)
    return min(found)
