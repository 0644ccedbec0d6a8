"""Folders of submissions, RESULTS/submit/NAME-N: the cells, one per line, and the jobs that Slurm
made of them.
"""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, read_lines, write_atomic, writing
from skipbench.runs.reading import MOST_SAMPLES, read_bytes, strict_json

CELLS = "cells.jsonl"


def next_folder(results: Path, name: str, make: bool) -> Path:
    """The first free folder of `name`; with `make` it is this process's own."""
    number = 1
    while True:
        folder = results / "submit" / f"{name}-{number}"
        if not folder.exists():
            # FileExistsError: somebody else was faster
            with writing(folder), contextlib.suppress(FileExistsError):
                if make:
                    folder.mkdir(parents=True)
                return folder
        number += 1


def write_cells(folder: Path, cells: Sequence[Mapping[str, Any]]) -> Path:
    """Writes the manifest; each cell has `name`, `folder` of its run, and `config`, all
    settings.
    """
    path = folder / CELLS
    write_atomic(path, "".join(json.dumps(cell) + "\n" for cell in cells))
    return path


def read_cell(path: Path, index: int) -> RunConfig:
    """The configuration of cell `index`.

    Raises:
        SkipbenchError: no such file or line, or no cell in it.
    """
    try:
        found = read_bytes(path, MOST_SAMPLES)
        if found is None:
            raise FileNotFoundError("no such file")
        lines = found.decode().splitlines()
        config = (
            RunConfig.from_dict(json.loads(lines[index])["config"])
            if 0 <= index < len(lines)
            else None
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SkipbenchError(
            f"{path} cannot be read ({type(error).__name__}: {error}); submit again"
        ) from error
    if config is None:
        raise SkipbenchError(f"{path} has {len(lines)} cells and no number {index}; the first is 0")
    return config


def add_job(folder: Path, job: str, first: int, count: int) -> None:
    """Notes that an array `job` runs `count` cells from `first` on."""
    append_line(folder / "jobs.jsonl", json.dumps({"job": job, "first": first, "count": count}))


@dataclass(frozen=True)
class Task:
    """A cell given to Slurm: id of its job, as ARRAY_TASK, and its log, which is there once it has
    begun.
    """

    job: str
    log: Path


def tasks(results: Path) -> dict[str, list[Task]]:
    """By the folder of a run, what was submitted of it, the last at the end."""
    found: dict[str, list[Task]] = {}
    for path in sorted((results / "submit").glob("*/jobs.jsonl")):
        try:
            cells = [strict_json(line)["folder"] for _, line in read_lines(path.parent / CELLS)]
            arrays = [strict_json(line) for _, line in read_lines(path)]
            jobs = [
                (f"{a['job']}_{n}", str(cells[a["first"] + n]))
                for a in arrays
                for n in range(a["count"])
            ]
        # it blocks no other
        except (SkipbenchError, ValueError, LookupError, TypeError, RecursionError):
            continue
        for job, folder in jobs:
            if re.fullmatch(r"\w{1,64}", job):  # else its log could be any file
                found.setdefault(folder, []).append(Task(job, path.parent / f"{job}.log"))
    return found
