"""Tables made from a summary of the records, which is stored beside them and can be read back."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.published import paper_of
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table
from skipbench.report.tables.runs import run_table
from skipbench.runs.reading import MOST_SAMPLES, printable, read_bytes, strict_json
from skipbench.runs.shapes import Metrics

Run = Mapping[str, Any]
_ABOUT = ("id", "model", "method", "dataset", "keys", "stands_for", "metrics", "reason", "drafted")
# of a sweep's cells, of an experiment that ranks its cells, and of a paper's
_OPTIONAL = ("label", "rank", "paper_samples", "noise", "group")
# The fields of a run's origin: no name of a machine, a folder or a person, so that a summary can be
# published.
_PUBLISHED = (
    *("engine", "device", "cpu", "dtype", "sparsity", "calibration"),
    *("torch", "transformers", "commit", "dirty", "date"),
    *("weights_sha256", "method_sha256", "package_sha256", "mixed"),
)


class _Shown(TypedDict):
    """A run in a summary, as far as tables rely on it."""

    model: str | None
    method: str | None
    dataset: str | None
    keys: dict[str, Any]
    metrics: Metrics | None
    reason: str | None
    provenance: dict[str, Any]
    drafted: NotRequired[str | None]
    label: NotRequired[str]
    rank: NotRequired[int]
    noise: NotRequired[bool]
    group: NotRequired[dict[str, str]]
    paper_samples: NotRequired[int | str]


class _Summary(TypedDict):
    experiment: str
    scale: str
    columns: NotRequired[list[str]]
    runs: list[_Shown]


def summary(experiment: str, scale: str, runs: Sequence[Run], columns: Sequence[str] = ()) -> str:
    """The runs of a table without their samples, as JSON, one per line; `columns` as `run_table`
    takes them.
    """
    lines = [
        {k: run.get(k) for k in _ABOUT}
        | {k: run[k] for k in _OPTIONAL if run.get(k) is not None}
        | {"provenance": {k: v for k, v in run["provenance"].items() if k in _PUBLISHED}}
        for run in runs
    ]
    text = ",\n".join(json.dumps(line, allow_nan=False) for line in lines)
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
        stored = strict_json(text)
        msgspec.convert(stored, _Summary)
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"no summary of a table ({printable(str(error))}); write it with python -m "
            "skipbench table NAME"
        ) from error
    name, runs = stored["experiment"], stored["runs"]
    own = paper_of(name)
    if own and own[1].startswith("table"):
        return paper_table(*own, runs, stored["scale"])
    title, id = f"Experiment {name}", f"{name}-{stored['scale']}"
    return run_table(title, runs, name=id, columns=stored.get("columns", ()))


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
