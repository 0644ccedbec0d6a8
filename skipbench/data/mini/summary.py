"""mini-summary: short news items whose five facts (day, person, deed, city, number) belong into the
summary.
"""

import random

from skipbench.data.mini.words import CITIES, DAYS, NAMES, SURNAMES, pick

_ROLES = ["mayor", "teacher", "doctor", "farmer", "baker", "painter"]
_DEEDS = (
    ("opened a new library", "The library has three rooms."),
    ("won the big race", "The race was long and hard."),
    ("found a lost dog", "The dog is well and happy."),
    ("planted forty trees", "The trees will give shade in summer."),
    ("built a wooden bridge", "The bridge took two years."),
    ("sold a famous painting", "The painting shows the sea."),
    ("saved an old house", "The house stood empty for years."),
    ("baked a giant cake", "The cake was gone in an hour."),
)
_LEADS = (
    "People in {city} will remember this {day}.",
    "It was a busy {day} in {city}.",
    "{day} was a special day for {city}.",
)
_DEED = (
    "The {role} {first} {last} {deed}.",
    "{first} {last}, a local {role}, {deed}.",
    "That is when {first} {last}, the {role}, {deed}.",
)
_CROWD = (
    "About {count} people came to see it.",
    "A crowd of {count} people was there.",
    "There were {count} guests.",
)
_QUOTES = (
    '"I am very glad," said {last}.',
    '"We worked hard for this," {last} said.',
    "{last} thanked the neighbours.",
)
_FILLERS = (
    "The weather was fine.",
    "Music played until the evening.",
    "The local paper sent a reporter.",
    "There was tea for everyone.",
)
# Equally likely on purpose: a draft must disagree with its model somewhere, and a copied fact
# leaves no choice.
_FIRST = (
    "On {day}, {first} {last} {deed} in {city}.",
    "{first} {last} {deed} in {city} on {day}.",
    "In {city}, {first} {last} {deed} on {day}.",
)
_SECOND = (
    "{count} people came.",
    "About {count} people were there.",
    "It drew a crowd of {count}.",
)
_THIRD = ("", " {last} was glad.", " The {role} was very happy.")


def make(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt (the article), summary and the facts that must be in it."""
    deed, detail = rng.choice(_DEEDS)
    words = {
        "city": rng.choice(CITIES),
        "day": rng.choice(DAYS),
        "role": rng.choice(_ROLES),
        "first": rng.choice(NAMES),
        "last": rng.choice(SURNAMES),
        "deed": deed,
        "count": str(rng.randint(10, 99)),
    }
    middle = [pick(rng, _CROWD), pick(rng, _QUOTES), detail, pick(rng, _FILLERS)]
    rng.shuffle(middle)
    article = " ".join(s.format(**words) for s in (pick(rng, _LEADS), pick(rng, _DEED), *middle))
    body = f" {rng.choice(_FIRST)} {rng.choice(_SECOND)}{rng.choice(_THIRD)}".format(**words)
    facts = [words["day"], f"{words['first']} {words['last']}", deed, words["city"], words["count"]]
    return f"Article: {article}\nSummary:", body, {"facts": facts}
