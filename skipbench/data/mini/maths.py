"""mini-math: word problems of two or three steps, the worked answer in GSM8K's form (`#### n`)."""

import random

from skipbench.data.mini.words import GOODS, HOLDERS, NAMES, pick

_Problem = tuple[tuple[str, str], list[str], int]  # wordings, steps, answer


def _bags_then_away(rng: random.Random, name: str, other: str, goods: str, holder: str) -> _Problem:
    start, bags, each = rng.randint(2, 30), rng.randint(2, 9), rng.randint(2, 9)
    gained, total = bags * each, start + bags * each
    away = rng.randint(1, min(total - 1, 40))
    left = total - away
    texts = (
        f"{name} has {start} {goods} and buys {bags} {holder} with {each} {goods} each. "
        f"{name} gives {away} {goods} to {other}.",
        f"There are {bags} {holder} with {each} {goods} in each. {name} already had "
        f"{start} {goods} and eats {away}.",
    )
    steps = [f"{bags} * {each} = {gained}", f"{start} + {gained} = {total}"]
    return texts, [*steps, f"{total} - {away} = {left}"], left


def _two_friends(rng: random.Random, name: str, other: str, goods: str, holder: str) -> _Problem:
    first, more = rng.randint(3, 40), rng.randint(2, 20)
    second = first + more
    total = first + second
    texts = (
        f"{name} has {first} {goods}. {other} has {more} more {goods} than {name}. They "
        "put them together.",
        f"{other} has {more} {goods} more than {name}, who has {first}. They count all {goods}.",
    )
    return texts, [f"{first} + {more} = {second}", f"{first} + {second} = {total}"], total


def _times_and_left(rng: random.Random, name: str, other: str, goods: str, holder: str) -> _Problem:
    bags, each = rng.randint(2, 9), rng.randint(3, 9)
    total = bags * each
    lost = rng.randint(1, total - 1)
    left = total - lost
    texts = (
        f"{name} fills {bags} {holder} with {each} {goods} each. Then {name} loses {lost} {goods}.",
        f"{name} packs {each} {goods} into each of {bags} {holder} and sells {lost} {goods} to "
        f"{other}.",
    )
    return texts, [f"{bags} * {each} = {total}", f"{total} - {lost} = {left}"], left


def _days(rng: random.Random, name: str, other: str, goods: str, holder: str) -> _Problem:
    daily, days, extra = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 30)
    found = daily * days
    total = found + extra
    texts = (
        f"{name} finds {daily} {goods} every day for {days} days. {other} gives {name} {extra} "
        f"more {goods}.",
        f"For {days} days {name} makes {daily} {goods} a day, and {extra} {goods} on the last "
        "evening.",
    )
    return texts, [f"{days} * {daily} = {found}", f"{found} + {extra} = {total}"], total


def make(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt, worked body and the integer answer."""
    name, other = rng.sample(NAMES, 2)
    goods = rng.choice(GOODS)
    kind = rng.choice((_bags_then_away, _two_friends, _times_and_left, _days))
    texts, steps, answer = kind(rng, name, other, goods, rng.choice(HOLDERS))
    prompt = f"Question: {pick(rng, texts)} How many {goods} are there now?\nAnswer:"
    return prompt, "".join(f" {step}." for step in steps) + f" #### {answer}", {"answer": answer}


def drill(rng: random.Random) -> str:
    """A line of bare arithmetic in the ranges of the problems, for training only."""
    lines = []
    for _ in range(6):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        c, d = rng.randint(1, 99), rng.randint(1, 60)
        low, high = sorted((c, d))
        sums = f"{a} * {b} = {a * b}", f"{c} + {d} = {c + d}", f"{high} - {low} = {high - low}"
        lines.append(rng.choice(sums))
    return f"Sums: {'. '.join(lines)}."
