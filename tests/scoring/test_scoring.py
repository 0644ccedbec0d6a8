"""Every scorer by hand, and the running of programs that do not want to end well."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from skipbench.errors import SkipbenchError
from skipbench.scoring.programs import program_of
from skipbench.scoring.sandbox import Outcome, run_program
from skipbench.scoring.scorers import SCORERS, score

STORY = {"names": ["Mia", "Tom"], "thing": "red ball"}
FACTS = {"facts": ["Monday", "Mia Reed", "won the big race", "Dalton", "45"]}
ADD = 'def add(a, b):\n    """Return the sum."""\n'
ADD_TESTS = {
    "tests": "assert add(1, 2) == 3\nassert add(0, 0) == 0\n",
    "entry_point": "add",
}


def dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


@pytest.mark.parametrize(
    ("completion", "names", "thing"),
    [
        (" Mia's friend Tom had a red ball.", 1, 1),
        (" Mia had a red ball.", 0, 1),  # Tom is forgotten
        (" Mia and Tom met Lily. The ball was red.", 0, 0),  # Lily is new
        (" Mia and Tom met Bartholomew at the red balloon.", 1, 0),  # no pool name; another word
        (" mia and tom and the red ball", 0, 1),
        ("", 0, 0),
    ],
)
def test_stories(completion: str, names: float, thing: float) -> None:
    assert score("stories", completion, "Story:", STORY) == {
        "names_kept": names,
        "thing_kept": thing,
    }


@pytest.mark.parametrize(
    ("completion", "exact"),
    [
        (" 3 * 4 = 12. #### 12", 1),
        (" #### 12.", 1),
        (" ####12\nQuestion: another", 1),
        (" #### 7 #### 12", 0),  # an answer ends with its first mark
        (" #### 12 #### 7", 1),
        (" #### 12 ####", 1),
        (" #### 12\nQuestion: Tom has 3 cups.\nAnswer: 3 + 4 = 7. #### 7", 1),
        (" #### 7\nQuestion: Tom has 3 cups.\nAnswer: 3 * 4 = 12. #### 12", 0),
        # another problem's answer
        (" 3 * 4 is a lot\nQuestion: Tom has 3 cups.\nAnswer: 3 * 4 = 12. #### 12", 0),
        (" 3 * 4 = 12.\n#### 12", 1),
        (" #### 12.5", 0),
        (" #### 120", 0),
        (" #### -12", 0),
        (" #### x = 12", 0),
        (" The answer is 12", 0),
        (" #### " + "1" * 10_000, 0),
        ("", 0),
    ],
)
def test_math(completion: str, exact: float) -> None:
    assert score("math", completion, "", {"answer": 12}) == {"exact": exact}


def test_math_reads_thousands_and_signs() -> None:
    assert score("math", "#### 1,234", "", {"answer": 1234}) == {"exact": 1.0}
    assert score("math", "#### -5", "", {"answer": -5}) == {"exact": 1.0}


@pytest.mark.parametrize(
    ("completion", "facts", "every"),
    [
        (" On Monday, Mia Reed won the big race in Dalton. 45 people came.", 1.0, 1),
        (" On Monday, Mia Reed won the big race in Dalton. 450 people came.", 0.8, 0),
        (" Mia Reeds won the big race.", 0.2, 0),
        (" Mia Cole came from Dalton on Monday", 0.4, 0),
        ("", 0.0, 0),
    ],
)
def test_summary(completion: str, facts: float, every: float) -> None:
    assert score("summary", completion, "Article:", FACTS) == {"facts": facts, "all_facts": every}


WHOLE = "def add(a, b):\n    return a + b\n"


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("completion", "passed"),
    [
        ("    return a + b\n", 1),
        ("    return a + b", 1),
        ("    return a + b\n\n\nadd(1\nthis is not Python", 1),  # cut before the next statement
        ("    c = a\n\n    return c + b\nassert False\n", 1),
        ("    return a - b\n", 0),
        ("    return (a + b\n", 0),
        ("return a + b\n", 0),  # the first line stays, and stands at the wrong depth
        ("    import os\n    os._exit(0)\n", 0),
        ("    raise SystemExit(0)\n", 0),
        ("", 0),
        ("    '''a\nb\n'''\n    return a + b\n", 1),  # a text at column 0 is no statement
        ("```python\ndef add(a, b):\n    return a + b\n```\nThis adds.", 1),
        ("Sure!\n\n```\n    return a + b\n```\n\n```\nadd(1, 2)\n```", 1),
        ("```python\ndef add(a, b):\n    return a + b\n", 1),  # cut at the limit of tokens
        ("```python\ndef add(a, b):\n    return a - b\n```", 0),
        ("    return a + b\n```\n\n```python\ndef add(a, b):\n    return 0\n```", 1),
        (f"{WHOLE}```\n\nIt adds.\n\n```python\nadd(1, 2)\n```", 1),  # the prompt opened the fence
        (f"<think>```\ndef add(a, b):\n    return 0\n```</think>```\n{WHOLE}```", 1),
        (f"<think>\n```\n{WHOLE}```\n</think>I do not know.", 0),
        (f"  Sure!\n~~~{{.python}}\n{WHOLE}~~~", 1),
        (f"````md\n```\nnothing\n```\n````\n\n```\n{WHOLE}```", 1),
        ("- so:\n\n  ```py\n  def add(a, b):\n      return a + b\n  ```\n", 1),
        (f"```\nadd(1, 2)  # 3\n```\n\n```\n{WHOLE}```", 1),  # its use comes first
        (f"```\nimport math\n\nfrom __future__ import annotations\n{WHOLE}```", 1),
        (f"Here it is:\n\n{WHOLE}\nIt adds, doesn't it?", 1),  # no fence at all
        ("    # I add them\n```\n    return a + b\n```", 1),  # a comment is no answer
        ("    return a + b\n\ndef half(", 1),
        (f"```\n{WHOLE}\ndef half(", 1),  # cut within another function
    ],
)
def test_code(completion: str, passed: float) -> None:
    assert run_program(program_of("code", completion, ADD, ADD_TESTS)).ok == bool(passed)
    assert score("code", completion, ADD, ADD_TESTS) == {}  # the run only stores it


def test_none_and_unknown_scorers() -> None:
    assert score("none", "anything", "", {}) == {}
    with pytest.raises(SkipbenchError) as caught:
        score("meteor", "", "", {})
    assert "'meteor'" in str(caught.value) and all(name in str(caught.value) for name in SCORERS)


@pytest.mark.parametrize(
    ("scorer", "reference", "key"),
    [
        ("stories", {"names": ["Mia"]}, "thing"),
        ("stories", {"names": [], "thing": "red ball"}, "names"),
        ("math", {"answer": "12"}, "answer"),
        ("math", {}, "answer"),
        ("summary", {"facts": []}, "facts"),
        ("code", {"tests": ""}, "tests"),
    ],
)
def test_a_reference_of_another_dataset_is_an_error(
    scorer: str, reference: dict[str, Any], key: str
) -> None:
    with pytest.raises(SkipbenchError, match=f"has {key}="):
        score(scorer, "x", "", reference)


@pytest.mark.usefixtures("isolated")
def test_a_program_that_reaches_its_end_is_ok() -> None:
    program = (
        "import sys\nprint('ä' * 100)\nassert sys.stdin.read() == ''\nassert __name__ != "
        "'__main__'\n"
    )
    assert run_program(program) == Outcome(True, "ok", "")


@pytest.mark.usefixtures("isolated")
def test_the_program_sees_neither_environment_nor_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKIPBENCH_TEST_SECRET", "x")
    checks = (
        "'SKIPBENCH_TEST_SECRET' not in os.environ",
        "'program.py' not in os.listdir()",
        "not any('site-packages' in p for p in sys.path)",
    )
    outcome = run_program("import os, sys\n" + "".join(f"assert {check}\n" for check in checks))
    assert outcome.ok, outcome


@pytest.mark.usefixtures("isolated")
@pytest.mark.parametrize(
    ("program", "reason", "detail"),
    [
        ("assert 1 == 2, 'no'", "failed", "AssertionError: no"),
        ("def f(:", "failed", "SyntaxError"),
        ("import os; os._exit(0)", "failed", "left with status 0 before its end"),
        ("import sys; sys.exit('bye')", "failed", "left with status 1 before its end"),
        ("import ctypes; ctypes.string_at(0)", "killed", "SIGSEGV"),
        ("raise ValueError('x' * 100_000)", "failed", "ValueError: xxx"),
    ],
)
def test_a_program_that_leaves_early_is_not_ok(program: str, reason: str, detail: str) -> None:
    outcome = run_program(program)
    assert (outcome.ok, outcome.reason) == (False, reason) and detail in outcome.detail
    assert len(outcome.detail) <= 300


@pytest.mark.usefixtures("isolated")
def test_an_endless_program_is_stopped() -> None:
    program = "import time\nwhile True:\n    try: time.sleep(99)\n    except BaseException: pass"
    stopped = Outcome(False, "timeout", "still running after 0.5 s")
    assert run_program(program, timeout_s=0.5) == stopped


def test_without_a_sandbox_a_child_left_behind_is_killed(
    tmp_path: Path,
) -> None:
    note = tmp_path / "pid"
    program = (
        "import os, time\n"
        "pid = os.fork()\n"  # refused to all but root
        "if pid == 0:\n    time.sleep(600)\n    os._exit(0)\n"
        f"os.symlink(str(pid), {str(note)!r})\n"  # no file may have a length
    )
    start = time.monotonic()
    run_program(program, timeout_s=20.0, sandbox="none")
    assert time.monotonic() - start < 10
    if note.is_symlink():
        pid = int(os.readlink(note))
        while not dead(pid):
            assert time.monotonic() - start < 10, "the child lives on"
            time.sleep(0.01)


@pytest.mark.parametrize(
    "limits", [{"timeout_s": 0.0}, {"timeout_s": float("inf")}, {"memory_bytes": 0}]
)
def test_limits_must_be_positive(limits: dict[str, Any]) -> None:
    with pytest.raises(SkipbenchError, match="must be positive and finite"):
        run_program("", **limits)
