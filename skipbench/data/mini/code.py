"""mini-code: small Python functions from a signature and a docstring, with tests that do not come
from the solution.
"""

import random
from collections.abc import Callable

_Unary = tuple[str, str, Callable[[int], object]]  # words, expression, meaning

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
    (which, test, keep), (change, expression, value) = _condition(rng), _mapping(rng)
    what = f"{change}the {which} in {xs}"

    def kept(items: list[int]) -> list[int]:
        return [int(str(value(x))) for x in items if keep(x)]

    loop = f"    for x in {xs}:\n        if {test}:\n"
    kind = rng.randrange(4)
    if kind == 0:
        words = rng.choice((f"Return the sum of {what}.", f"Add up {what}."))
        return (
            words,
            f"    total = 0\n{loop}            total += {expression}\n    return total\n",
            lambda v: sum(kept(v)),
        )
    if kind == 1:
        words = rng.choice((f"Return a list of {what}.", f"Collect {what}."))
        return (
            words,
            f"    result = []\n{loop}            result.append({expression})\n    return result\n",
            kept,
        )
    if kind == 2:
        words = rng.choice((f"Count the {which} in {xs}.", f"How many {which} are in {xs}?"))
        return (
            words,
            f"    count = 0\n{loop}            count += 1\n    return count\n",
            lambda v: len(kept(v)),
        )
    words = rng.choice(
        (f"Return the largest of {what}, or 0.", f"Find the maximum of {what}, or 0.")
    )
    body = f"    best = 0\n{loop}            best = max(best, {expression})\n    return best\n"
    return words, body, lambda v: max([0, *kept(v)])


def make(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt (signature and docstring), body, and tests computed from the meaning of the words."""
    name, xs = f"{rng.choice(_FUNCTIONS)}_{rng.choice('abcdefgh')}", rng.choice(_LISTS)
    words, body, meaning = _list_function(rng, xs)
    prompt = f'def {name}({xs}):\n    """{words}"""\n'
    inputs = [[], *([rng.randint(0, 20) for _ in range(6)] for _ in range(4))]
    tests = "".join(f"assert {name}({case}) == {meaning(case)}\n" for case in inputs)
    return prompt, body, {"tests": tests, "entry_point": name}
