"""Slurm: its commands as functions, and the text of an sbatch script, an array of cells."""

import os
import re
import shlex
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from skipbench.config.catalog import cell_command
from skipbench.config.hardware import Slurm
from skipbench.errors import SkipbenchError

TIMEOUT_S = 60
ARRAY_LIMIT = 1001
"""Slurm's own default of `MaxArraySize`, for a script that is only printed."""
BESIDE_GIB = 16
"""Memory of a job beside the weights: Python, torch, and the libraries of CUDA."""
UNITS = {"K": 2**-20, "M": 2**-10, "": 2**-10, "G": 1, "T": 2**10}
"""GiB per unit of sbatch's --mem."""


def _ask(*words: str) -> str | None:
    """Output of a command; `None` if it is missing, fails, or does not answer."""
    try:
        return subprocess.run(
            words, capture_output=True, text=True, timeout=TIMEOUT_S, check=True
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None


def jobs() -> dict[str, str] | None:
    """The jobs that are not over, id to state; `None` where Slurm does not answer.

    A task of an array is there under its own id, once it has one, and as ARRAY_TASK.
    """
    listed = _ask("squeue", "--noheader", "--array", "--format=%A|%F|%K|%T")
    if listed is None:
        return None
    states = {}
    for line in listed.splitlines():
        job, array, task, state = (word.strip() for word in line.split("|"))
        states[job] = state
        if task.isdecimal():
            states[f"{array}_{task}"] = state
    return states


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
    job, maximum = os.environ.get("SLURM_JOB_ID"), int(os.environ.get("SKIPBENCH_REQUEUES", "0"))
    if job is None:
        return "not in a Slurm job, so nothing starts it again"
    starts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    if starts >= maximum:
        counted = f"{starts} times already (hardware.requeues={maximum})"
        return f"started again {counted}; submit it again"
    if _ask("scontrol", "requeue", job) is None:
        return "scontrol did not requeue it; submit it again"
    return f"requeued for the {starts + 1}. time of at most {maximum}"


def array_limit() -> int:
    """`MaxArraySize` of this cluster: the maximum number of tasks of an array."""
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config") or "", re.M)
    return int(found[1]) if found else ARRAY_LIMIT


def parts(cells: range, limit: int) -> list[range]:
    """Splits numbers of cells into arrays of at most `limit` tasks, Slurm's `MaxArraySize`.

    Raises:
        SkipbenchError: the cluster allows no arrays.
    """
    if limit < 1:
        raise SkipbenchError(
            f"this cluster allows arrays of {limit} tasks (MaxArraySize); ask for at least 1"
        )
    return [cells[first : first + limit] for first in range(0, len(cells), limit)]


def script(name: str, manifest: Path, part: range, hardware: Slurm, python: str, cwd: Path) -> str:
    """The script of one array; absolute paths, since nothing but this text reaches the node.

    Args:
        name: of the jobs.
        manifest: one cell per line; logs lie beside it.
        part: numbers of the cells.
        hardware: the cluster.
        python: the interpreter on the nodes.
        cwd: where the cells run, and what their relative paths start from.

    Raises:
        SkipbenchError: a value that cannot stand in a script.
    """
    cell = shlex.join(cell_command(str(manifest), python=python))
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(name, manifest.parent, part, hardware, cwd)),
        f"export SKIPBENCH_REQUEUES={hardware.requeues}",
        *(["export HF_HUB_OFFLINE=1"] if hardware.offline else []),
        *hardware.setup,
        "# In the place of the shell: Slurm's signals go to what the batch script itself is.",
        f'exec {cell} "$(({part.start} + SLURM_ARRAY_TASK_ID))"',
    ]
    return "\n".join(lines) + "\n"


def memory_for(asked: str | None, weight_bytes: int) -> str | None:
    """sbatch's --mem for a model: what was asked for, or as much more as its weights and
    `BESIDE_GIB` need, since a checkpoint passes through the memory of the node.
    """
    size = re.fullmatch(r"(\d+)([KMGT]?)B?", asked or "", re.IGNORECASE)
    needed = -(-weight_bytes // 2**30) + BESIDE_GIB
    # another form is left to the cluster
    enough = size is None or int(size[1]) * UNITS[size[2].upper()] >= needed
    return asked if enough else f"{needed}G"


def _options(name: str, folder: Path, part: range, hardware: Slurm, cwd: Path) -> Iterator[str]:
    parallel = "" if hardware.parallel is None else f"%{hardware.parallel}"
    gpus = 1 if hardware.gpus is None else hardware.gpus
    values = {
        "job-name": name,
        # Slurm reads %A and %a in this one, and a doubled sign as one
        "output": f"{str(folder).replace('%', '%%')}/%A_%a.log",
        "chdir": str(cwd),
        "gres": ":".join(filter(None, ["gpu", hardware.gpu, str(gpus)])) if gpus else None,
        "mem": hardware.memory,
        **{k: getattr(hardware, k) for k in ("partition", "account", "qos", "constraint", "time")},
    }
    for key, value in values.items():
        if value is not None:
            plain = re.fullmatch(r"[\w@%+=:,./-]+", _safe(key, value))
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            yield f"--{key}={value}" if plain else f'--{key}="{escaped}"'
    yield f"--array=0-{len(part) - 1}{parallel}"
    yield "--open-mode=append"
    yield "--requeue" if hardware.requeues else "--no-requeue"
    yield f"--signal=B:USR2@{hardware.signal_s}"
    yield "--ntasks=1"
    yield f"--cpus-per-task={hardware.cpus}"
    if hardware.exclusive:
        yield "--exclusive"
    yield from (_safe("options", word) for word in hardware.options)


def _safe(name: str, value: str) -> str:
    if not value.isprintable():
        raise SkipbenchError(
            f"{name}={value!r} holds a line break or control character; sbatch reads one "
            "option a line"
        )
    return value
