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


def make(rng: random.Random) -> tuple[str, str, dict[str, object]]:
    """Prompt (signature and docstring), body, and tests computed from the meaning of the words."""
    name, xs = f"{rng.choice(_FUNCTIONS)}_{rng.choice('abcdefgh')}", rng.choice(_LISTS)
    words, body, meaning = _list_function(rng, xs)
    prompt = f'def {name}({xs}):\n    """{words}"""\n'
    inputs = [[], *([rng.randint(0, 20) for _ in range(6)] for _ in range(4))]
    tests = "".join(f"assert {name}({case}) == {meaning(case)}\n" for case in inputs)
    return prompt, body, {"tests": tests, "entry_point": name}
