"""A queue of cells on this machine: each GPU has one of them at a time, and without GPUs one runs after another."""

import contextlib
import os
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from skipbench.errors import SkipbenchError

Ended = Callable[[int, int], None]
"""Told of every cell its number and exit status."""


def gpus() -> list[str]:
    """What `CUDA_VISIBLE_DEVICES` may be set to, one GPU each: those that this process may see; none where no driver answers."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if seen is not None:
        return [name.strip() for name in seen.split(",") if name.strip()]
    try:
        said = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    listed = [line for line in said.stdout.splitlines() if line.startswith("GPU ")]  # the parts of one are indented
    return [str(number) for number in range(len(listed))]


def slots(workers: int | None, found: Sequence[str]) -> list[dict[str, str]]:
    """What each worker adds to the environment of its cells.

    Raises:
        SkipbenchError: no worker, or more of them than GPUs, two of which would share one and disturb each other's timings.
    """
    if workers is None:
        workers = max(1, len(found))
    if workers < 1 or (found and workers > len(found)):
        most = f" to {len(found)}, the GPUs at hand" if found else " or more"
        raise SkipbenchError(f"hardware.workers={workers}; wanted 1{most}")
    return [{"CUDA_VISIBLE_DEVICES": name} for name in found[:workers]] or [{} for _ in range(workers)]


def run_cells(
    commands: Mapping[int, Sequence[str]], logs: Path, places: Sequence[dict[str, str]], ended: Ended
) -> None:
    """Runs every command, each known by a number, as many at a time as there are places; what they print goes to `logs`/NUMBER.log.

    An exception, such as that of Ctrl-C or of a signal, ends the processes by SIGTERM, and waits for them.
    """
    todo: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in commands:
        todo.put(number)
    over: queue.SimpleQueue[tuple[int, int] | OSError] = queue.SimpleQueue()
    running: dict[int, subprocess.Popen[bytes]] = {}
    starting = threading.Lock()  # held by whoever starts a process, and for ever by whoever wants no more of them

    def start(number: int, place: dict[str, str]) -> subprocess.Popen[bytes]:
        with starting, (logs / f"{number}.log").open("ab") as log:
            # Out of the terminal's reach: Ctrl-C meets only this process, which then asks each cell once for its end.
            running[number] = subprocess.Popen(
                commands[number], env=os.environ | place, stdout=log, stderr=log, start_new_session=True
            )
        return running[number]

    def work(place: dict[str, str]) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                number = todo.get_nowait()
                try:
                    over.put((number, start(number, place).wait()))
                except OSError as error:
                    over.put(error)

    workers = [threading.Thread(target=work, args=[place], daemon=True) for place in places]
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
