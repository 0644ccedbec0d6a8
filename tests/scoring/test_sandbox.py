"""Programs that want out of the sandbox, and machines that have none.

Nothing gets out, nothing hangs.
"""

import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from skipbench.errors import SkipbenchError
from skipbench.scoring import jail, sandbox
from skipbench.scoring.programs import Program
from skipbench.scoring.sandbox import Outcome, isolation, run_program

OK = Outcome(True, "ok", "")


pytestmark = pytest.mark.usefixtures("isolated")
SECONDS = 20.0
REFUSED = """
def refused(call, *arguments):
    try:
        got = call(*arguments)
    except OSError:
        return
    raise AssertionError(f"{arguments} gave {got!r}")
"""


def named(name: str) -> list[int]:
    """Processes of this machine that have given themselves a name."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().strip() == name:
                found.append(int(path.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def calls_itself(name: str) -> str:
    return f"import ctypes, os, time\nctypes.CDLL(None).prctl(15, {name.encode()!r}, 0, 0, 0)\n"


@pytest.fixture
def name() -> Iterator[str]:
    unique = f"sb{secrets.token_hex(5)}"
    yield unique
    for pid in named(unique):  # of a test that failed
        os.kill(pid, signal.SIGKILL)


def gone(name: str, within_s: float = 10.0) -> bool:
    end = time.monotonic() + within_s
    while named(name) and time.monotonic() < end:
        time.sleep(0.02)
    return not named(name)


def test_a_secret_is_not_in_view(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    secret = tmp_path / ".ssh" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_text("a private key")
    secret.chmod(0o644)  # its mode is not what protects it
    ways = [f"{folder}{secret}" for folder in ("", "/proc/1/root", "/proc/self/root", "/old")]
    ways += ["/etc/passwd", "/etc/shadow", "/proc/self/environ", "/sys/kernel"]
    read = "".join(f"refused(open, {way!r})\n" for way in [*ways, str(ROOT / "README.md")])
    hidden = {"home", "proc", "sys", "var", "work", "mnt"}
    listed = f"import os\nassert not {hidden} & set(os.listdir('/')), os.listdir('/')\n"
    assert secret.read_text() and run_program(REFUSED + read + listed, SECONDS) == OK
    # the test can fail
    assert run_program(f"{REFUSED}\nrefused(open, {str(secret)!r})", SECONDS, sandbox="none") != OK


def test_no_socket_reaches_a_listener() -> None:
    abstract = f"\0skipbench-{secrets.token_hex(4)}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(abstract)
        unix.listen()
        program = f"""{REFUSED}
import socket
refused(socket.create_connection, {tcp.getsockname()}, 2)
refused(lambda: socket.socket(socket.AF_UNIX).connect({abstract!r}))
"""
        assert run_program(program, SECONDS) == OK
        for listener in (tcp, unix):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_nothing_outside_is_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    library = Path(os.__file__).resolve().parent
    before, python = set(os.listdir(library)), Path(sys.executable).resolve().parent
    folders = [tmp_path, "/", "/tmp", "/dev", "/usr/lib", library, python]
    program = f"""{REFUSED}
import os
for folder in {list(map(str, folders))}:
    refused(open, folder + "/mine", "w")
    refused(os.mkdir, folder + "/folder")
refused(open, {str(library / "os.py")!r}, "a")
refused(os.unlink, {str(library / "os.py")!r})
"""
    assert run_program(program, SECONDS) == OK
    assert not list(tmp_path.iterdir()) and set(os.listdir(library)) == before


def test_a_program_does_not_outlive_the_one_who_asked(name: str) -> None:
    program = calls_itself(name) + "time.sleep(60)"
    code = f"from skipbench.scoring.sandbox import run_program\nrun_program({program!r}, 3.0)"
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as caller:
        end = time.monotonic() + 20
        while not named(name) and time.monotonic() < end:
            time.sleep(0.02)
        assert named(name)
        caller.kill()
    assert gone(name, 15.0)


@pytest.fixture
def fresh() -> Iterator[None]:
    isolation.cache_clear()
    yield
    isolation.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_isolation_nothing_is_run_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: None)
    missing = r"bwrap: not installed; unshare: not installed.*sandbox=none"
    with pytest.raises(SkipbenchError, match=missing):
        run_program("")
    assert run_program("", sandbox="none") == OK


@pytest.mark.usefixtures("fresh")
def test_tools_that_may_not_isolate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    tool.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(sandbox.shutil, "which", lambda name: str(tool))
    said = r"bwrap: .*did not start.*unshare.*: .*ermission denied.*user namespaces"
    with pytest.raises(SkipbenchError, match=said):
        run_program("")


def test_the_probe_sees_what_leaks(tmp_path: Path) -> None:
    assert sandbox._leak(isolation()) is None
    assert "of the machine is in view" in str(sandbox._leak(sandbox.NONE))
    words = [shutil.which("env"), f"--chdir={tmp_path}", shutil.which("unshare"), "--user"]
    plain = sandbox.Isolation("pids", [*map(str, words), "--map-root-user", "--pid", "--fork"])
    assert "the user's files are in view" in str(sandbox._leak(plain))


def test_bubblewrap_is_asked_for_the_same_view() -> None:
    # Words that each option takes, from the manual of bubblewrap 0.11.
    takes = {"--ro-bind": 2, "--dev-bind": 2, "--symlink": 2, "--cap-drop": 1, "--remount-ro": 1}
    takes |= {"--chdir": 1, "--unshare-all": 0, "--die-with-parent": 0, "--as-pid-1": 0}
    takes["--clearenv"] = 0
    view = jail.View("/tmp", ["/usr/lib"], [("/lib", "usr/lib")], ["/dev/null"])
    words = sandbox.bwrap_arguments("/usr/bin/bwrap", view)
    assert (words.pop(0), words.pop()) == ("/usr/bin/bwrap", "--")
    options = []
    while words:
        option = words.pop(0)
        options.append((option, *(words.pop(0) for _ in range(takes[option]))))
    wanted = {("--unshare-all",), ("--cap-drop", "ALL"), ("--as-pid-1",)}
    wanted |= {("--ro-bind", "/usr/lib", "/usr/lib"), ("--dev-bind", "/dev/null", "/dev/null")}
    assert wanted | {("--symlink", "usr/lib", "/lib")} <= {*options}
    # the root is closed after the last folder was made in it
    assert options[-2:] == [("--remount-ro", "/"), ("--chdir", "/")]
    bound = {option[1] for option in options if "bind" in option[0]}
    assert bound.isdisjoint({"/", "/home", "/tmp", str(Path.home())})


NUMBERS = {
    "x86_64": {"keyctl": 250, "add_key": 248, "unshare": 272},
    "aarch64": {"keyctl": 219, "add_key": 217, "unshare": 97},
}
CALLS = f"""
{REFUSED}
import ctypes, os
def call(name, *arguments):
    number = {{"pidfd_getfd": 438, **{NUMBERS.get(os.uname().machine)!r}}}[name]
    words = [a if isinstance(a, bytes) or a is None else ctypes.c_long(a) for a in arguments]
    got = ctypes.CDLL(None, use_errno=True).syscall(ctypes.c_long(number), *words)
    if got < 0:
        raise OSError(ctypes.get_errno(), name)
    return got
"""
knows_numbers = pytest.mark.skipif(
    os.uname().machine not in NUMBERS, reason="numbers of system calls are not known here"
)


def filter_steps(tmp_path: Path) -> list[tuple[int, int, int, int]]:
    """The filter as the kernel gets it: classic BPF, see seccomp(2)."""
    library, found = jail.call_filter()
    with open(tmp_path / "filter", "wb") as file:
        assert library.seccomp_export_bpf(found, file.fileno()) == 0
    return list(struct.iter_unpack("HBBI", (tmp_path / "filter").read_bytes()))


def test_the_filter_allows_what_is_listed_and_nothing_else(tmp_path: Path) -> None:
    """The filter's steps, executed here as the kernel executes them."""

    def allows(number: int, arch: int, *arguments: int) -> bool:
        data = struct.pack("<IIQ6Q", number, arch, 0, *arguments, *[0] * (6 - len(arguments)))
        at = loaded = 0
        while True:
            code, hit, miss, value = steps[at]
            if code == 0x06:
                return value == 0x7FFF0000
            if code == 0x20:
                (loaded,) = struct.unpack_from("<I", data, value)
            met = {0x15: loaded == value, 0x35: loaded >= value, 0x25: loaded > value, 0x05: True}
            jump = value if code == 0x05 else hit if met.get(code) else miss
            at += 1 + (0 if code == 0x20 else jump)

    steps = filter_steps(tmp_path)
    assert {code for code, *_ in steps} <= {0x05, 0x06, 0x15, 0x20, 0x25, 0x35}
    arch = next(value for code, _, _, value in steps if code == 0x15)
    number_of = jail.call_filter()[0].seccomp_syscall_resolve_name
    listed = {number_of(name.encode()) for name in jail._ALLOWED.split()}
    checked = {number_of(name.encode()): rule for name, rule in jail._ONLY.items()}
    assert min(checked) >= 0 and len({n for n in listed if n >= 0}) > 60
    assert not {number_of(b"keyctl"), number_of(b"socket"), number_of(b"clone")} & listed
    assert not listed & checked.keys()
    for number in range(600):
        zero = 0 in checked.get(number, (0, ()))[1]
        assert allows(number, arch) == (number in listed or zero), number
        assert not allows(number, arch ^ 1) and not allows(number | 0x40000000, arch)
    for number, (place, values) in checked.items():
        for value in [*values, 0x5412, 0x1234, 1 << 32]:
            arguments = [7] * place + [value]
            assert allows(number, arch, *arguments) == (value in values), (number, value)


@pytest.fixture(params=["bwrap", "unshare by root", "unshare"])
def route(request: pytest.FixtureRequest) -> sandbox.Isolation:
    found = {one.name: one for one in sandbox.routes()}
    if request.param not in found:
        pytest.skip(f"{request.param}: not installed, or not of this user")
    if "did not start" in (leak := sandbox._leak(found[request.param]) or ""):
        pytest.skip(leak)
    assert not leak
    return found[request.param]


def key_of_the_session() -> bytes:
    """The name of a new key in a new session keyring of this process."""
    name = f"skipbench-{secrets.token_hex(8)}".encode()
    space: dict[str, Any] = {}
    exec(CALLS, space)
    try:
        space["call"]("keyctl", 1, None)
        space["call"]("add_key", b"user", name, b"hunter2", 7, -3)
    except OSError as error:
        pytest.skip(f"no kernel keys here: {error}")
    return name


@knows_numbers
def test_the_keys_of_the_user_are_out_of_reach(route: sandbox.Isolation) -> None:
    name = key_of_the_session()
    program = f"""{CALLS}
refused(call, "keyctl", 10, -3, b"user", {name!r}, 0)
refused(call, "add_key", b"user", {name!r}, b"mine", 4, -3)
refused(call, "add_key", b"user", {name!r}, b"for the next program", 20, -4)
"""
    assert sandbox._run(route, Program(program), SECONDS, 512 << 20) == OK


@knows_numbers
def test_without_a_sandbox_the_session_keyring_is_another() -> None:
    search = f'{CALLS}\nrefused(call, "keyctl", 10, -3, b"user", {key_of_the_session()!r}, 0)'
    assert run_program(search, SECONDS, sandbox="none") == OK
