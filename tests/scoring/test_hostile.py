"""Hostile programs: nothing gets out, nothing hangs, and no verdict is faked.

Every day the attempts run in a few programs on the first route of the machine; the slow tier runs
each alone, on every route.
"""

import functools

import pytest
from conftest import rest_slow
from hostile import CALLS, FAKES, GREEDY, HEAD, REFUSED

from skipbench.scoring import sandbox
from skipbench.scoring.programs import Program
from skipbench.scoring.sandbox import Outcome, isolation, run_program

pytestmark = pytest.mark.usefixtures("isolated")
OK = Outcome(True, "ok", "")
MEMORY = 256 << 20
TESTS = "assert CANDIDATE(3) == [3, 4]\nassert [5, 6] == CANDIDATE(5)"


def test_there_are_as_many_as_promised() -> None:
    assert len(REFUSED) + len(GREEDY) >= 60 and len(FAKES) >= 12


def test_attempts_to_get_out_are_refused() -> None:
    """All in one program, each after the others."""
    assert run_program(HEAD + "\n".join(REFUSED.values()), 20.0) == OK


def test_tests_are_as_confined_as_the_program() -> None:
    """A foreign record may hold them."""
    names = "users", "proc", "TCP", "unix", "fork", "kill all", "a file", "signals by a pipe"
    tests = HEAD + "\n".join(REFUSED[name] for name in (*names, "call memfd_create"))
    assert run_program(Program("", tests, "f"), 20.0) == OK._replace(assertions=1)


@functools.cache
def leak_of(name: str) -> str | None:
    routes = {route.name: route for route in sandbox.routes()}
    return sandbox._leak(routes[name]) if name in routes else "did not start: not here"


@pytest.mark.slow
@pytest.mark.parametrize("route", ["bwrap", "unshare by root", "unshare"])
@pytest.mark.parametrize("name", REFUSED)
def test_each_attempt_is_refused_on_every_route(name: str, route: str) -> None:
    if "did not start" in str(leak_of(route)):
        pytest.skip(f"{route}: {leak_of(route)}")
    (found,) = (one for one in sandbox.routes() if one.name == route)
    assert sandbox._run(found, Program(HEAD + REFUSED[name]), 20.0, MEMORY) == OK


def test_the_attempts_can_succeed() -> None:
    """Without a sandbox they do: the tests above can fail."""
    tried = ["fork", "users", "UDP", "proc", "call memfd_create", "call eventfd2"]
    outcomes = [run_program(HEAD + REFUSED[name], 20.0, sandbox="none") for name in tried]
    # only root may fork in spite of the limit on processes
    assert [o.ok for o in outcomes[1:]] == [False] * (len(tried) - 1)


@pytest.mark.parametrize(
    "name", rest_slow(GREEDY, ("loop", "memory", "crash", "the report of the watcher").__contains__)
)
def test_nobody_takes_more_than_is_given(name: str) -> None:
    program, reason = GREEDY[name]
    outcome = run_program(program, 1.0 if reason == "timeout" else 20.0, memory_bytes=MEMORY)
    assert not outcome.ok and outcome.reason in (reason, "timeout"), outcome  # on a busy machine


@pytest.mark.parametrize(
    "name", rest_slow(FAKES, ("always equal", "frames", "an answer of its own").__contains__)
)
@pytest.mark.parametrize("where", rest_slow(["body", "module"], "body".__eq__))
def test_no_verdict_is_faked(name: str, where: str) -> None:
    body = FAKES[name]
    code = f"def f(x):\n    {body}\n"
    if where == "module":  # the same while the program is loaded, and a wrong function behind it
        code += "try: f(0)\nexcept Exception: pass\ndef f(x): return [x, 7]\n"
    outcome = run_program(Program(code, TESTS, "f"), 3.0)
    assert not outcome.ok and outcome.reason != "ok"


SHORT = """
f = CANDIDATE
assert all(map(lambda i: f(i) == [i, i + 1], range(3)))
for made, i in zip(map(f, range(3)), range(3)):
    assert made == [i, i + 1]
"""


@pytest.mark.parametrize("tests", [SHORT, *SHORT.split("\n", 3)[2:]], ids=["both", "map", "zip"])
def test_no_program_passes_by_being_short(tests: str) -> None:
    code = "def f(x): raise StopIteration"
    said = run_program(Program(code, f"f = CANDIDATE\n{tests}", "f"))
    assert not said.ok and said.detail == "RuntimeError"


def test_an_assertion_has_to_run() -> None:
    tests = "for a, b in zip(CANDIDATE(3), [3, 4]):\n    assert a == b\n"
    expected = "try: CANDIDATE(None)\nexcept TypeError: pass\nelse: assert False\n"
    right = Program("def f(x): return [x, x + 1]", tests, "f")
    assert run_program(right) == OK._replace(assertions=2)
    assert run_program(right._replace(tests=expected)) == OK  # none that a right program meets
    outcome = run_program(right._replace(code="def f(x): return []"))
    assert not outcome.ok and outcome.detail == "none of its assertions ran"


def test_a_right_program_passes_those_tests() -> None:
    right = Program("def f(x): return [x, x + 1]", TESTS, "f")
    assert run_program(right) == OK._replace(assertions=2)
    assert len(set(CALLS)) == len(CALLS)
    assert isolation().name in ("bwrap", "unshare by root", "unshare")
