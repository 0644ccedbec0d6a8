"""Runs generated Python in a process of its own, with limits on time, memory and output.

This is not a security sandbox yet. It holds against code that is wrong (endless loops, memory, output, early exits),
not against code that is hostile: without namespaces the program can read the user's files, use the network, signal the
user's other processes, leave its process group by `setsid`, fill the disk with many files, or dig the token of
`run_program` out of the interpreter's memory.
"""

import inspect
import math
import os
import secrets
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from skipbench.errors import SkipbenchError

_FILE_BYTES = 1 << 20  # of each file the program writes, its output included
_DETAIL_CHARACTERS = 300


@dataclass(frozen=True)
class Outcome:
    """`ok` if the program ran to its end; `detail` is the last line it wrote to stderr, or what stopped it."""

    ok: bool
    reason: Literal["ok", "failed", "timeout", "killed"]
    detail: str


def _child(memory_bytes: int, cpu_s: int, file_bytes: int) -> None:
    # The source of this function is what the child runs: it imports what it needs, and nothing of ours. The limits are
    # set here rather than in a preexec_fn, which may deadlock in a process with threads.
    import os
    import resource
    import sys
    import types

    token = os.read(0, 64)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    with open("program.py", "rb") as file:
        source = file.read()
    limits = [
        (resource.RLIMIT_AS, memory_bytes),
        (resource.RLIMIT_CPU, cpu_s),
        (resource.RLIMIT_FSIZE, file_bytes),
        (resource.RLIMIT_CORE, 0),
        # No further process or thread; root is exempt, for whom the process group is killed at the end.
        (resource.RLIMIT_NPROC, 0),
    ]
    for kind, value in limits:
        hard = resource.getrlimit(kind)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        try:
            resource.setrlimit(kind, (value, value))
        except (OSError, ValueError):
            # macOS knows RLIMIT_AS but refuses to set it.
            if sys.platform != "darwin":
                raise
    # A module under its own name: dataclasses look it up, and `if __name__ == "__main__"` must not run.
    module = types.ModuleType("program")
    sys.modules["program"] = module
    exec(compile(source, "program.py", "exec"), module.__dict__)
    os.write(1, token)
    os._exit(0)  # the verdict is out: threads and exit handlers of the program may no longer change it


def run_program(program: str, timeout_s: float = 5.0, memory_bytes: int = 512 << 20) -> Outcome:
    """Runs `program` in a fresh interpreter without site-packages, environment or input, in an empty folder.

    It counts as ok only if it reaches its end within `timeout_s` seconds of wall-clock time: the child prints a random
    token there, so that leaving early, with status 0 too, is a failure. So is leaving processes behind; whatever is
    left of its process group is killed in every case. `memory_bytes` bounds the address space, and each file written,
    output included, is bounded to 1 MiB. Read the module's docstring: this is not a security sandbox yet.

    Raises:
        SkipbenchError: the system is not POSIX, or a limit is not positive.
    """
    if os.name != "posix":
        raise SkipbenchError(f"{os.name=} cannot bound a program; score runs of generated code on Linux or macOS")
    if not (timeout_s > 0 and math.isfinite(timeout_s) and memory_bytes > 0):
        raise SkipbenchError(f"{timeout_s=} and {memory_bytes=} must be positive and finite; give both as such")
    token = secrets.token_hex(16).encode()
    limits = (memory_bytes, math.ceil(timeout_s) + 1, _FILE_BYTES)
    bootstrap = f"{inspect.getsource(_child)}\n_child{limits}\n"
    with (
        tempfile.TemporaryDirectory(prefix="skipbench-", ignore_cleanup_errors=True) as folder,
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as stdout,
        tempfile.TemporaryFile() as stderr,
    ):
        # Lone surrogates can come out of a tokenizer; the child then fails to decode them, which is its failure.
        Path(folder, "program.py").write_bytes(program.encode("utf-8", "surrogatepass"))
        stdin.write(token)
        stdin.seek(0)
        child = subprocess.Popen(
            [sys.executable, "-I", "-S", "-B", "-c", bootstrap],
            cwd=folder,
            env={},
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        status, left_behind = _finish(child, timeout_s)
        said = _last_line(stderr)
        stdout.seek(0)
        reached_end = stdout.read(_FILE_BYTES + 1).endswith(token)
    if status is None:
        return Outcome(False, "timeout", f"still running after {timeout_s:g} s")
    if status < 0:
        return Outcome(False, "killed", f"killed by {_signal_name(-status)}")
    if left_behind:
        return Outcome(False, "failed", "left processes behind")
    if status == 0 and reached_end:
        return Outcome(True, "ok", "")
    return Outcome(False, "failed", said or f"left with status {status} before its end")


def _finish(child: subprocess.Popen[bytes], timeout_s: float) -> tuple[int | None, bool]:
    status = None
    try:
        status = child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        pass
    finally:
        left_behind = _kill_group(child.pid)
        child.wait()
    return status, left_behind


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
