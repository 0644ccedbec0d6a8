"""An experiment's table in every format, made from a summary of its records; the summary is kept
beside it and can be read back.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.formats import csv, html, latex, markdown
from skipbench.report.papertable import PaperTable, paper_table
from skipbench.report.published import paper_of
from skipbench.report.table import csv_table, html_table, markdown_table
from skipbench.runs.reading import printable, strict_json
from skipbench.runs.shapes import Metrics

Run = Mapping[str, Any]
_ABOUT = ("id", "model", "method", "dataset", "keys", "stands_for", "metrics", "reason", "drafted")
# What tables say of a run's origin: no name of a machine, a folder or a person, so that a summary
# can be published.
_ORIGIN = ("engine", "device", "cpu", "dtype", "torch", "transformers", "commit", "dirty", "date")


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


class _Summary(TypedDict):
    experiment: str
    scale: str
    runs: list[_Shown]


def summary(experiment: str, scale: str, runs: Sequence[Run]) -> str:
    """What the tables of `experiment` are made of, as JSON: the runs without their samples, one a
    line.
    """
    lines = [
        {k: run.get(k) for k in _ABOUT}
        | {"provenance": {k: v for k, v in run["provenance"].items() if k in _ORIGIN}}
        for run in runs
    ]
    told = ",\n".join(json.dumps(line, allow_nan=False) for line in lines)
    return (
        f'{{"experiment": {json.dumps(experiment)}, "scale": {json.dumps(scale)}, "runs": '
        f"[\n{told}\n]}}\n"
    )


def texts(written: str) -> dict[str, str]:
    """Suffix to text: the paper's table as `md`, `tex`, `csv` and `html`, a table of no paper as
    `md` and `csv`.

    Args:
        written: what `summary` returned.

    Raises:
        SkipbenchError: it is something else.
    """
    name, runs, made = _read(written)
    if made is None:
        return {"md": markdown_table(f"Experiment {name}", runs), "csv": csv_table(runs)}
    return {"md": markdown(made), "tex": latex(made), "csv": csv(made), "html": html(made)}


def html_section(written: str) -> str:
    """The table as HTML for a page with its own style, also a table of no paper; arguments and
    errors as for `texts`.
    """
    name, runs, made = _read(written)
    return html_table(f"Experiment {name}", runs) if made is None else html(made, style="")


def _read(written: str) -> tuple[str, list[dict[str, Any]], PaperTable | None]:
    """The name of the experiment, its runs, and the paper's table where it has one."""
    try:
        found = strict_json(written)
        msgspec.convert(found, _Summary)
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"no summary of a table ({printable(str(error))}); write it with python -m "
            "skipbench table NAME"
        ) from error
    name, runs = found["experiment"], found["runs"]
    own = paper_of(name)
    is_table = own is not None and own[1].startswith("table")
    return name, runs, paper_table(*own, runs, found["scale"]) if own and is_table else None


def read_texts(path: Path) -> dict[str, str]:
    """`texts` of a file.

    Raises:
        SkipbenchError: it cannot be read, or holds no summary.
    """
    try:
        written = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise SkipbenchError(f"{path} cannot be read: {error}") from error
    try:
        return texts(written)
    except SkipbenchError as error:
        raise SkipbenchError(f"{path}: {error}") from error
