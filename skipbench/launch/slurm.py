"""Slurm's commands as functions."""

import os
import re
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from skipbench.errors import SkipbenchError

TIMEOUT_S = 60
ARRAY_LIMIT = 1001
"""Slurm's own default of `MaxArraySize`, for a script that is only printed."""


def _ask(*words: str) -> str | None:
    """Output of a command; `None` if it is missing, fails, or does not answer."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def array_limit() -> int:
    """`MaxArraySize` of this cluster: the most tasks of an array, which are numbered from 0."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config") or "", re.M)
    return int(found[1]) if found else ARRAY_LIMIT


def jobs() -> dict[str, str] | None:
    """The jobs that are not over, id to state; `None` where Slurm does not answer.

    A task of an array is there under its own id, once it has one, and as ARRAY_TASK.
    """
    said = _ask("squeue", "--noheader", "--array", "--format=%A|%F|%K|%T")
    if said is None:
        return None
    found = {}
    for line in said.splitlines():
        job, array, task, state = (word.strip() for word in line.split("|"))
        found[job] = state
        if task.isdecimal():
            found[f"{array}_{task}"] = state
    return found


def wait(ids: Sequence[str], poll_s: float) -> None:
    """Returns once none of the jobs `ids` is queued or runs; asks squeue every `poll_s` seconds."""
    while ids:
        live = jobs()
        if live is not None and not {job.partition("_")[0] for job in live}.intersection(ids):
            return
        time.sleep(poll_s)


def sbatch(script: Path, after: Sequence[str] = ()) -> str:
    """Submits a script and returns the id of its job, which waits for the jobs `after` to be over.

    Raises:
        SkipbenchError: there is no sbatch, or it refuses; with its words.
    """
    depends = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    words = ["sbatch", "--parsable", *depends, str(script)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
    except FileNotFoundError as error:
        raise SkipbenchError(
            "no sbatch here; submit from a login node, or see the script with --print"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SkipbenchError(
            f"sbatch did not answer for {TIMEOUT_S} s; look with squeue before trying again"
        ) from error
    if done.returncode:
        raise SkipbenchError(
            f"sbatch refuses {script}: {done.stderr.strip()}; the keys of hardware= say what "
            "it asks for"
        )
    return done.stdout.strip().partition(";")[0]


def requeue_self() -> str:
    """Puts the job of this process back into the queue, as often as `SKIPBENCH_REQUEUES` allows.

    Returns what was done.
    """
    job, most = os.environ.get("SLURM_JOB_ID"), int(os.environ.get("SKIPBENCH_REQUEUES", "0"))
    if job is None:
        return "not in a Slurm job, so nothing starts it again"
    starts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    if starts >= most:
        return f"started again {starts} times already (hardware.requeues={most}); submit it again"
    if _ask("scontrol", "requeue", job) is None:
        return "scontrol did not requeue it; submit it again"
    return f"requeued for the {starts + 1}. time of at most {most}"
