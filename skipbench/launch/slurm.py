"""Slurm: its commands as functions, and the text of an sbatch script, an array of rows."""

import json
import os
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from skipbench.config.catalog import row_command
from skipbench.config.hardware import Slurm
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.runs.gpu import ask

TIMEOUT_S = 60
BESIDE_GIB = 16  # memory of a job beside the weights: Python, torch, and the libraries of CUDA
UNITS = {"K": 2**-20, "M": 2**-10, "": 2**-10, "G": 1, "T": 2**10}  # GiB per unit of sbatch's --mem
# among what a cluster's own scripts print around Slurm's words
JOB_LINE = re.compile(r"\d+ *\|.*\|.*\| *[A-Z_]+")
SUBMITTED = re.compile(r" *(?:Submitted batch job )?(\d+)(?:;.*| on cluster .*)? *")
PLAIN = re.compile(r"[\w@%+=:,./-]+")  # values that need no quotes in a script


def jobs() -> dict[str, str] | None:
    """The jobs that are not over, id to state; `None` where Slurm does not answer. A task of an
    array is there under its own id, once it has one, and as ARRAY_TASK.
    """
    listed = ask("squeue", "--noheader", "--array", "--format=%A|%F|%K|%T")
    if listed is None:
        return None
    states = {}
    for line in listed.splitlines():
        if not JOB_LINE.fullmatch(line.strip()):
            continue
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

    Raises NotHereError where there is no sbatch, or it refuses, with its words; SkipbenchError
    where it does not answer, or names no job, so that one may be queued.
    """
    depends = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    words = ["sbatch", "--parsable", *depends, str(script)]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT_S)
    except FileNotFoundError as error:
        raise NotHereError(
            "no sbatch here; submit from a login node, or see the script with --print"
        ) from error
    except subprocess.TimeoutExpired as error:
        raise SkipbenchError(
            f"sbatch did not answer for {TIMEOUT_S} s; look with squeue before trying again"
        ) from error
    if done.returncode:
        raise NotHereError(
            f"sbatch refuses {script}: {done.stderr.strip()}; the keys of hardware= say what "
            "it asks for"
        )
    numbers = [*filter(None, map(SUBMITTED.fullmatch, done.stdout.splitlines()))]
    if not numbers:
        raise SkipbenchError(
            f"sbatch names no job: {(done.stdout + done.stderr).strip()!r}; look with squeue "
            "before trying again"
        )
    return numbers[-1][1]


def requeue_self() -> str:
    """Puts this process's job back into the queue, at most `SKIPBENCH_REQUEUES` times; says so."""
    job, maximum = os.environ.get("SLURM_JOB_ID"), int(os.environ.get("SKIPBENCH_REQUEUES", "0"))
    if task := os.environ.get("SLURM_ARRAY_TASK_ID"):  # of one task the number is the array's
        job = f"{os.environ.get('SLURM_ARRAY_JOB_ID')}_{task}"
    if job is None:
        return "not in a Slurm job, so nothing starts it again"
    starts = int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    if starts >= maximum:
        times = f"{starts} times already (hardware.requeues={maximum})"
        return f"started again {times}; submit it again"
    if ask("scontrol", "requeue", job) is None:
        return "scontrol did not requeue it; submit it again"
    return f"requeued for the {starts + 1}. time of at most {maximum}"


def memory_for(asked: str | None, weight_bytes: int) -> str | None:
    """sbatch's --mem: as asked, or what a checkpoint's weights and `BESIDE_GIB` need, if more."""
    size = re.fullmatch(r"(\d+)([KMGT]?)B?", asked or "", re.IGNORECASE)
    needed = -(-weight_bytes // 2**30) + BESIDE_GIB
    # another form is left to the cluster
    enough = size is None or int(size[1]) * UNITS[size[2].upper()] >= needed
    return asked if enough else f"{needed}G"


def script(name: str, manifest: Path, part: range, hardware: Slurm, python: str, cwd: Path) -> str:
    """The script of one array, which runs the rows `part` of a manifest, beside which its logs lie;
    absolute paths, since nothing but this text reaches the node. Raises SkipbenchError for a value
    that cannot stand in a script.
    """
    gpus = 1 if hardware.gpus is None else hardware.gpus
    values = {
        "job-name": name,
        # Slurm reads %A and %a in this one, and a doubled sign as one
        "output": f"{str(manifest.parent).replace('%', '%%')}/%A_%a.log",
        "chdir": str(cwd),
        "gres": ":".join(filter(None, ["gpu", hardware.gpu, str(gpus)])) if gpus else None,
        "mem": hardware.memory,
        **{k: getattr(hardware, k) for k in ("partition", "account", "constraint", "time")},
        "array": f"0-{len(part) - 1}" + (f"%{hardware.parallel}" if hardware.parallel else ""),
        "open-mode": "append",
        "signal": f"B:USR2@{hardware.signal_s}",
        "ntasks": "1",
        "cpus-per-task": str(hardware.cpus),
    }
    given = {key: value for key, value in values.items() if value is not None}
    for key, value in [*given.items(), *(("options", word) for word in hardware.options)]:
        if not value.isprintable():
            raise SkipbenchError(
                f"{key}={value!r} holds a line break or control character; sbatch reads one "
                "option a line"
            )
    quoted = {k: json.dumps(v, ensure_ascii=False) for k, v in given.items()}
    options = [
        *(f"--{k}={v if PLAIN.fullmatch(v) else quoted[k]}" for k, v in given.items()),
        "--requeue" if hardware.requeues else "--no-requeue",
        *(["--exclusive"] if hardware.exclusive else []),
        *hardware.options,
    ]
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in options),
        f"export SKIPBENCH_REQUEUES={hardware.requeues}",
        *(["export HF_HUB_OFFLINE=1"] if hardware.offline else []),
        *hardware.setup,
        "# In the place of the shell: Slurm's signals go to what the batch script itself is.",
        f"exec {shlex.join(row_command(str(manifest), python=python))} "
        f'"$(({part.start} + SLURM_ARRAY_TASK_ID))"',
    ]
    return "\n".join(lines) + "\n"
