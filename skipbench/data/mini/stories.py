"""mini-stories: short tales whose hero, friend, place and treasure must stay the same to the
end.
"""

import random

from skipbench.data.mini.words import ANIMALS, COLOURS, NAMES, OBJECTS, PLACES, pick

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


def make(rng: random.Random) -> tuple[str, str, dict[str, object]]:
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
