"""The vocabulary of the mini datasets, and the one way in which a word is drawn."""

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
    """One of `options`, the i-th with weight 1 / (i + 2): some phrases are commoner, none is nearly
    certain.
    """
    weights = list(accumulate(1.0 / (i + 2) for i in range(len(options))))
    return rng.choices(options, cum_weights=weights)[0]
