"""Two of the mini datasets, and the words and sentences of all, from texts.yaml. mini-stories:
short tales whose hero, friend, place and treasure must stay the same to the end. mini-summary:
short news items whose five facts (day, person, deed, city, number) belong into the summary.
"""

import functools
import random
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import msgspec


class _Texts(msgspec.Struct):
    """The contents of texts.yaml."""

    words: dict[str, str]
    story: dict[str, list[str]]
    beats: dict[str, list[str]]
    news: dict[str, list[str]]
    deeds: dict[str, str]
    problems: dict[str, list[str]]


TEXTS = msgspec.yaml.decode(Path(__file__).with_suffix(".yaml").read_bytes(), type=_Texts)
WORDS = {kind: words.split() for kind, words in TEXTS.words.items()}


def pick(rng: random.Random, options: Sequence[str]) -> str:
    """One of `options`, the i-th with weight 1 / (i + 2): some are commoner, none is certain."""
    ends = _ends(len(options))  # as `rng.choices`, three times as fast
    return options[bisect(ends, rng.random() * ends[-1], 0, len(options) - 1)]


@functools.cache
def _ends(count: int) -> list[float]:
    return list(accumulate(1.0 / (i + 2) for i in range(count)))


def story(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt, body and the names that the body must keep to."""
    hero, friend = rng.sample(WORDS["names"], 2)
    animals, places = rng.sample(WORDS["animals"], 3), rng.sample(WORDS["places"], 2)
    colour = rng.choice(WORDS["colours"])
    thing = f"{colour} {rng.choice(WORDS['objects'])}"
    words = {"hero": hero, "friend": friend, "colour": colour, "thing": thing}
    words |= zip(("animal", "animal2", "animal3", "place", "place2"), animals + places, strict=True)

    def say(options: Sequence[str]) -> str:
        text, slots = pick(rng, options), ("mood", "sad", "glad", "weather", "under")
        return text.format(**words, **{slot: pick(rng, WORDS[slot]) for slot in slots})

    prompt = "Story: " + " ".join(say(part) for part in TEXTS.story.values())
    # The beats are equally likely on purpose: a draft must disagree with its model somewhere.
    body = "".join(" " + say([rng.choice(beat)]) for beat in TEXTS.beats.values())
    return prompt, body, {"names": [hero, friend], "thing": thing}


def news(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt (the article), summary and the facts that must be in it."""
    deed, detail = rng.choice(list(TEXTS.deeds.items()))
    kinds = {"city": "cities", "day": "days", "role": "roles", "first": "names", "last": "surnames"}
    words = {slot: rng.choice(WORDS[kind]) for slot, kind in kinds.items()}
    words |= {"deed": deed, "count": str(rng.randint(10, 99))}
    crowd, quote, filler = (pick(rng, TEXTS.news[part]) for part in ("crowd", "quote", "filler"))
    rng.shuffle(middle := [crowd, quote, detail, filler])
    parts = [*(pick(rng, TEXTS.news[part]) for part in ("lead", "deed")), *middle]
    # Equally likely on purpose: a draft must disagree with its model somewhere, and a copied fact
    # leaves no choice.
    first, second, third = (rng.choice(TEXTS.news[part]) for part in ("first", "second", "third"))
    article, body = " ".join(parts).format(**words), f" {first} {second}{third}".format(**words)
    facts = [words["day"], f"{words['first']} {words['last']}", deed, words["city"], words["count"]]
    return f"Article: {article}\nSummary:", body, {"facts": facts}
