"""Programs that want out of the sandbox, or to pass without reaching their end; machines that have
none.
"""

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import ROOT
from users import USERS, passed

from skipbench.errors import SkipbenchError
from skipbench.scoring import sandbox
from skipbench.scoring.sandbox import Outcome, bubblewrap, run_program

pytestmark = pytest.mark.usefixtures("isolated")
SECONDS = 20.0
REFUSED = """
import os, socket
def refused(call, *arguments):
    try:
        got = call(*arguments)
    except OSError:
        return
    raise AssertionError(f"{arguments} gave {got!r}")
"""


def holds(program: str, user: str) -> bool:
    """True if the program passes in the sandbox and, so that the test can fail, not without one."""
    program = REFUSED + program
    return passed([program], user) == [True] and not run_program(program, (), SECONDS).ok


def test_a_program_that_reaches_its_end_is_ok() -> None:
    program = "import sys\nprint('ä' * 100)\nassert sys.stdin.read() == ''\n"
    assert run_program(f"{program}assert __name__ != '__main__'\n", bubblewrap()) == Outcome(True)


@pytest.mark.parametrize("user", USERS)
def test_a_program_sees_no_home_and_no_file_of_its_user(
    user: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SKIPBENCH_TEST_SECRET", "x")
    secret = tmp_path / ".ssh" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_text("a private key")
    files = [secret, ROOT / "README.md", "/etc/passwd", "/etc/shadow", "/proc/self/environ"]
    read = "".join(f"refused(open, {str(path)!r})\n" for path in files)
    base = "os.path.realpath(sys.base_prefix)"
    there = f"""
import sys
there = {{*{sandbox.SYSTEM}, os.path.realpath(sys.executable), "/dev/null"}}
there |= {{{base} + "/lib", {base} + "/lib64"}}
assert not {{*os.environ}} - {{"LC_CTYPE", "PWD"}}, os.environ
for folder, folders, files in os.walk("/"):
    known = [name for name in folders if os.path.join(folder, name) in there]
    folders[:] = [name for name in folders if name not in known]
    assert {{os.path.join(folder, name) for name in files}} <= there, (folder, files)
"""
    assert holds(read + there, user)


@pytest.mark.parametrize("user", USERS)
def test_a_program_has_no_network(user: str) -> None:
    abstract = f"\0skipbench-{secrets.token_hex(4)}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(abstract)
        unix.listen()
        program = f"""
refused(socket.create_connection, {tcp.getsockname()}, 2)
refused(lambda: socket.socket(socket.AF_UNIX).connect({abstract!r}))
"""
        assert holds(program, user)


@pytest.mark.parametrize("user", USERS)
def test_a_program_writes_no_file(user: str, tmp_path: Path) -> None:
    library = Path(os.__file__).resolve().parent
    folders = [".", tmp_path, "/", "/tmp", "/dev", "/dev/shm", "/usr/lib", "/etc", library]
    program = f"""
for folder in {[str(folder) for folder in folders]}:
    refused(open, folder + "/skipbench-mine", "w")
    refused(os.mkdir, folder + "/skipbench-folder")
refused(open, os.__file__, "a")
refused(os.chmod, os.__file__, 0o777)
"""
    assert holds(program, user)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("user", USERS)
def test_a_program_reaches_no_other_process(user: str) -> None:
    assert holds(f"assert os.getpid() <= 3\nrefused(os.kill, {os.getpid()}, 0)\n", user)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize(
    ("program", "detail"),
    [
        ("assert 1 == 2, 'no'", "AssertionError: no"),
        ("def f(:", "SyntaxError"),
        ("import os; os._exit(0)", "left before its end, with status 0"),
        ("import sys; sys.exit(0)", "left before its end, with status 0"),
        ("import os; [os.write(fd, b'ok') for fd in (1, 3)]; os._exit(0)", "ok"),
        ("import ctypes; ctypes.string_at(0)", "left before its end, with status"),
        ("raise ValueError('x' * 100_000)", "ValueError: xxx"),
        ("keep = []\nwhile True: keep.append(bytearray(1 << 24))", "MemoryError"),
        ("import sys\nwhile True: sys.stderr.write('x' * 100_000)", ""),
        ("x = '\0'", "null bytes"),
    ],
)
def test_a_program_that_leaves_early_is_not_ok(program: str, detail: str, alone: bool) -> None:
    found = run_program(program, bubblewrap() if alone else (), SECONDS)
    assert not found.ok and detail in found.detail and len(found.detail) <= 300


def test_an_endless_program_is_stopped() -> None:
    program = "import time\nwhile True:\n    try: time.sleep(99)\n    except BaseException: pass"
    stopped = Outcome(False, "still running after 0.5 s")
    assert run_program(program, bubblewrap(), 0.5) == stopped


def named(name: str) -> list[int]:
    """Processes of this machine that have given themselves a name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        with suppress(FileNotFoundError, ProcessLookupError):
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
    return found


@pytest.fixture
def name() -> Iterator[str]:
    unique = f"sb{secrets.token_hex(5)}"
    yield unique
    for pid in named(unique):  # of a test that failed
        os.kill(pid, signal.SIGKILL)


def calls_itself(name: str) -> str:
    return f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n"


def wait_for(condition: Callable[[], object]) -> bool:
    end = time.monotonic() + 15
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


def test_a_program_does_not_outlive_the_one_who_asked(name: str) -> None:
    program = calls_itself(name) + "time.sleep(60)"
    code = f"from skipbench.scoring.sandbox import *\nrun_program({program!r}, bubblewrap())"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as caller:
        assert wait_for(lambda: named(name))
        caller.kill()
    assert wait_for(lambda: not named(name))


@pytest.mark.parametrize("alone", [True, False])
def test_a_child_left_behind_is_killed(name: str, alone: bool) -> None:
    program = f"{calls_itself(name)}if os.fork() == 0: time.sleep(600)\n"  # root alone may fork
    run_program(program, bubblewrap() if alone else (), SECONDS)
    assert wait_for(lambda: not named(name))


@pytest.mark.parametrize("tool", ["", "#!/bin/sh\necho 'bwrap: No permissions' >&2\nexit 1\n"])
def test_without_bubblewrap_one_is_told_to_install_it(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    if tool:
        (tmp_path / "bwrap").write_text(tool)
        (tmp_path / "bwrap").chmod(0o755)
    why = "bwrap fails: bwrap: No permissions" if tool else "bwrap is not installed"
    with pytest.raises(SkipbenchError, match=rf"{why}\): install bubblewrap .*sandbox=none"):
        bubblewrap.__wrapped__()  # not what was found before
