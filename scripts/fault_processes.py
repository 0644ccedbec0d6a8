"""What `fault_pairs.py` disturbs: processes of skipbench, forked from one that has loaded torch,
the disk that they write to, and what they leave.
"""

import fcntl
import os
import random
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# no threads: this process forks
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
Records = dict[tuple[str, int], Any]
"""By run and prompt."""
Prepare = Callable[[], None]
"""What befalls a process before its command."""
TRACEBACK = 99
"""Exit status of a command that ended in one."""


def nothing() -> None:
    """No fault."""


def start(results: Path, words: Sequence[str], prepare: Prepare = nothing) -> int:
    """A run, or another command, in a process of its own, as the command line starts it; returns
    its process id.
    """
    child = os.fork()
    if child:
        return child
    code = TRACEBACK
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the shell ignores in the background
    try:
        aloud, quiet = os.dup(2), os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(quiet, handle)
        prepare()
        from skipbench.cli.main import main

        sys.argv = ["skipbench", *words, f"results={results}"]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        os.write(aloud, traceback.format_exc().encode())
    finally:
        os._exit(code)


def wait(child: int, seconds: float | None = None) -> int | None:
    """Its exit status (negative: the signal that ended it), None while it runs on after
    `seconds`.
    """
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, 0 if end is None else os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() > end:
            return None
        time.sleep(0.002)


class Disk:
    """The folder of results: on a small file system of its own where that is allowed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.mounted = self._mount("-t", "tmpfs", "-o", "size=64m", "tmpfs")

    def _mount(self, *words: str) -> bool:
        return subprocess.run(["mount", *words, self.folder], capture_output=True).returncode == 0

    @contextmanager
    def failing(self, kind: str, rng: random.Random) -> Iterator[None]:
        """Full or read-only within the block, or, of another kind, as it is."""
        found, limits = os.statvfs(self.folder), resource.getrlimit(resource.RLIMIT_FSIZE)
        used = (found.f_blocks - found.f_bfree) * found.f_frsize
        size = max(4096, used + 4096 * rng.randrange(16))  # 0: no limit
        options = {"full": f"size={size}", "read-only": "ro"}.get(kind)
        if options and self.mounted:
            self._mount("-o", f"remount,{options}")
        elif options:
            resource.setrlimit(resource.RLIMIT_FSIZE, (rng.randrange(200, 30_000), limits[1]))
        yield
        if options and self.mounted:
            self._mount("-o", "remount,rw,size=64m")
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", self.folder], check=True)


def records(results: Path) -> Records:
    """Every arm of every turn, beside its prompt and its vanilla, without what was measured. Raises
    what a reader raises.
    """
    import msgspec

    from skipbench.runs.record import MEASURED, VANILLA
    from skipbench.runs.store import row_turns

    found = {}
    for path in results.glob("runs/[!.]*/turns.jsonl"):  # a copy that was stopped is none
        for turn in row_turns(path.parent):
            raw = msgspec.to_builtins(turn)
            del raw["order"]  # only the arms take part in a turn that lack the prompt
            arms = raw.pop("arms")
            for arm in arms.values():
                for measured in MEASURED:
                    arm.pop(measured, None)
                arm.get("trace", {}).pop("setup_s", None)  # of each process
            for name in arms.keys() - {VANILLA}:
                both = {"vanilla": arms[VANILLA], "method": arms[name]}
                key = f"{path.parent.name}/{name}", turn.index
                assert key not in found, f"{key} twice"
                found[key] = raw | both
    return found


def leftovers(results: Path) -> list[str]:
    """Temporary files, and locks that are held."""
    left = [str(path) for path in results.rglob(".*") if path.name != ".lock"]
    for lock in results.rglob(".lock"):
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                left.append(str(lock))
    return left


def load_once() -> None:
    """Everything that a run imports, also swift's search and the tables, the model's files, and
    what processes keep of settings and sources.
    """
    import bayes_opt  # noqa: F401  # imported ahead
    import pandas  # noqa: F401  # imported ahead
    import torch

    from skipbench.config.catalog import known_models
    from skipbench.config.compose import compose
    from skipbench.models.load import load
    from skipbench.runs.source import method_sha256, package_sha256

    for name in ("swift", "prompt-lookup"):
        method_sha256(compose([f"method={name}"]).method)
    package_sha256("fused")
    torch.set_num_threads(1)
    load(compose([]).model.path)
    known_models()
