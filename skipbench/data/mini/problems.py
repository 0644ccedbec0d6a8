"""mini-code: small Python functions from a signature and a docstring, with tests that do not come
from the solution. mini-math: word problems of two or three steps, answered as GSM8K's (`#### n`).
"""

import operator
import random
from collections.abc import Callable

from skipbench.data.mini.texts import TEXTS, WORDS, pick

_Unary = tuple[str, str, Callable[[int], object]]  # words, expression, meaning
_Numbers = tuple[dict[str, int], list[tuple[int, str, int]]]  # by name; sums up to the answer
_SIGNS = {"*": operator.mul, "+": operator.add, "-": operator.sub}
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


def _sum(a: int, sign: str, b: int) -> str:
    return f"{a} {sign} {b} = {_SIGNS[sign](a, b)}"


def _bags(rng: random.Random) -> _Numbers:
    start, bags, each = rng.randint(2, 30), rng.randint(2, 9), rng.randint(2, 9)
    total = start + bags * each
    away = rng.randint(1, min(total - 1, 40))
    sums = [(bags, "*", each), (start, "+", bags * each), (total, "-", away)]
    return {"start": start, "bags": bags, "each": each, "away": away}, sums


def _friends(rng: random.Random) -> _Numbers:
    first, more = rng.randint(3, 40), rng.randint(2, 20)
    return {"first": first, "more": more}, [(first, "+", more), (first, "+", first + more)]


def _losses(rng: random.Random) -> _Numbers:
    bags, each = rng.randint(2, 9), rng.randint(3, 9)
    lost = rng.randint(1, bags * each - 1)
    sums = [(bags, "*", each), (bags * each, "-", lost)]
    return {"bags": bags, "each": each, "lost": lost}, sums


def _days(rng: random.Random) -> _Numbers:
    daily, days, extra = rng.randint(2, 9), rng.randint(2, 9), rng.randint(2, 30)
    sums = [(days, "*", daily), (daily * days, "+", extra)]
    return {"daily": daily, "days": days, "extra": extra}, sums


_PROBLEMS = {"bags": _bags, "friends": _friends, "losses": _losses, "days": _days}


def word_problem(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt, worked body and the integer answer."""
    name, other = rng.sample(WORDS["names"], 2)
    goods = rng.choice(WORDS["goods"])
    kind, draw = rng.choice(list(_PROBLEMS.items()))
    words = {"name": name, "other": other, "goods": goods, "holder": rng.choice(WORDS["holders"])}
    numbers, sums = draw(rng)
    text = pick(rng, TEXTS.problems[kind]).format(**words, **numbers)
    steps = [_sum(*step) for step in sums]
    answer = steps[-1].rpartition(" ")[2]
    body = "".join(f" {step}." for step in steps)
    prompt = f"Question: {text} How many {goods} are there now?\nAnswer:"
    return prompt, f"{body} #### {answer}", {"answer": int(answer)}


def drill(rng: random.Random) -> str:
    """A line of bare arithmetic in the ranges of the problems, for training only."""
    lines = []
    for _ in range(6):
        a, b = rng.randint(2, 9), rng.randint(2, 9)
        c, d = rng.randint(1, 99), rng.randint(1, 60)
        lines.append(_sum(*rng.choice(((a, "*", b), (c, "+", d), (max(c, d), "-", min(c, d))))))
    return f"Sums: {'. '.join(lines)}."
