"""The text of an sbatch script: an array whose tasks are cells of a manifest."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from skipbench.config.catalog import cell_command
from skipbench.config.hardware import Slurm
from skipbench.errors import SkipbenchError

BESIDE_GIB = 16
"""Memory of a job beside the weights: Python, torch, and the libraries of CUDA."""


@dataclass(frozen=True)
class Part:
    """`count` cells of the manifest from `first` on; as many as an array may have."""

    first: int
    count: int


def parts(cells: int, limit: int, start: int = 0) -> list[Part]:
    """Splits `cells` cells, from number `start` on, into arrays of at most `limit` tasks, Slurm's
    `MaxArraySize`.

    Raises:
        SkipbenchError: the cluster allows no arrays.
    """
    if limit < 1:
        raise SkipbenchError(
            f"this cluster allows arrays of {limit} tasks (MaxArraySize); ask for at least 1"
        )
    return [Part(start + first, min(limit, cells - first)) for first in range(0, cells, limit)]


def script(name: str, manifest: Path, part: Part, hardware: Slurm, python: str, cwd: Path) -> str:
    """The script of one array; absolute paths, since nothing but this text reaches the node.

    Args:
        name: of the jobs.
        manifest: one cell per line; logs lie beside it.
        hardware: the cluster.
        python: the interpreter on the nodes.
        cwd: where the cells run, and what their relative paths start from.

    Raises:
        SkipbenchError: a value that cannot stand in a script, or a number out of range.
    """
    cell = shlex.join(cell_command(str(manifest), python=python))
    command = f'{cell} "$(({part.first} + SLURM_ARRAY_TASK_ID))"'
    lines = [
        "#!/bin/bash",
        *(f"#SBATCH {option}" for option in _options(name, manifest.parent, part, hardware, cwd)),
        f"export SKIPBENCH_REQUEUES={_number(hardware, 'requeues', 0)}",
        *(["export HF_HUB_OFFLINE=1"] if hardware.offline else []),
        *hardware.setup,
        "# In the place of the shell: Slurm's signals go to what the batch script itself is.",
        f"exec {command}",
    ]
    return "\n".join(lines) + "\n"


def memory_for(asked: str | None, weight_bytes: int) -> str | None:
    """sbatch's --mem for a model: what was asked for, or as much more as its weights and
    `BESIDE_GIB` need, since a checkpoint passes through the memory of the node.
    """
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", asked or "", re.IGNORECASE)
    if found is None:
        return asked  # left to the cluster
    given_gib = (
        int(found[1]) * {"K": 2**-20, "M": 2**-10, "": 2**-10, "G": 1, "T": 2**10}[found[2].upper()]
    )
    needed = -(-weight_bytes // 2**30) + BESIDE_GIB
    return asked if given_gib >= needed else f"{needed}G"


def _options(name: str, folder: Path, part: Part, hardware: Slurm, cwd: Path) -> Iterator[str]:
    parallel = "" if hardware.parallel is None else f"%{_number(hardware, 'parallel', 1)}"
    yield _option("job-name", name)
    yield f"--array=0-{part.count - 1}{parallel}"
    # Slurm reads %A and %a in these two, and a doubled sign as one.
    log = f"{str(folder).replace('%', '%%')}/%A_%a.log"
    yield _option("output", log)
    yield _option("chdir", str(cwd))
    yield "--open-mode=append"
    yield "--requeue" if hardware.requeues else "--no-requeue"
    yield f"--signal=B:USR2@{_number(hardware, 'signal_s', 1)}"
    yield "--ntasks=1"
    yield f"--cpus-per-task={_number(hardware, 'cpus', 1)}"
    if gpus := 1 if hardware.gpus is None else _number(hardware, "gpus", 0):
        yield _option("gres", ":".join(["gpu", *filter(None, [hardware.gpu]), str(gpus)]))
    for key, option in (
        ("memory", "mem"),
        *((k, k) for k in ("partition", "account", "qos", "constraint", "time")),
    ):
        if getattr(hardware, key) is not None:
            yield _option(option, str(getattr(hardware, key)))
    if hardware.exclusive:
        yield "--exclusive"
    yield from (_safe("options", word) for word in hardware.options)


def _option(name: str, value: str) -> str:
    if re.fullmatch(r"[\w@%+=:,./-]+", _safe(name, value)):
        return f"--{name}={value}"
    quoted = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{name}="{quoted}"'


def _safe(name: str, value: str) -> str:
    if not value.isprintable():
        raise SkipbenchError(
            f"{name}={value!r} holds a line break or control character; sbatch reads one "
            "option a line"
        )
    return value


def _number(hardware: Slurm, key: str, least: int) -> int:
    value = int(getattr(hardware, key))
    if value < least:
        raise SkipbenchError(f"hardware.{key}={value}; wanted {least} or more")
    return value
