"""Tables made from a summary of the records, which is stored beside them and can be read back."""

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.published import paper_of
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table
from skipbench.report.tables.runs import run_table
from skipbench.runs.reading import MOST_SAMPLES, printable, read_bytes, strict_json
from skipbench.runs.run import Run, plain


class Summary(msgspec.Struct, omit_defaults=True):
    """The runs of a table without their samples; `columns` as `run_table` takes them."""

    experiment: str
    scale: str
    runs: list[Run]
    columns: list[str] = []


def summary(experiment: str, scale: str, runs: Sequence[Run], columns: Sequence[str] = ()) -> str:
    """The runs of a table without their samples, as JSON, one per line; `columns` as `run_table`
    takes them.
    """
    text = ",\n".join(json.dumps(plain(run), allow_nan=False) for run in runs)
    more = f'"columns": {json.dumps(list(columns))}, ' if columns else ""
    return (
        f'{{"experiment": {json.dumps(experiment)}, "scale": {json.dumps(scale)}, {more}"runs": '
        f"[\n{text}\n]}}\n"
    )


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
    name, paper = stored.experiment, paper_of(stored.experiment)
    if paper and paper[1].startswith("table"):
        return paper_table(*paper, stored.runs, stored.scale)
    return run_table(
        f"Experiment {name}", stored.runs, name=f"{name}-{stored.scale}", columns=stored.columns
    )


def read_table(path: Path) -> Table:
    """`stored_table` of a file.

    Raises:
        SkipbenchError: it cannot be read, or holds no summary.
    """
    try:
        text = (read_bytes(path, MOST_SAMPLES) or b"").decode()
    except (OSError, UnicodeDecodeError) as error:
        raise SkipbenchError(f"{path} cannot be read: {error}") from error
    try:
        return stored_table(text)
    except SkipbenchError as error:
        raise SkipbenchError(f"{path}: {error}") from error
