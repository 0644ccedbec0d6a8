"""Tables made from a summary of the records, which is stored beside them and can be read back."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.published import paper_of
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table
from skipbench.report.tables.runs import row_table
from skipbench.runs.reading import MOST_SAMPLES, read_bytes, readable, strict_json
from skipbench.runs.run import Published, Run, plain

OLDER = "Made before a change of the engine or of a method: today's code may give other numbers."


class Summary(msgspec.Struct, omit_defaults=True):
    """The runs of a table without their samples."""

    experiment: str
    scale: str
    runs: list[Run]
    columns: list[str] = []
    """As `row_table` takes them."""
    older: bool = False
    """Set by scripts/readme_figures.py: `OLDER` stands in the table."""


def summary(experiment: str, scale: str, runs: Sequence[Run], columns: Sequence[str] = ()) -> str:
    """A `Summary` as JSON, a run per line."""
    head = {"experiment": experiment, "scale": scale} | ({"columns": [*columns]} if columns else {})
    text = ",\n".join(json.dumps(plain(run), allow_nan=False) for run in runs)
    return f'{json.dumps(head)[:-1]}, "runs": [\n{text}\n]}}\n'


def stored_table(text: str | bytes) -> Table:
    """The paper's table, or for an experiment of no paper the table of its runs.
    Raises SkipbenchError for a `text` that is not of the form that `summary` returns.
    """
    try:
        stored = msgspec.convert(strict_json(text), Summary)
    except (ValueError, RecursionError) as error:
        how = "write it with python -m skipbench table NAME"
        raise SkipbenchError(f"no summary of a table ({error}); {how}") from error
    name, scale, runs = stored.experiment, stored.scale, stored.runs
    paper, of = paper_of(name) or ("", "")
    if of.startswith("table"):
        table = paper_table(paper, of, runs, scale)
    else:
        table = row_table(runs, stored.columns, f"Experiment {name}", name=f"{name}-{scale}")
    return replace(table, cautions=(OLDER, *table.cautions)) if stored.older else table


def read_table(path: Path) -> Table:
    """`stored_table` of a file. Raises SkipbenchError if it cannot be read or holds no summary."""
    with readable(path):
        return stored_table(read_bytes(path, MOST_SAMPLES) or b"")


class _Runs(msgspec.Struct):
    runs: list[Published]


def would_lose(path: Path, text: str) -> str | None:
    """Says how many measured runs of the stored table or figure `path` the new `text` lacks;
    `None` where it lacks none, or the file cannot be read.
    """
    try:
        before = _measured(read_bytes(path, MOST_SAMPLES) or b"")
    except (OSError, msgspec.MsgspecError, RecursionError, SkipbenchError):
        return None
    lost = (before - _measured(text)).total()
    said = (
        f"{path} is kept: the measured values of {lost} of its {before.total()} runs would be lost"
    )
    return f"{said}; write elsewhere with results=FOLDER, or over it with --force" if lost else None


def _measured(text: str | bytes) -> Counter[str]:
    # several may be of the same, as the points of a sweep
    return Counter(
        json.dumps([run.model, run.method, run.dataset, run.keys], sort_keys=True)
        for run in msgspec.json.decode(text, type=_Runs).runs
        if run.metrics is not None
    )
