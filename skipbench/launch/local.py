"""A queue of cells on this machine: a cell has its GPUs, one or several, to itself; without GPUs
one cell runs after another.
"""

import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from skipbench.errors import SkipbenchError

RESERVED = 2**30
"""Bytes of a GPU that the driver counts and no process gets."""
Ended = Callable[[int, int], None]
"""Told of every cell its number and exit status."""


def gpus() -> list[str]:
    """What `CUDA_VISIBLE_DEVICES` may be set to, one GPU each: those that this process may see;
    none where no driver answers.
    """
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is not None:
        return [name.strip() for name in seen.split(",") if name.strip()]
    # the parts of one are indented
    listed = [line for line in _driver("--list-gpus") if line.startswith("GPU ")]
    return [str(number) for number in range(len(listed))]


def gpu_bytes(found: Sequence[str]) -> int | None:
    """What a process can use of the smallest of the GPUs; `None` where the driver does not say, as
    of a part of one (MIG).
    """
    sizes: dict[str, int] = {}
    for line in _driver("--query-gpu=index,uuid,memory.total", "--format=csv,noheader,nounits"):
        index, uuid, mib = ([word.strip() for word in line.split(",")] + 3 * [""])[:3]
        if mib.isdecimal():  # some have no memory of their own
            named = (
                name
                for name in found
                if name == index or (name.startswith("GPU-") and uuid.startswith(name))
            )
            sizes |= dict.fromkeys(named, int(mib))
    return min(sizes.values()) * 2**20 - RESERVED if sizes and sizes.keys() == set(found) else None


def _driver(*words: str) -> list[str]:
    """Lines of the driver's own tool; none where it is not there or does not answer."""
    try:
        said = subprocess.run(
            ["nvidia-smi", *words], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return said.stdout.splitlines()


def slots(workers: int | None, found: Sequence[str]) -> list[dict[str, str]]:
    """What each worker adds to the environment of its cells.

    Raises:
        SkipbenchError: no worker, or more of them than GPUs, two of which would share one and
            disturb each other's timings.
    """
    if workers is None:
        workers = max(1, len(found))
    if workers < 1 or (found and workers > len(found)):
        most = f" to {len(found)}, the GPUs at hand" if found else " or more"
        raise SkipbenchError(f"hardware.workers={workers}; wanted 1{most}")
    return [{"CUDA_VISIBLE_DEVICES": name} for name in found[:workers]] or [
        {} for _ in range(workers)
    ]


def run_cells(
    commands: Mapping[int, Sequence[str]],
    logs: Path,
    places: Sequence[dict[str, str]],
    ended: Ended,
    needs: Mapping[int, int] | None = None,
    most: int | None = None,
) -> None:
    """Runs every command, each known by a number, as many at a time as places allow; what they
    print goes to `logs`/NUMBER.log.

    An exception, such as that of Ctrl-C or of a signal, ends the processes by SIGTERM, and waits
    for them.

    Args:
        needs: places of a command, 1 where it is not there and never more than there are. Those
            that need most go first.
        most: commands at a time, however many places are left.
    """
    places_of = dict.fromkeys(commands, 1) | dict(needs or {})
    todo = sorted(commands, key=lambda number: -places_of[number])
    free = list(range(len(places)))
    changed = threading.Condition()
    over: queue.SimpleQueue[tuple[int, int] | OSError] = queue.SimpleQueue()
    running: dict[int, subprocess.Popen[bytes]] = {}
    # held by whoever starts a process, and for ever by whoever wants no more of them
    starting = threading.Lock()

    def start(number: int, place: dict[str, str]) -> subprocess.Popen[bytes]:
        with starting, (logs / f"{number}.log").open("ab") as log:
            # Out of the terminal's reach: Ctrl-C meets only this process, which then asks each cell
            # once for its end.
            running[number] = subprocess.Popen(
                commands[number],
                env=os.environ | place,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return running[number]

    def next_of() -> int | None:
        return next((number for number in todo if places_of[number] <= len(free)), None)

    def work() -> None:
        while True:
            with changed:
                changed.wait_for(lambda: not todo or next_of() is not None)
                number = next_of()
                if number is None:
                    return
                todo.remove(number)
                taken = [free.pop(0) for _ in range(places_of[number])]
            try:
                over.put((number, start(number, _joined([places[i] for i in taken])).wait()))
            except OSError as error:
                over.put(error)
            with changed:
                free.extend(taken)
                free.sort()  # neighbours stay together
                changed.notify_all()

    workers = [threading.Thread(target=work, daemon=True) for _ in range(most or len(places))]
    for worker in workers:
        worker.start()
    try:
        for _ in commands:
            found = over.get()
            if isinstance(found, OSError):
                raise SkipbenchError(f"cannot start a cell, or write its log: {found}") from found
            ended(*found)
    except BaseException:
        starting.acquire()
        for process in running.values():
            process.terminate()
        for process in running.values():
            process.wait()
        raise


def _joined(places: Sequence[dict[str, str]]) -> dict[str, str]:
    """One environment that shows the GPUs of all these places."""
    return {key: ",".join(place[key] for place in places) for key in places[0]}
