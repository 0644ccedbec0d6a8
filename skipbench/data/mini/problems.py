"""mini-code: small Python functions from a signature and a docstring, with tests that do not come
from the solution. mini-math: word problems of two or three steps, answered as GSM8K's (`#### n`).
"""

import random
from collections.abc import Callable

from skipbench.data.mini.texts import GOODS, HOLDERS, NAMES, pick

_Unary = tuple[str, str, Callable[[int], object]]  # words, expression, meaning

_Problem = tuple[tuple[str, str], list[str], int]  # wordings, steps, answer
_FUNCTIONS = ["solve", "compute", "process", "work", "answer", "run", "find", "make"]
_LISTS = ["xs", "items", "numbers", "values", "data"]


def _condition(rng: random.Random) -> _Unary:
    n = rng.randint(2, 9)
    return rng.choice((
        ("even numbers", "x % 2 == 0", lambda x: x % 2 == 0),
        ("odd numbers", "x % 2 == 1", lambda x: x % 2 == 1),
        (f"numbers greater than {n}", f"x > {n}", lambda x: x > n),
        (f"numbers less than {n}", f"x < {n}", lambda x: x < n),
        (f"numbers divisible by {n}", f"x % {n} == 0", lambda x: x % n == 0),
        (f"numbers not equal to {n}", f"x != {n}", lambda x: x != n),
    ))  # fmt: skip


def _mapping(rng: random.Random) -> _Unary:
    n = rng.randint(2, 9)
    return rng.choice((
        ("", "x", lambda x: x),
        ("the squares of ", "x * x", lambda x: x * x),
        (f"{n} times ", f"{n} * x", lambda x: n * x),
        (f"{n} plus ", f"{n} + x", lambda x: n + x),
    ))  # fmt: skip


def _list_function(rng: random.Random, xs: str) -> tuple[str, str, Callable[[list[int]], object]]:
    """Docstring and body of a function of the list `xs`, and what it should return."""
    (which, test, keep), (change, expression, value) = _condition(rng), _mapping(rng)
    what = f"{change}the {which} in {xs}"
    kinds: tuple[tuple[str, str, str, tuple[str, str], Callable[[list[int]], object]], ...] = (
        ("total", "0", f"total += {expression}", ("Return the sum of {}.", "Add up {}."), sum),
        ("result", "[]", f"result.append({expression})", ("Return a list of {}.", "Collect {}."),
         list),
        ("count", "0", "count += 1",
         (f"Count the {which} in {xs}.", f"How many {which} are in {xs}?"), len),
        ("best", "0", f"best = max(best, {expression})",
         ("Return the largest of {}, or 0.", "Find the maximum of {}, or 0."),
         lambda values: max([0, *values])),
    )  # fmt: skip
    name, start, step, wordings, meaning = rng.choice(kinds)
    body = (
        f"    {name} = {start}\n    for x in {xs}:\n        if {test}:\n            {step}\n"
        f"    return {name}\n"
    )

    def expected(items: list[int]) -> object:
        return meaning([int(str(value(x))) for x in items if keep(x)])

    return rng.choice(wordings).format(what), body, expected


def function(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt (signature and docstring), body, and tests computed from the meaning of the words."""
    name, xs = f"{rng.choice(_FUNCTIONS)}_{rng.choice('abcdefgh')}", rng.choice(_LISTS)
    words, body, meaning = _list_function(rng, xs)
    prompt = f'def {name}({xs}):\n    """{words}"""\n'
    inputs = [[], *([rng.randint(0, 20) for _ in range(6)] for _ in range(4))]
    tests = "".join(f"assert {name}({case}) == {meaning(case)}\n" for case in inputs)
    return prompt, body, {"tests": tests, "entry_point": name}


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


def word_problem(rng: random.Random) -> tuple[str, str, dict[str, object]]:
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
