"""Folders of submissions, RESULTS/submit/NAME-N: rows of cells, one per line, and Slurm's jobs."""

import contextlib
import itertools
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.runs.cell import Cell
from skipbench.runs.files import append_line, read_lines, write_atomic, write_json, writing
from skipbench.runs.reading import MALFORMED, read_json, readable

CELLS, COMMAND = "cells.jsonl", "command.json"


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


def write_rows(folder: Path, rows: Sequence[Mapping[str, Any]], words: Sequence[str] = ()) -> Path:
    """Writes rows: `name`, and of their cells the `folders` of the runs, `names` and all `configs`;
    and the command line, with its words behind `submit`.
    """
    write_json(folder / COMMAND, {"argv": sys.argv, "words": [*words]})
    write_atomic(path := folder / CELLS, "".join(json.dumps(row) + "\n" for row in rows))
    return path


def read_row(path: Path, index: int) -> list[Cell]:
    """The cells of row `index`. Raises SkipbenchError if there is none."""
    with readable(path, "submit again"):
        lines = read_lines(path)
        if 0 <= index < len(lines):
            row = msgspec.json.decode(lines[index][1], type=_Row)
            return [Cell(RunConfig.from_dict(config)) for config in row.configs]
    raise SkipbenchError(f"{path} has {len(lines)} rows and no number {index}; the first is 0")


class Command(msgspec.Struct):
    """A command line, and its words behind `submit`."""

    argv: list[str] = []
    words: list[str] = []


def command(folder: Path) -> Command:
    """What wrote the rows in a folder; nothing where it cannot be read."""
    with contextlib.suppress(SkipbenchError):
        return read_json(folder / COMMAND, Command) or Command()
    return Command()


class Array(msgspec.Struct):
    """A job of Slurm that runs `count` rows from number `first` on."""

    job: Annotated[str, Meta(pattern=r"^\w{1,64}$")]
    first: Annotated[int, Meta(ge=0)]
    count: Annotated[int, Meta(ge=0)]


class _Row(msgspec.Struct):
    configs: list[dict[str, Any]]
    folders: list[str] = []
    names: list[str] = []


def add_job(folder: Path, job: str, first: int, count: int) -> None:
    """Records that an array `job` runs `count` rows from `first` on."""
    append_line(folder / "jobs.jsonl", msgspec.json.encode(Array(job, first, count)).decode())


class Task(NamedTuple):
    """A row given to Slurm: ARRAY_TASK, and its log, which is there once it has begun."""

    job: str
    log: Path


def cells(results: Path) -> dict[Path, list[Cell]]:
    """The cells of all submissions that can be read, by their folders; those that were sent again
    stand with the last one.
    """
    found: dict[Path, dict[str, Cell]] = {}
    for path in sorted((results / "submit").glob(f"*/{CELLS}"), key=lambda p: p.stat().st_mtime):
        with contextlib.suppress(SkipbenchError, *MALFORMED):
            rows = [msgspec.json.decode(line, type=_Row) for _, line in read_lines(path)]
            own: dict[str, Cell] = {}
            for row in rows:
                for key, name, config in zip(row.folders, row.names, row.configs, strict=True):
                    own[key] = Cell(RunConfig.from_dict(config), name=name)
            found = {at: {k: v for k, v in o.items() if k not in own} for at, o in found.items()}
            found[path.parent] = own
    return {folder: [*own.values()] for folder, own in found.items() if own}


def tasks(results: Path) -> dict[str, list[Task]]:
    """The tasks of all submissions by the folder of their run, the last at the end."""
    by_run = defaultdict[str, list[Task]](list)
    for path in sorted((results / "submit").glob("*/jobs.jsonl")):
        # a folder that cannot be read blocks no other submission
        with contextlib.suppress(SkipbenchError, *MALFORMED):
            lines = read_lines(path.parent / CELLS)
            rows = [msgspec.json.decode(line, type=_Row).folders for _, line in lines]
            arrays = [msgspec.json.decode(line, type=Array) for _, line in read_lines(path)]
            jobs = [(f"{a.job}_{n}", rows[a.first + n]) for a in arrays for n in range(a.count)]
            for job, folder in ((job, folder) for job, row in jobs for folder in row):
                by_run[folder].append(Task(job, path.parent / f"{job}.log"))
    return by_run
