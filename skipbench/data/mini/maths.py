"""mini-math: word problems of two or three steps with a worked answer in GSM8K's form (`####
n`).
"""

import random
from collections.abc import Callable

from skipbench.data.mini.words import GOODS, HOLDERS, NAMES, pick

_Problem = tuple[str, list[str], int]


def _bags_then_away(rng: random.Random, name: str, other: str, goods: str, holder: str) -> _Problem:
    start, bags, each = rng.randint(2, 30), rng.randint(2, 9), rng.randint(2, 9)
    gained, total = bags * each, start + bags * each
    away = rng.randint(1, min(total - 1, 40))
    text = pick(
        rng,
        (
            f"{name} has {start} {goods} and buys {bags} {holder} with {each} {goods} each. "
            f"{name} gives {away} {goods} to {other}.",
            f"There are {bags} {holder} with {each} {goods} in each. {name} already had "
            f"{start} {goods} and eats {away}.",
        ),
    )
    return (
        text,
        [
            f"{bags} * {each} = {gained}",
            f"{start} + {gained} = {total}",
            f"{total} - {away} = {total - away}",
        ],
        total - away,
    )


def _two_friends(rng: random.Random, name: str, other: str, goods: str, holder: str) -> _Problem:
    first, more = rng.randint(3, 40), rng.randint(2, 20)
    second = first + more
    text = pick(
        rng,
        (
            f"{name} has {first} {goods}. {other} has {more} more {goods} than {name}. They "
            "put them together.",
            f"{other} has {more} {goods} more than {name}, who has {first}. They count all "
            f"{goods}.",
        ),
    )
    return (
        text,
        [f"{first} + {more} = {second}", f"{first} + {second} = {first + second}"],
        first + second,
    )


def _times_and_left(rng: random.Random, name: str, other: str, goods: str, holder: str) -> _Problem:
    bags, each = rng.randint(2, 9), rng.randint(3, 9)
    total = bags * each
    lost = rng.randint(1, total - 1)
    text = pick(
        rng,
        (
            f"{name} fills {bags} {holder} with {each} {goods} each. Then {name} loses "
            f"{lost} {goods}.",
            f"{name} packs {each} {goods} into each of {bags} {holder} and sells {lost} "
            f"{goods} to {other}.",
        ),
    )
    return text, [f"{bags} * {each} = {total}", f"{total} - {lost} = {total - lost}"], total - lost


def _days(rng: random.Random, name: str, other: str, goods: str, holder: str) -> _Problem:
    daily, days, extra = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 30)
    total = daily * days
    text = pick(
        rng,
        (
            f"{name} finds {daily} {goods} every day for {days} days. {other} gives {name} "
            f"{extra} more {goods}.",
            f"For {days} days {name} makes {daily} {goods} a day, and {extra} {goods} on the "
            "last evening.",
        ),
    )
    return (
        text,
        [f"{days} * {daily} = {total}", f"{total} + {extra} = {total + extra}"],
        total + extra,
    )


_KINDS: tuple[Callable[[random.Random, str, str, str, str], _Problem], ...] = (
    _bags_then_away,
    _two_friends,
    _times_and_left,
    _days,
)


def make(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt, worked body and the integer answer."""
    name, other = rng.sample(NAMES, 2)
    goods = rng.choice(GOODS)
    text, steps, answer = rng.choice(_KINDS)(rng, name, other, goods, rng.choice(HOLDERS))
    prompt = f"Question: {text} How many {goods} are there now?\nAnswer:"
    return prompt, "".join(f" {step}." for step in steps) + f" #### {answer}", {"answer": answer}


def drill(rng: random.Random) -> str:
    """A line of bare arithmetic in the ranges of the problems: training text only, never a
    dataset.
    """
    lines = []
    for _ in range(6):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        c, d = rng.randint(1, 99), rng.randint(1, 60)
        low, high = sorted((c, d))
        lines.append(
            rng.choice(
                (f"{a} * {b} = {a * b}", f"{c} + {d} = {c + d}", f"{high} - {low} = {high - low}")
            )
        )
    return "Sums: " + ". ".join(lines) + "."
