"""The running of programs that do not want to end well."""

import os
import time
from pathlib import Path
from typing import Any

import pytest

from skipbench.errors import SkipbenchError
from skipbench.scoring.sandbox import Outcome, run_program


def dead(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (ProcessLookupError, FileNotFoundError):
        return True


@pytest.mark.usefixtures("isolated")
def test_a_program_that_reaches_its_end_is_ok() -> None:
    program = "import sys\nprint('ä' * 100)\nassert sys.stdin.read() == ''\n"
    ended = run_program(f"{program}assert __name__ != '__main__'\n")
    assert ended == Outcome(True, "ok", "")


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


def test_without_a_sandbox_a_child_left_behind_is_killed(tmp_path: Path) -> None:
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
