"""Folders of submissions, RESULTS/submit/NAME-N: the cells, one per line, and the jobs that Slurm
made of them.
"""

import contextlib
import itertools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, read_lines, write_atomic, writing
from skipbench.runs.reading import MOST_SAMPLES, read_bytes

CELLS = "cells.jsonl"


def next_folder(results: Path, name: str, make: bool) -> Path:
    """The first free folder of `name`; with `make` it is made, by this process alone."""
    for number in itertools.count(1):
        folder = results / "submit" / f"{name}-{number}"
        with writing(folder), contextlib.suppress(FileExistsError):
            if make:
                folder.mkdir(parents=True)
            elif folder.exists():
                continue
            return folder
    raise AssertionError("counting ends")


def write_cells(folder: Path, cells: Sequence[Mapping[str, Any]]) -> Path:
    """Writes the manifest of cells: `name`, `folder` of the run, and `config`, all settings."""
    write_atomic(path := folder / CELLS, "".join(json.dumps(cell) + "\n" for cell in cells))
    return path


def read_cell(path: Path, index: int) -> RunConfig:
    """The configuration of cell `index`. Raises SkipbenchError if there is none."""
    try:
        data = read_bytes(path, MOST_SAMPLES)
        if data is None:
            raise FileNotFoundError("no such file")
        lines = data.decode().splitlines()
        if 0 <= index < len(lines):
            return RunConfig.from_dict(json.loads(lines[index])["config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SkipbenchError(
            f"{path} cannot be read ({type(error).__name__}: {error}); submit again"
        ) from error
    raise SkipbenchError(f"{path} has {len(lines)} cells and no number {index}; the first is 0")


class Array(msgspec.Struct):
    """A job of Slurm that runs `count` cells from number `first` on."""

    job: Annotated[str, Meta(pattern=r"^\w{1,64}$")]
    first: Annotated[int, Meta(ge=0)]
    count: Annotated[int, Meta(ge=0)]


class _Cell(msgspec.Struct):
    folder: str


def add_job(folder: Path, job: str, first: int, count: int) -> None:
    """Records that an array `job` runs `count` cells from `first` on."""
    append_line(folder / "jobs.jsonl", msgspec.json.encode(Array(job, first, count)).decode())


class Task(NamedTuple):
    """A cell given to Slurm: ARRAY_TASK, and its log, which is there once it has begun."""

    job: str
    log: Path


def tasks(results: Path) -> dict[str, list[Task]]:
    """The tasks of all submissions by the folder of their run, the last at the end."""
    by_run = defaultdict[str, list[Task]](list)
    for path in sorted((results / "submit").glob("*/jobs.jsonl")):
        # a folder that cannot be read blocks no other submission
        with contextlib.suppress(SkipbenchError, msgspec.MsgspecError, LookupError, RecursionError):
            lines = read_lines(path.parent / CELLS)
            cells = [msgspec.json.decode(line, type=_Cell).folder for _, line in lines]
            arrays = [msgspec.json.decode(line, type=Array) for _, line in read_lines(path)]
            jobs = [(f"{a.job}_{n}", cells[a.first + n]) for a in arrays for n in range(a.count)]
            for job, folder in jobs:
                by_run[folder].append(Task(job, path.parent / f"{job}.log"))
    return by_run
