"""Tables made from a summary of the records, which is stored beside them and can be read back."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.published import paper_of
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table
from skipbench.report.tables.runs import run_table
from skipbench.runs.reading import MOST_SAMPLES, printable, read_bytes, strict_json
from skipbench.runs.run import Run, plain

OLDER = "Made before a change of the engine or of a method: today's code may give other numbers."


class Summary(msgspec.Struct, omit_defaults=True):
    """The runs of a table without their samples."""

    experiment: str
    scale: str
    runs: list[Run]
    columns: list[str] = []
    """As `run_table` takes them."""
    older: bool = False
    """Set by scripts/readme_figures.py: `OLDER` stands in the table."""


def summary(experiment: str, scale: str, runs: Sequence[Run], columns: Sequence[str] = ()) -> str:
    """A `Summary` as JSON, a run per line."""
    head = {"experiment": experiment, "scale": scale} | ({"columns": [*columns]} if columns else {})
    text = ",\n".join(json.dumps(plain(run), allow_nan=False) for run in runs)
    return f'{json.dumps(head)[:-1]}, "runs": [\n{text}\n]}}\n'


def stored_table(text: str) -> Table:
    """The paper's table, or for an experiment of no paper the table of its runs.

    Args:
        text: as returned by `summary`.

    Raises:
        SkipbenchError: it is something else.
    """
    try:
        stored = msgspec.convert(strict_json(text), Summary)
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"no summary of a table ({printable(str(error))}); write it with python -m "
            "skipbench table NAME"
        ) from error
    name, scale, runs = stored.experiment, stored.scale, stored.runs
    paper, of = paper_of(name) or ("", "")
    table = (
        paper_table(paper, of, runs, scale)
        if of.startswith("table")
        else run_table(f"Experiment {name}", runs, (), f"{name}-{scale}", stored.columns)
    )
    return replace(table, cautions=(OLDER, *table.cautions)) if stored.older else table


def read_table(path: Path) -> Table:
    """`stored_table` of a file.

    Raises:
        SkipbenchError: it cannot be read, or holds no summary.
    """
    try:
        return stored_table((read_bytes(path, MOST_SAMPLES) or b"").decode())
    except (OSError, UnicodeDecodeError) as error:
        raise SkipbenchError(f"{path} cannot be read: {error}") from error
    except SkipbenchError as error:
        raise SkipbenchError(f"{path}: {error}") from error


class _Measured(msgspec.Struct):
    """The part of a run by which two files of runs are compared."""

    model: str = ""
    method: str = ""
    dataset: str = ""
    keys: dict[str, Any] = {}
    metrics: Any = None


class _Runs(msgspec.Struct):
    runs: list[_Measured]


def would_lose(path: Path, text: str) -> str | None:
    """Says how many measured runs of the stored table or figure `path` are not measured in `text`,
    which is to replace it; `None` where none is lost, or it cannot be read.
    """
    try:
        before = _measured(read_bytes(path, MOST_SAMPLES) or b"")
    except (OSError, msgspec.MsgspecError, RecursionError, SkipbenchError):
        return None
    if not (lost := (before - _measured(text)).total()):
        return None
    return (
        f"{path} is kept: the measured values of {lost} of its {before.total()} runs would be "
        "lost; write elsewhere with results=FOLDER, or over it with --force"
    )


def _measured(text: str | bytes) -> Counter[str]:
    """The measured runs; several may be of the same, as the points of a sweep."""
    return Counter(
        json.dumps([run.model, run.method, run.dataset, run.keys], sort_keys=True)
        for run in msgspec.json.decode(text, type=_Runs).runs
        if run.metrics is not None
    )
