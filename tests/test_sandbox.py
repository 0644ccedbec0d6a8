"""Programs that want out of the sandbox, and machines that have none.

Nothing gets out, nothing hangs.
"""

import dataclasses
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from skipbench.errors import SkipbenchError
from skipbench.scoring import isolation as ways
from skipbench.scoring import sandbox
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


def test_a_fork_bomb_does_not_go_off(name: str) -> None:
    bomb = "while True:\n    try: os.fork()\n    except OSError: pass\n"
    start = time.monotonic()
    assert run_program(calls_itself(name) + bomb, timeout_s=1.0).reason == "timeout"
    assert time.monotonic() - start < 10 and gone(name)
    assert run_program(f"{REFUSED}\nimport os\nrefused(os.fork)\n", SECONDS) == OK
    threads = (
        "import threading\nfor _ in range(1000): "
        "threading.Thread(target=threading.Event().wait).start()"
    )
    assert "can't start new thread" in run_program(threads, SECONDS).detail


@pytest.mark.parametrize(
    "hog",
    [
        "keep = []\nwhile True: keep.append(bytearray(1 << 24))",
        "import mmap\nkeep = []\nwhile True: keep.append(mmap.mmap(-1, 1 << 24)); "
        "keep[-1].write(b'x' * (1 << 24))",
        "x = [0] * (1 << 40)",
    ],
)
def test_a_memory_hog_is_stopped(hog: str) -> None:
    outcome = run_program(hog, SECONDS, memory_bytes=256 << 20)
    assert outcome.reason == "failed" and (
        "MemoryError" in outcome.detail or "allocate memory" in outcome.detail
    )


def test_a_secret_of_the_user_is_not_in_view(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    secret = tmp_path / ".ssh" / "id_ed25519"
    secret.parent.mkdir()
    secret.write_text("a private key")
    secret.chmod(0o644)  # its mode is not what protects it
    ways = [
        secret,
        Path(f"/proc/1/root{secret}"),
        Path(f"/proc/self/root{secret}"),
        Path(f"/old{secret}"),
    ]
    ways += [
        Path("/etc/passwd"),
        Path("/etc/shadow"),
        Path("/proc/self/environ"),
        Path("/sys/kernel"),
        ROOT / "README.md",
    ]
    read = "".join(f"refused(open, {str(way)!r})\n" for way in ways)
    listed = (
        "import os\nassert not {'home', 'proc', 'sys', 'var', 'work', 'mnt'} & "
        "set(os.listdir('/')), os.listdir('/')\n"
    )
    assert secret.read_text() and run_program(REFUSED + read + listed, SECONDS) == OK
    # the test can fail
    assert run_program(f"{REFUSED}\nrefused(open, {str(secret)!r})", SECONDS, sandbox="none") != OK


def test_no_socket_reaches_a_listener() -> None:
    abstract = f"\0skipbench-{secrets.token_hex(4)}"
    with socket.create_server(("127.0.0.1", 0)) as tcp, socket.socket(socket.AF_UNIX) as unix:
        unix.bind(abstract)
        unix.listen()
        for listener in (tcp, unix):
            listener.setblocking(False)
        program = (
            f"{REFUSED}\nimport socket\nrefused(socket.create_connection, ('127.0.0.1', "
            f"{tcp.getsockname()[1]}), 2)\n"
            f"refused(socket.socket(socket.AF_UNIX).connect, {abstract!r})\n"
            "refused(socket.create_connection, ('192.0.2.1', 80), 2)\n"
            "refused(socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto, b'x', "
            "('192.0.2.1', 53))\n"
        )
        assert run_program(program, SECONDS) == OK
        for listener in (tcp, unix):
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_nothing_outside_is_written(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    library = Path(os.__file__).resolve().parent
    before = set(os.listdir(library))
    folders = [
        tmp_path,
        "/",
        "/tmp",
        "/dev",
        "/usr/lib",
        library,
        Path(sys.executable).resolve().parent,
    ]
    program = f"{REFUSED}\nimport os\n" + "".join(
        f"refused(open, {str(folder)!r} + '/mine', 'w')\nrefused(os.mkdir, {str(folder)!r} + "
        "'/folder')\n"
        for folder in folders
    )
    program += (
        f"refused(open, {str(library / 'os.py')!r}, 'a')\nrefused(os.unlink, "
        f"{str(library / 'os.py')!r})\n"
    )
    # its own folder is there to be used
    program += "open('mine', 'w').write('x')\nassert open('mine').read() == 'x'\n"
    assert run_program(program, SECONDS) == OK
    assert not list(tmp_path.iterdir()) and set(os.listdir(library)) == before


@pytest.mark.parametrize(
    ("kill", "reason"),
    [
        ("os.kill(1, 9)", "ok"),
        ("os.kill(os.getppid(), 9)", "ok"),
        ("os.kill({outside}, 9)", "ok"),
        ("os.kill(-1, 9)", "ok"),  # all but itself
        ("os.killpg(0, 9)", "killed"),
        ("os.kill(os.getpid(), 9)", "killed"),
    ],
)
def test_what_is_outside_cannot_be_killed(kill: str, reason: str) -> None:
    with subprocess.Popen(["sleep", "60"]) as bystander:
        try:
            words = kill.format(outside=bystander.pid)
            outcome = run_program(f"import os\ntry: {words}\nexcept OSError: pass\n", SECONDS)
            assert outcome.reason == reason
            assert bystander.poll() is None
        finally:
            bystander.kill()


DAEMON = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(60)
    os._exit(0)
time.sleep(0.5)
"""


def test_a_daemon_is_refused(name: str) -> None:
    assert run_program(calls_itself(name) + DAEMON, SECONDS).reason == "failed"
    assert not named(name)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be let off the limit on processes")
def test_a_daemon_dies_with_its_namespace(name: str) -> None:
    program = calls_itself(name) + DAEMON
    if isolation().uid is not None:
        lax = dataclasses.replace(isolation(), uid=None)
        assert sandbox._run(lax, program, SECONDS, 512 << 20) == Outcome(
            False, "failed", "left processes behind"
        )
        assert not named(name)
    run_program(program, SECONDS, sandbox="none")  # the test can fail
    assert named(name)


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


def test_gigabytes_of_output_go_nowhere() -> None:
    before = shutil.disk_usage("/tmp").used
    program = (
        "import os\nwhile True:\n    for fd in (1, 2):\n        try: os.write(fd, b'x' * (1 "
        "<< 20))\n        except OSError: pass"
    )
    assert run_program(program, timeout_s=1.5).reason == "timeout"
    assert shutil.disk_usage("/tmp").used - before < 512 << 20  # others write too


@pytest.mark.parametrize("size", [0, 1 << 19])
def test_the_disk_cannot_be_filled_with_files(size: int) -> None:
    program = (
        "made = 0\ntry:\n    while made < 5000:\n        open(str(made), "
        f"'wb').write(bytes({size}))\n        made += 1\n"
        "except OSError as error: reason = error.errno\nassert reason == 28 and 0 < made <= "
        f"min(1000, {16 << 20} // max(1, {size})), made"
    )
    assert run_program(program, SECONDS) == OK


def test_rights_cannot_be_won_back() -> None:
    library = str(Path(os.__file__).resolve().parent)
    program = f"""{REFUSED}
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
def remount(path):
    call("mount", None, path.encode(), None, 32 | 4096, None)
tries = [(call, "mount", b"none", b"/sandbox", b"tmpfs", 0, None), (remount, "/")]
tries += [(remount, {library!r}), (call, "umount2", b"/sandbox", 2), (os.chroot, "/sandbox")]
tries += [(call, "ptrace", 16, 1, 0, 0), (os.setgroups, [0]), (call, "sethostname", b"x", 1)]
tries += [(os.mknod, "disk", 0o60600, os.makedev(254, 0)), (os.nice, -5)]
for one in tries:
    refused(*one)
# Where a further user namespace can be had, its rights end at the mounts that it was born with.
if libc.unshare(0x10000000 | 0x00020000) == 0:
    for path in ("/", {library!r}):
        refused(remount, path)
    refused(call, "umount2", {library!r}.encode(), 0)
refused(open, {library!r} + "/mine", "w")
refused(os.fork)
"""
    assert run_program(program, SECONDS) == OK


@pytest.fixture
def fresh() -> Iterator[None]:
    isolation.cache_clear()
    yield
    isolation.cache_clear()


@pytest.mark.usefixtures("fresh")
def test_without_isolation_nothing_is_run_unless_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ways.shutil, "which", lambda name: None)
    with pytest.raises(
        SkipbenchError, match=r"bwrap: not installed; unshare: not installed.*sandbox=none"
    ):
        run_program("")
    assert run_program("", sandbox="none") == OK


@pytest.mark.usefixtures("fresh")
def test_tools_that_are_not_allowed_to_isolate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tool = tmp_path / "tool"
    tool.write_text("#!/bin/sh\necho 'setting up uid map: Permission denied' >&2\nexit 1\n")
    tool.chmod(0o755)
    tmp_path.chmod(0o755)
    monkeypatch.setattr(ways.shutil, "which", lambda name: str(tool))
    with pytest.raises(
        SkipbenchError,
        match=r"bwrap: .*did not start.*unshare.*: .*ermission denied.*user namespaces",
    ):
        run_program("")


def test_the_probe_sees_what_leaks(tmp_path: Path) -> None:
    assert sandbox._leak(isolation()) is None
    assert "of the machine is in view" in str(sandbox._leak(ways.NONE))
    words = ["--user", "--map-root-user", "--pid", "--fork"]
    plain = ways.Isolation(
        "pids",
        [str(shutil.which("env")), f"--chdir={tmp_path}", str(shutil.which("unshare")), *words],
    )
    assert "the user's files are in view" in str(sandbox._leak(plain))


def test_bubblewrap_is_asked_for_the_same_view() -> None:
    # Words that each option takes, from the manual of bubblewrap 0.11.
    takes = {
        "--ro-bind": 2,
        "--dev-bind": 2,
        "--symlink": 2,
        "--cap-drop": 1,
        "--size": 1,
        "--perms": 1,
        "--tmpfs": 1,
    }
    takes |= {
        "--remount-ro": 1,
        "--chdir": 1,
        "--unshare-all": 0,
        "--die-with-parent": 0,
        "--as-pid-1": 0,
        "--clearenv": 0,
    }
    words = ways.bwrap_arguments(
        "/usr/bin/bwrap", ["/usr/lib"], [("/lib", "usr/lib")], ["/dev/null"]
    )
    assert (words.pop(0), words.pop()) == ("/usr/bin/bwrap", "--")
    options = []
    while words:
        option = words.pop(0)
        options.append((option, *(words.pop(0) for _ in range(takes[option]))))
    for wanted in [
        ("--unshare-all",),
        ("--cap-drop", "ALL"),
        ("--ro-bind", "/usr/lib", "/usr/lib"),
        ("--as-pid-1",),
    ]:
        assert wanted in options
    assert ("--symlink", "usr/lib", "/lib") in options and (
        "--dev-bind",
        "/dev/null",
        "/dev/null",
    ) in options
    # A size and a mode are of the next folder; the root is closed after the last folder was made in
    # it.
    assert options[-5:] == [
        ("--size", str(16 << 20)), ("--perms", "1777"), ("--tmpfs", "/sandbox"), ("--remount-ro",
        "/"), ("--chdir", "/sandbox"),
    ]  # fmt: skip
    assert not any(
        "bind" in option[0] and option[1] in ("/", "/home", "/tmp", str(Path.home()))
        for option in options
    )


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


@pytest.fixture
def readable_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has programs run in the system's Python where root's own cannot be read by the nobody that
    root becomes.
    """
    own = Path(ways.interpreter())
    if os.geteuid() == 0 and not all(
        above.stat().st_mode & 0o005 == 0o005 for above in own.parents
    ):
        if not Path("/usr/bin/python3").exists():
            pytest.skip(f"{own} cannot be read by other users, and there is no /usr/bin/python3")
        monkeypatch.setattr(sys, "_base_executable", "/usr/bin/python3")
        for name in ("base_prefix", "base_exec_prefix"):
            monkeypatch.setattr(sys, name, "/usr")


@pytest.fixture(params=["bwrap", "unshare by root", "unshare"])
def route(request: pytest.FixtureRequest, readable_by_all: None) -> ways.Isolation:
    found = {one.name: one for one in ways.routes()}
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
def test_the_keys_of_the_user_are_out_of_reach(route: ways.Isolation) -> None:
    name = key_of_the_session()
    program = f"""{CALLS}
refused(call, "keyctl", 10, -3, b"user", {name!r}, 0)
refused(call, "add_key", b"user", {name!r}, b"mine", 4, -3)
refused(call, "add_key", b"user", {name!r}, b"for the next program", 20, -4)
"""
    assert sandbox._run(route, program, SECONDS, 512 << 20) == OK


@knows_numbers
def test_without_a_sandbox_the_session_keyring_is_another() -> None:
    search = f'{CALLS}\nrefused(call, "keyctl", 10, -3, b"user", {key_of_the_session()!r}, 0)'
    assert run_program(search, SECONDS, sandbox="none") == OK


@knows_numbers
def test_no_memory_is_had_outside_of_the_limit(route: ways.Isolation) -> None:
    program = f"""{CALLS}
def libc(name, *arguments):
    if getattr(ctypes.CDLL(None, use_errno=True), name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)
refused(libc, "shmget", 0, 256 << 20, 0o1600)
refused(libc, "semget", 0, 1, 0o1600)
refused(libc, "msgget", 0, 0o1600)
refused(call, "unshare", 0x10000000 | 0x00020000)  # in namespaces of its own it could mount memory
"""
    assert sandbox._run(route, program, SECONDS, 64 << 20) == OK


JUNK = [
    b"\xff",
    b"[" * 10_000,
    b"{",
    b'{"status": "0", "others": false}',
    b'\n{"status": 0, "others": false}\n',
]
TAKES_A_PIPE = """
for file in range(3, 64):
    try:
        taken = take(file)
        if stat.S_ISFIFO(os.fstat(taken).st_mode):
            os.write(taken, {junk!r})
    except OSError:
        pass
"""


@knows_numbers
def test_the_report_cannot_be_written_by_the_program(route: ways.Isolation) -> None:
    take = (
        f"{CALLS}\nimport stat\npid = os.pidfd_open(1)\ndef take(file): return "
        "call('pidfd_getfd', pid, file, 0)\n"
    )
    program = take + TAKES_A_PIPE.format(junk=b'{"status": "0", "others": 0}')
    assert sandbox._run(route, program, SECONDS, 512 << 20) == OK


@pytest.mark.parametrize("junk", JUNK)
def test_a_report_that_the_watcher_did_not_write_is_a_failure(junk: bytes) -> None:
    take = (
        "import os, stat\ndef take(file):\n    return "
        "os.open(f'/proc/{os.getppid()}/fd/{file}', os.O_WRONLY | os.O_NONBLOCK)\n"
    )
    outcome = run_program(take + TAKES_A_PIPE.format(junk=junk), SECONDS, sandbox="none")
    if os.geteuid() == 0:  # who may read every process
        assert outcome == Outcome(
            False, "failed", "the program wrote into the report of the process that watches it"
        )
    else:
        assert outcome == OK


@pytest.mark.usefixtures("readable_by_all")
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_the_descriptors_of_the_watcher_are_its_own() -> None:
    with tempfile.TemporaryDirectory() as folder:  # other users do not reach pytest's own
        os.chmod(folder, 0o777)
        words = [str(shutil.which("env")), f"--chdir={folder}"]
        plain = ways.Isolation("plain", words, start_as_nobody=os.geteuid() == 0)
        program = f"{REFUSED}\nimport os\nrefused(os.listdir, f'/proc/{{os.getppid()}}/fd')"
        assert sandbox._run(plain, program, SECONDS, 512 << 20) == OK
