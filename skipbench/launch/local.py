"""Processes of this machine: a queue of commands on its GPUs, no two on one, and a child whose end
its parent records: the kernel gives no notice when memory ends.
"""

import itertools
import os
import re
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from types import FrameType

from skipbench.errors import SkipbenchError
from skipbench.runs.gpu import ask
from skipbench.runs.state import SIGNALS

RESERVED = 2**30  # bytes of a GPU that the driver counts and no process gets
GPU_NAME = re.compile(r"\d+|(?:GPU|MIG)-.+")
WATCHED = "SKIPBENCH_WATCHED"  # in the environment of a child of `watch`


def gpus() -> list[str]:
    """`CUDA_VISIBLE_DEVICES` of each GPU that this process may see; none without a driver."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is not None:
        # CUDA sees none behind a name that is no GPU's, as -1 or NoDevFiles
        return [*itertools.takewhile(GPU_NAME.fullmatch, map(str.strip, seen.split(",")))]
    listed = (ask("nvidia-smi", "--list-gpus") or "").splitlines()
    # the parts of a GPU are indented
    return [*map(str, range(sum(line.startswith("GPU ") for line in listed)))]


def gpu_bytes(found: Sequence[str]) -> int | None:
    """Usable bytes of the smallest GPU; `None` if the driver does not say, as for a part (MIG)."""
    sizes: dict[str, int] = {}
    query = "--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"
    for line in (ask("nvidia-smi", *query) or "").splitlines():
        index, uuid, mib, *_ = [*(word.strip() for word in line.split(",")), "", ""]
        for name in found if mib.isdecimal() else ():  # some have no memory of their own
            if name == index or (name.startswith("GPU-") and uuid.startswith(name)):
                sizes[name] = int(mib)
    return min(sizes.values()) * 2**20 - RESERVED if sizes and sizes.keys() == set(found) else None


def cells_at_once(workers: int | None, found: Sequence[str]) -> int:
    """Workers, one per GPU by default. Raises SkipbenchError for none, or more than GPUs."""
    if workers is not None and (workers < 1 or (found and workers > len(found))):
        upper = f" to {len(found)}, the GPUs at hand" if found else " or more"
        raise SkipbenchError(f"hardware.workers={workers}; wanted 1{upper}")
    return max(1, len(found)) if workers is None else workers


def run_cells(
    commands: Mapping[int, Sequence[str]],
    logs: Path,
    found: Sequence[str],
    at_once: int,
    ended: Callable[[int, int], None],
    needs: Mapping[int, int] | None = None,
) -> None:
    """Runs every command, each known by a number, at most `at_once` of them, on GPUs of its own of
    those `found`, 1 or what it `needs`, the largest first; their output goes to `logs`/NUMBER.log.
    Calls `ended` with number and exit status. An exception, such as that of Ctrl-C or of a signal,
    ends the processes.
    """
    count = dict.fromkeys(commands, 1) | dict(needs or {})
    free, processes, stopped = list(found), list[subprocess.Popen[bytes]](), False
    changed = threading.Condition()

    # Processes start in threads: an exception in this one leaves no process unknown.
    def run(number: int) -> int:
        need = count[number] if found else 0
        with changed, (logs / f"{number}.log").open("ab") as log:
            changed.wait_for(lambda: stopped or len(free) >= need)
            if stopped:
                return 1
            taken = free[:need]
            own = {"CUDA_VISIBLE_DEVICES": ",".join(taken)} if taken else {}
            process = subprocess.Popen(
                commands[number],
                env=os.environ | own,
                stdout=log,
                stderr=log,
                start_new_session=True,  # where Ctrl-C does not reach it: SIGTERM ends it
            )
            processes.append(process)
            del free[:need]
        code = process.wait()
        with changed:
            free[:] = sorted([*free, *taken], key=found.index)  # neighbours stay together
            changed.notify_all()
        return code

    with ThreadPoolExecutor(at_once) as pool:
        largest = sorted(commands, key=lambda number: -count[number])
        futures = {pool.submit(run, number): number for number in largest}
        try:
            for future in as_completed(futures):
                ended(futures[future], future.result())
        except BaseException as error:
            with changed:
                stopped = True
                changed.notify_all()
                for process in processes:
                    process.terminate()
                for process in processes:
                    process.wait()
            if isinstance(error, OSError):
                text = f"cannot start a cell, or write its log: {error}"
                raise SkipbenchError(text) from error
            raise


def watch(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command, hands on the signals that ask for its end, and returns its exit status, -n
    where signal n killed it. Ctrl-C reaches the child by itself, as a process of the terminal.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def hand_on(number: int, frame: FrameType | None = None) -> None:
        if child is None:
            early.append(number)
            return
        child.send_signal(signal.SIGCONT)  # a stopped child would not receive the next one
        child.send_signal(number)

    # A handler, which no child inherits, unlike SIG_IGN.
    handlers = {**dict.fromkeys(SIGNALS, hand_on), signal.SIGINT: lambda number, frame: None}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        child = subprocess.Popen(command, env={**environment, WATCHED: str(os.getpid())})
        for number in early:
            hand_on(number)
        return child.wait()
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
