"""The vocabulary of the mini datasets, and two of them. mini-stories: short tales whose hero,
friend, place and treasure must stay the same to the end. mini-summary: short news items whose five
facts (day, person, deed, city, number) belong into the summary.
"""

import random
from collections.abc import Sequence
from itertools import accumulate


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


NAMES = _words(
    """
    Mia Tom Ana Ben Lily Max Rosa Sam Nora Leo Ella Finn Ivy Hugo Zoe Omar Ruth Noah Tess Paul Maya
    Erik June Adam Kate Luca Vera Dan Gina Rob Sara Otto
    """
)
SURNAMES = _words(
    "Reed Stone Hall Brook Marsh Field Cole Wood Lane Park Ford Webb Holt Nash Cross Dale"
)
ANIMALS = _words("fox rabbit bear mouse duck frog cat dog owl hen goat pony")
COLOURS = _words("red blue green yellow white black golden silver")
OBJECTS = _words("kite ball boat drum lamp bell book cup hat key map coin shell stone flute basket")
PLACES = _words("river hill forest lake garden meadow bridge beach farm mill cave market")
CITIES = _words(
    """
    Dalton Kerrin Milford Aston Brenna Corva Elmont Harlow Ister Jasper Lomond Norwick Oakley Ripley
    Selby Tarrin
    """
)
DAYS = _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday")
GOODS = _words(
    "apples pears cookies pencils stickers marbles cards shells stamps buttons eggs flowers"
)
HOLDERS = _words("bags boxes baskets jars packs trays")


def pick(rng: random.Random, options: Sequence[str]) -> str:
    """One of `options`, the i-th with weight 1 / (i + 2): some are commoner, none is certain."""
    weights = list(accumulate(1.0 / (i + 2) for i in range(len(options))))
    return rng.choices(options, cum_weights=weights)[0]


_OPENINGS = (
    "{hero} was a little {animal} who lived near the {place}.",
    "Near the {place} lived a small {animal} called {hero}.",
    "There once was a {mood} {animal} named {hero}, who had a house by the {place}.",
)
_FRIENDS = (
    "{hero}'s best friend was a {animal2} named {friend}.",
    "{hero} often played with {friend}, a {animal2}.",
    "Every day a {animal2} called {friend} came to visit.",
)
_WISHES = (
    "One day {hero} lost the {thing}.",
    "One morning the {thing} was gone.",
    "More than anything, {hero} wanted a {thing}.",
)
_BEATS = (
    (
        '"Where is my {thing}?" asked {hero}. {friend} did not know.',
        '{hero} was {sad}. "Do not worry," said {friend}. "We will look for the {thing} together."',
        'First {hero} went to {friend}. "Please help me to find the {thing}," said {hero}.',
    ),
    (
        "So {hero} and {friend} walked to the {place2}. They looked under every {under}, but "
        "there was no {thing}.",
        "They ran all the way to the {place2}. It was {weather} there, and {friend} was {sad}.",
        "{friend} had an idea. They went to the {place2} and looked behind a big {under}.",
    ),
    (
        'At the {place2} they met an old {animal3}. "I saw a {thing} near the {place}," said '
        "the {animal3}.",
        'An old {animal3} was asleep at the {place2}. "Have you seen a {thing}?" asked {friend}.',
        "Then they heard a noise. It was an old {animal3} with something {colour}.",
    ),
    (
        "{hero} said thank you and looked again. There it was! The {thing} was under a {under}.",
        'The {animal3} smiled and gave the {thing} to {hero}. "Take good care of it," said '
        "the {animal3}.",
        'Suddenly {friend} began to laugh. "Look, {hero}! The {thing} is right here!"',
    ),
    (
        "{hero} was very {glad}. {friend} was {glad} too.",
        "{hero} hugged {friend} and felt {glad}.",
        "They danced around the {thing} until it was dark.",
    ),
    (
        "From that day on, {hero} and {friend} shared the {thing}.",
        "{hero} never forgot what {friend} did that day.",
        "That night {hero} slept next to the {thing} and was {glad}.",
    ),
)
_SLOTS = {
    "mood": ("happy", "shy", "brave", "clever"),
    "sad": ("sad", "afraid", "tired", "worried"),
    "glad": ("happy", "glad", "proud"),
    "weather": ("cold", "dark", "sunny", "windy"),
    "under": ("tree", "rock", "leaf", "chair"),
}


def story(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt, body and the names that the body must keep to."""
    hero, friend = rng.sample(NAMES, 2)
    animals, places = rng.sample(ANIMALS, 3), rng.sample(PLACES, 2)
    colour = rng.choice(COLOURS)
    thing = f"{colour} {rng.choice(OBJECTS)}"
    words = {"hero": hero, "friend": friend, "colour": colour, "thing": thing}
    words |= zip(("animal", "animal2", "animal3", "place", "place2"), animals + places, strict=True)

    def say(options: tuple[str, ...]) -> str:
        text = pick(rng, options)
        return text.format(**words, **{slot: pick(rng, texts) for slot, texts in _SLOTS.items()})

    prompt = "Story: " + " ".join(say(part) for part in (_OPENINGS, _FRIENDS, _WISHES))
    # The beats are equally likely on purpose: a draft must disagree with its model somewhere.
    body = "".join(" " + say((rng.choice(beat),)) for beat in _BEATS)
    return prompt, body, {"names": [hero, friend], "thing": thing}


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


def news(rng: random.Random) -> tuple[str, str, dict[str, object]]:
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
