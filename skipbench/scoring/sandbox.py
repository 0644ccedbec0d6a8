"""Runs generated Python in a sandbox: isolated from the user's files, processes and network, with
limits on all that it can use up, and judged from outside of its process.

A program gets a fresh interpreter in its own namespaces (user or real root's, mount, PID, network,
IPC, UTS), made by bubblewrap where it is installed, else by `unshare` of util-linux, with a root
folder made by `jail.py`. It sees nothing but the interpreter and the system's libraries, read-only,
and holds no capability, no environment and no key of the kernel's. A filter of system calls leaves
it those of computing and of reading: no process, no thread, no signal, no socket, no memory that
its limit does not count. A machine's tools are tried once per process, with a program that attempts
to break out.

The tests run in a second process of the same kind, which calls the program through a pipe and
compares plain data (`runner.py`): a program decides on its return values, and on nothing else.

It does not hold against flaws of the kernel. With `sandbox="none"` only the limits hold: the
program can read the user's files, use the network, signal the user's processes, and so forge its
verdict.
"""

import contextlib
import functools
import itertools
import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.scoring import jail, runner
from skipbench.scoring.programs import Program

MEMORY_BYTES = 512 << 20
NOBODY = 65534
_DETAIL_CHARACTERS = 300
_GRACE_S = 30.0  # for making namespaces on a busy machine; the program's own time is kept inside
_STARTED = b"started\n"
Reason = Literal["ok", "failed", "timeout", "killed"]
_ESCAPES = Path(__file__).with_name("escapes.txt")
"""A program that fails unless everything outside of a sandbox is out of its reach."""


class Isolation(NamedTuple):
    """A way to isolate: words before the interpreter's own, and the view of `jail.main`."""

    name: str
    prefix: Sequence[str] = ()
    view: jail.View | None = None


NONE = Isolation("none")


class Outcome(NamedTuple):
    """`ok` if program and tests ran to their end, with at least one assertion; else `detail`."""

    ok: bool
    reason: Reason
    detail: str
    assertions: int = 0
    """That ran, of a program that is ok."""


def run_program(
    program: Program | str,
    timeout_s: float = 5.0,
    memory_bytes: int = MEMORY_BYTES,
    sandbox: Literal["auto", "none"] = "auto",
) -> Outcome:
    """Runs `program` in a fresh isolated interpreter, and its tests in another.

    It is ok only if its tests, or a program without tests, reach their end within `timeout_s`
    seconds of wall-clock time; leaving early is a failure, with status 0 too. `memory_bytes` bounds
    the address space of each process.

    Raises SkipbenchError if nothing here can isolate a program, or a limit is not positive.
    """
    if not (timeout_s > 0 and math.isfinite(timeout_s) and memory_bytes > 0):
        raise SkipbenchError(
            f"{timeout_s=} and {memory_bytes=} must be positive and finite; give both as such"
        )
    if sandbox not in ("auto", "none"):
        raise SkipbenchError(
            f"{sandbox=}; choose auto, or none to run generated code without isolation"
        )
    whole = Program(program) if isinstance(program, str) else program
    return _run(isolation() if sandbox == "auto" else NONE, whole, timeout_s, memory_bytes)


@functools.cache
def isolation() -> Isolation:
    """The first way to isolate that holds here, tried once per process. Raises SkipbenchError with
    reasons and a remedy if there is none.
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
        "bubblewrap and libseccomp (the packages bubblewrap and libseccomp2), or have user "
        "namespaces allowed (sysctl user.max_user_namespaces above 0; on Ubuntu also "
        "kernel.apparmor_restrict_unprivileged_userns=0), or score a copy of the run's folder on "
        "another machine. sandbox=none runs the code with your rights and without any protection"
    )


def routes() -> list[Isolation]:
    """The ways that this machine has the tools for, best first."""
    view, found = _view(), []
    if bwrap := shutil.which("bwrap"):
        found.append(Isolation("bwrap", bwrap_arguments(bwrap, view)))
    if unshare := shutil.which("unshare"):
        words = ["--mount", "--pid", "--fork", "--kill-child", "--net", "--ipc", "--uts"]
        if os.geteuid() == 0:
            by_root = view._replace(uid=NOBODY)
            found.append(Isolation("unshare by root", [unshare, *words], by_root))
        found.append(Isolation("unshare", [unshare, "--user", "--map-root-user", *words], view))
    return found


def bwrap_arguments(bwrap: str, view: jail.View) -> list[str]:
    """bubblewrap's command line for the view of `jail.make_root`, up to the interpreter's words."""
    words = [bwrap, "--unshare-all", "--die-with-parent", "--as-pid-1", "--clearenv"]
    options = [("--cap-drop", "ALL"), *(("--ro-bind", path, path) for path in view.binds)]
    options += [("--dev-bind", path, path) for path in view.devices]
    options += [("--symlink", target, path) for path, target in view.links]
    options += [("--remount-ro", "/"), ("--chdir", "/")]
    return [*words, *itertools.chain(*options), "--"]


def _interpreter() -> str:
    """The interpreter behind a virtual environment: the same, without site-packages."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def _view() -> jail.View:
    """The view of `jail.make_root`: the interpreter, its and the system's libraries, and links."""
    prefixes = sorted({os.path.realpath(p) for p in (sys.base_prefix, sys.base_exec_prefix)})
    wanted = [_interpreter(), *(f"{p}/{name}" for p in prefixes for name in ("lib", "lib64"))]
    wanted += ["/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache"]
    wanted += [store for store in ("/nix/store", "/gnu/store") if wanted[0].startswith(store)]
    links = [(path, os.readlink(path)) for path in dict.fromkeys(wanted) if os.path.islink(path)]
    binds: list[str] = []
    for path in sorted({*wanted} - {path for path, _ in links}):  # a folder before its contents
        if os.path.exists(path) and not any(path.startswith(f"{above}/") for above in binds):
            binds.append(path)
    devices = ["/dev/null", "/dev/zero", "/dev/urandom"]
    return jail.View(tempfile.gettempdir(), binds, links, devices)


def _leak(route: Isolation) -> str | None:
    """The way out of an isolation, or why it does not start; None if it holds."""
    with (
        tempfile.NamedTemporaryFile(prefix="skipbench-") as secret,
        socket.create_server(("127.0.0.1", 0)) as server,
    ):
        program = _ESCAPES.read_text().format(secret=secret.name, port=server.getsockname()[1])
        try:
            outcome = _run(route, Program(program), 20.0, MEMORY_BYTES)
        except SkipbenchError as error:
            return str(error)
    return None if outcome.ok else outcome.detail


def _run(route: Isolation, program: Program, timeout_s: float, memory_bytes: int) -> Outcome:
    job = json.dumps(program._asdict()).encode()
    with tempfile.TemporaryDirectory(prefix="skipbench-", ignore_cleanup_errors=True) as own:
        try:
            child = subprocess.Popen(
                _command(route, timeout_s, memory_bytes),
                cwd=own if route is NONE else "/",
                env={},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise SkipbenchError(f"the sandbox {route.name!r} did not start: {error}") from error
        try:
            report, stderr = child.communicate(job, timeout_s + _GRACE_S)
        except subprocess.TimeoutExpired:
            return Outcome(False, "timeout", f"its watcher still ran after {timeout_s:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    if not report.startswith(_STARTED):
        lines = stderr.decode("utf-8", "replace").strip().splitlines()
        said = lines[-1][:_DETAIL_CHARACTERS] if lines else f"status {child.returncode}"
        raise SkipbenchError(f"the sandbox {route.name!r} did not start: {said}")
    try:
        verdict = msgspec.json.decode(report.removeprefix(_STARTED), type=tuple[Reason, str, int])
    except (msgspec.MsgspecError, UnicodeDecodeError):
        verdict = "failed", "the report of the process that watches it is not its own", 0
    reason, detail, assertions = verdict
    return Outcome(reason == "ok", reason, detail[:_DETAIL_CHARACTERS], assertions)


def _command(route: Isolation, timeout_s: float, memory_bytes: int) -> list[str]:
    python = [_interpreter(), "-I", "-S", "-B", "-c"]
    source, of_jail = (Path(str(m.__file__)).read_text(encoding="utf-8") for m in (runner, jail))
    limits = f"LIMITS = {memory_bytes}, {math.ceil(timeout_s) + 1}\n"
    job = [*python, f"{source}\n{limits}"], timeout_s, route.view, route is not NONE
    return [*route.prefix, *python, f"{of_jail}\nmain(*{job!r})\n"]
