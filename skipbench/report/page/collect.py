"""The contents of the page, from the folders of runs. Nothing but records is read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup
from msgspec import Struct, to_builtins

from skipbench.errors import SkipbenchError
from skipbench.report.columns import MISSING, exceptions, main_cells, missing_reasons, waits_cells
from skipbench.report.measured import VALUES
from skipbench.report.page.samples import courses, letters_of, pieces_of, skip_sets
from skipbench.runs.measures import Metrics
from skipbench.runs.reading import printable, run_folders
from skipbench.runs.record import SOURCES, Completion, Sample
from skipbench.runs.run import Run, read_run

MOST_TEXTS = 3
MOST_NAMES = 4  # of the models, methods and datasets in the line on top
NAMES = ("model", "method", "dataset")
MEASURED = ("M", "alpha", "tau", "TPT", "E(Spd)", "speedup", "lossless")
WAITS = ("TTFT", "TPOT", "J/token")
COLUMNS = (
    *("model", "method", "speedup", "dataset", "point"),
    *(name for name in MEASURED if name != "speedup"),
    *WAITS,
    *("engine", "device", "commit", "date", "note"),
)
"""The first two stay in sight when a narrow screen is scrolled; the next are wanted first."""
OPTIONAL = ("point", *WAITS)
"""Columns that are left out where no run has them."""


class Row(Struct):
    """A run: `cells` (text) and `sort` (numbers) by column; `error` of one that is not readable."""

    id: str
    cells: dict[str, str]
    sort: dict[str, float]
    detail: dict[str, object]
    error: str | None = None


def all_runs(results: Path) -> list[Row]:
    """Every folder under `results/runs`."""
    return [one_run(folder) for folder in run_folders(results)]


def one_run(folder: Path) -> Row:
    """One run on the page; a folder that cannot be read is a row with the reason."""
    cells = dict.fromkeys(COLUMNS, MISSING) | dict.fromkeys(OPTIONAL, "")
    try:
        run = read_run(folder)
        samples = run.samples
        texts = [_text(s, run.completions.get(s.index)) for s in samples[:MOST_TEXTS]]
    except (SkipbenchError, OSError) as error:
        cells |= {"note": f"cannot be read: {error}"}
        reason = printable(f"{folder.name}: {error}")
        return Row(printable(folder.name), cells, {}, {"unreadable": reason}, reason)
    metrics, origin = run.metrics or Metrics(), run.origin
    measured = main_cells(metrics) | waits_cells(metrics, (50,))  # others: in `metrics`
    given = {
        **{name: getattr(run, name) for name in NAMES},
        **{name: getattr(origin, name) for name in ("engine", "device", "date")},
        **{k: v for k, v in measured.items() if k in COLUMNS and v != MISSING},
        "point": run.label,
        "commit": (origin.commit or MISSING)[:9] + ("+" if origin.dirty else ""),
    }
    cells |= {column: text for column, text in given.items() if text} | {"note": _note(run)}
    letters = {source for text in texts for *_, source in text["pieces"]}
    detail = {
        "metrics": to_builtins(run.metrics) if run.metrics else {},
        "status": to_builtins(run.status),
        "config": run.settings,
        "provenance": to_builtins(run.provenance),
        "courses": courses(samples),
        "skip": skip_sets(samples, run.provenance.layers),
        "samples": len(samples),
        "texts": texts,
        "sources": {k: v for k, v in SOURCES.items() if k in letters},
    }
    numbers = {name: VALUES[name](metrics) for name in MEASURED if name in VALUES}
    numbers |= {
        "lossless": metrics.lossless.identical if metrics.samples else None,
        "E(Spd)": metrics.expected_speedup.measured_cost,
    }
    sort = {name: value for name, value in numbers.items() if value is not None}
    return Row(folder.name, cells, sort, detail)


def _text(sample: Sample, completion: Completion | None) -> dict[str, Any]:
    """One sample's prompt and coloured output."""
    text, chars = (completion.method, completion.token_chars) if completion else (None, [])
    pieces, how = pieces_of(sample.method, text, chars, letters_of(sample.trace))
    return {
        "id": sample.id,
        "prompt": completion.prompt if completion else None,
        "pieces": pieces,
        "how": how,
        "lossless": sample.lossless,
        "tokens": len(sample.method.tokens),
        "rounds": len(sample.method.rounds),
    }


def _note(run: Run) -> str:
    """Why there are no numbers, or which of them are missing."""
    if run.metrics:
        mixed = [f"mixed: {run.origin.mixed}"] if run.origin.mixed else []
        reasons = [v for k, v in missing_reasons(run.metrics).items() if k != "roofline"]
        return "; ".join([*mixed, *exceptions(run.metrics), *reasons])
    if run.status.state == "missing":
        return "not finished"
    return ": ".join(filter(None, (run.status.state, run.status.error)))


def about(runs: Sequence[Row]) -> str | None:
    """The line on top of the page: how many runs of which models, methods and datasets, where and
    when; `None` without a run that can be read.
    """
    sound = [run.cells for run in runs if not run.error]
    if not sound:
        return None

    def distinct(column: str) -> list[str]:
        return list(dict.fromkeys(c[column] for c in sound if c[column] != MISSING))

    def some(kind: str) -> str:
        shown = ", ".join((names := distinct(kind))[:MOST_NAMES])
        return shown if len(names) <= MOST_NAMES else f"{len(names)} {kind}s ({shown}, ...)"

    count = f"{len(sound)} run{'s' if len(sound) > 1 else ''}"
    text = f"{count} of {some('model')}: {some('method')} on {some('dataset')}"
    if devices := distinct("device"):
        text += f", measured on {', '.join(devices)}"
    if dates := distinct("date"):
        text += f", {' to '.join(dict.fromkeys((min(dates), max(dates))))}"
    return f"{text}."


def as_script(value: object) -> Markup:
    """JSON that may stand inside a script element: no text in it can close the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)
    escapes = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
    return Markup(text.translate(escapes))
