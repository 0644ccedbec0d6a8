"""Runs generated Python in a sandbox: isolated from the user's files, processes and network, with
limits on all it can use up.

A program gets a fresh interpreter in namespaces of its own (user or real root's, mount, PID,
network, IPC, UTS). It sees the interpreter and the system's libraries read-only and one folder in
memory, holds no capability, no environment and no key of the kernel's, and can start no process and
no thread; a filter refuses it the system calls that lead around these limits. bubblewrap makes the
namespaces where it is installed, else `unshare` of util-linux does, and `jail.py` the root folder.
What a machine offers is tried once per process, with a program that attempts to break out.

It does not hold against flaws of the kernel, and a program decides on its own verdict: it runs in
the same interpreter as its tests. With `sandbox="none"` only the limits hold: the program can read
the user's files, use the network, signal the user's processes, and leave its process group by
`setsid`.
"""

import functools
import math
import os
import re
import secrets
import signal
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from skipbench.errors import SkipbenchError
from skipbench.scoring import jail, runner
from skipbench.scoring.isolation import NOBODY, NONE, Isolation, interpreter, routes

_FILE_BYTES = 1 << 20  # of each file the program writes, its output included
_DETAIL_CHARACTERS = 300
_GRACE_S = 30.0  # for making namespaces on a busy machine; the program's own time is kept inside
_REPORT = re.compile(rb'\{"status": (null|-?\d{1,3}), "others": (true|false)\}')
_STARTED = b"started\n"
_ESCAPES = """
import ctypes, os, socket, sys
assert os.getpid() <= 3, f"process {{os.getpid()}} of the machine is in view"
assert not os.path.exists({secret!r}), "the user's files are in view"
for path in ("/", os.path.dirname(os.__file__), os.path.dirname(sys.executable)):
    assert not os.access(path, os.W_OK), f"{{path}} can be written"
try:
    socket.create_connection(("127.0.0.1", {port}), 2)
except OSError:
    pass
else:
    raise AssertionError("the network is in reach")
assert ctypes.CDLL(None).shmget(0, 4096, 0o600) < 0, "memory outside of the limit is in reach"
try:
    if os.fork() == 0:
        os._exit(0)
except OSError:
    pass
else:
    raise AssertionError("the number of processes cannot be limited")
"""


@dataclass(frozen=True)
class Outcome:
    """`ok` if the program ran to its end; `detail` is the last line it wrote to stderr, or what
    stopped it.
    """

    ok: bool
    reason: Literal["ok", "failed", "timeout", "killed"]
    detail: str


def run_program(
    program: str,
    timeout_s: float = 5.0,
    memory_bytes: int = 512 << 20,
    sandbox: Literal["auto", "none"] = "auto",
) -> Outcome:
    """Runs `program` in a fresh isolated interpreter without site-packages, environment or input,
    in an empty folder.

    It counts as ok only if it reaches its end within `timeout_s` seconds of wall-clock time: the
    runner prints a random token there, so that leaving early, with status 0 too, is a failure. So
    is leaving processes behind. `memory_bytes` bounds the address space; each file written, output
    included, is bounded to 1 MiB and their sum to 16 MiB.

    Raises:
        SkipbenchError: nothing here can isolate a program and `sandbox` is not "none", or a limit
            is not positive.
    """
    if os.name != "posix":
        raise SkipbenchError(
            f"{os.name=} cannot bound a program; score runs of generated code on Linux"
        )
    if not (timeout_s > 0 and math.isfinite(timeout_s) and memory_bytes > 0):
        raise SkipbenchError(
            f"{timeout_s=} and {memory_bytes=} must be positive and finite; give both as such"
        )
    if sandbox not in ("auto", "none"):
        raise SkipbenchError(
            f"{sandbox=}; choose auto, or none to run generated code without isolation"
        )
    return _run(isolation() if sandbox == "auto" else NONE, program, timeout_s, memory_bytes)


@functools.cache
def isolation() -> Isolation:
    """The first way to isolate that holds on this machine; tried once per process.

    Raises:
        SkipbenchError: none does; the message says why and what to do.
    """
    found = routes()
    missing = {"bwrap", "unshare"} - {route.name.split()[0] for route in found}
    reasons = [f"{tool}: not installed" for tool in sorted(missing)]
    for route in found:
        if (reason := _leak(route)) is None:
            return route
        reasons.append(f"{route.name}: {reason}")
    raise SkipbenchError(
        f"generated code cannot be isolated on this machine ({'; '.join(reasons)}). Install "
        "bubblewrap (its package is called bubblewrap), or have user namespaces allowed (sysctl "
        "user.max_user_namespaces above 0; on Ubuntu also "
        "kernel.apparmor_restrict_unprivileged_userns=0), or score a copy of the run's folder on "
        "another machine. sandbox=none runs the code with your rights and without any protection"
    )


def _leak(route: Isolation) -> str | None:
    """What a program gets out of an isolation, or why it does not start; None if it holds."""
    with (
        tempfile.NamedTemporaryFile(prefix="skipbench-") as secret,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        program = _ESCAPES.format(secret=secret.name, port=server.getsockname()[1])
        try:
            outcome = _run(route, program, 20.0, 512 << 20)
        except SkipbenchError as error:
            return str(error)
    return None if outcome.ok else outcome.detail


def _run(route: Isolation, program: str, timeout_s: float, memory_bytes: int) -> Outcome:
    token = secrets.token_hex(runner.TOKEN_BYTES // 2).encode()
    with ExitStack() as stack:
        stdin, stdout, stderr = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        # Lone surrogates can come out of a tokenizer; the child then fails to decode them, which is
        # its failure.
        stdin.write(token + program.encode("utf-8", "surrogatepass"))
        stdin.seek(0)
        folder, nobody = "/", NOBODY if route.start_as_nobody else None
        if route is NONE:
            folder = stack.enter_context(
                tempfile.TemporaryDirectory(prefix="skipbench-", ignore_cleanup_errors=True)
            )
        ends = os.pipe()
        report = stack.enter_context(os.fdopen(ends[0], "rb", buffering=0))
        with os.fdopen(ends[1], "wb") as told:
            try:
                child = subprocess.Popen(
                    _command(route, told.fileno(), timeout_s, memory_bytes),
                    cwd=folder,
                    env={},
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    pass_fds=(told.fileno(),),
                    user=nobody,
                    group=nobody,
                    extra_groups=None if nobody is None else [],
                )
            except OSError as error:
                raise SkipbenchError(
                    f"the sandbox {route.name!r} did not start: {error}"
                ) from error
        left_behind = _finish(child, timeout_s + _GRACE_S)
        os.set_blocking(report.fileno(), False)  # a process that got away may hold the other end
        words = report.read(1 << 16) or b""
        said = _last_line(stderr)
        stdout.seek(0)
        reached_end = stdout.read(_FILE_BYTES + 1).endswith(token)
    if not words.startswith(_STARTED):
        raise SkipbenchError(
            f"the sandbox {route.name!r} did not start: {said or f'status {child.returncode}'}"
        )
    return _outcome(words.removeprefix(_STARTED), left_behind, reached_end, said, timeout_s)


def _command(route: Isolation, report: int, timeout_s: float, memory_bytes: int) -> list[str]:
    python = [interpreter(), "-I", "-S", "-B", "-c"]
    limits = (memory_bytes, math.ceil(timeout_s) + 1, _FILE_BYTES)
    job = {
        "command": [*python, f"{_source(runner)}\nmain{limits}\n"],
        "report": report,
        "timeout_s": timeout_s,
        "apart": route is not NONE,
        "view": route.view,
        "own_users": route.own_users,
        "uid": route.uid,
    }
    return [*route.prefix, *python, f"{_source(jail)}\nmain({job!r})\n"]


@functools.cache
def _source(module: Any) -> str:
    return Path(module.__file__).read_text(encoding="utf-8")


def _outcome(
    report: bytes, left_behind: bool, reached_end: bool, said: str, timeout_s: float
) -> Outcome:
    if not report:
        return Outcome(False, "failed", "the program ended the process that watches it")
    found = _REPORT.fullmatch(report)
    if found is None:
        return Outcome(
            False, "failed", "the program wrote into the report of the process that watches it"
        )
    if found[1] == b"null":
        return Outcome(False, "timeout", f"still running after {timeout_s:g} s")
    status = int(found[1])
    if status < 0:
        return Outcome(False, "killed", f"killed by {_signal_name(-status)}")
    if left_behind or found[2] == b"true":
        return Outcome(False, "failed", "left processes behind")
    if status == 0 and reached_end:
        return Outcome(True, "ok", "")
    return Outcome(False, "failed", said or f"left with status {status} before its end")


def _finish(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    """Waits, then kills the process group in every case.

    Returns whether there was something left to kill.
    """
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        left_behind = _kill_group(child.pid)
        child.wait()
    return left_behind


def _kill_group(group: int) -> bool:
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says this of a group that has only zombies
        return False
    return True


def _last_line(stderr: IO[bytes]) -> str:
    stderr.seek(0)
    lines = stderr.read(_FILE_BYTES).decode("utf-8", "replace").split("\n")
    return next((line.strip()[:_DETAIL_CHARACTERS] for line in reversed(lines) if line.strip()), "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
