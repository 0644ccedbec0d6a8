"""The vocabulary of the mini datasets, and the one way in which a word is drawn."""

import random
from collections.abc import Sequence
from itertools import accumulate

NAMES = (
    "Mia Tom Ana Ben Lily Max Rosa Sam Nora Leo Ella Finn Ivy Hugo Zoe Omar Ruth Noah Tess Paul Maya Erik June Adam "
    "Kate Luca Vera Dan Gina Rob Sara Otto"
).split()
SURNAMES = "Reed Stone Hall Brook Marsh Field Cole Wood Lane Park Ford Webb Holt Nash Cross Dale".split()
ANIMALS = "fox rabbit bear mouse duck frog cat dog owl hen goat pony".split()
COLOURS = "red blue green yellow white black golden silver".split()
OBJECTS = "kite ball boat drum lamp bell book cup hat key map coin shell stone flute basket".split()
PLACES = "river hill forest lake garden meadow bridge beach farm mill cave market".split()
CITIES = (
    "Dalton Kerrin Milford Aston Brenna Corva Elmont Harlow Ister Jasper Lomond Norwick Oakley Ripley Selby Tarrin"
).split()
DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
GOODS = "apples pears cookies pencils stickers marbles cards shells stamps buttons eggs flowers".split()
HOLDERS = "bags boxes baskets jars packs trays".split()


def pick(rng: random.Random, options: Sequence[str]) -> str:
    """One of `options`, the i-th with weight 1 / (i + 1): text in which some phrases are common and some rare."""
    weights = list(accumulate(1.0 / (i + 1) for i in range(len(options))))
    return rng.choices(options, cum_weights=weights)[0]
