"""The contents of the page, from the folders of runs. Nothing but records is read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec import to_builtins

from skipbench.errors import SkipbenchError
from skipbench.report.columns import MISSING, exceptions, main_cells, missing_reasons, waits_cells
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
Found = dict[str, Any]


def all_runs(results: Path) -> list[Found]:
    """Every folder under `results/runs`: `id`, `cells` (text), `sort` (numbers) and `detail`."""
    return [one_run(folder) for folder in run_folders(results)]


def one_run(folder: Path) -> Found:
    """One run on the page; a folder that cannot be read is a row with the reason."""
    cells = dict.fromkeys(COLUMNS, MISSING) | dict.fromkeys(OPTIONAL, "")
    try:
        run = read_run(folder)
        samples = run.samples
        shown = [_text(s, run.completions.get(s.index)) for s in samples[:MOST_TEXTS]]
    except (SkipbenchError, OSError) as error:
        cells["note"] = f"cannot be read: {error}"
        detail: Found = {"unreadable": printable(f"{folder.name}: {error}")}
        return {"id": printable(folder.name), "cells": cells, "sort": {}, "detail": detail}
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
    letters = {source for text in shown for *_, source in text["pieces"]}
    detail = {
        "metrics": to_builtins(run.metrics) if run.metrics else {},
        "status": to_builtins(run.status),
        "config": run.settings,
        "provenance": to_builtins(run.provenance),
        "courses": courses(samples),
        "skip": skip_sets(samples, run.provenance.layers),
        "samples": len(samples),
        "texts": shown,
        "sources": {k: v for k, v in SOURCES.items() if k in letters},
    }
    sort = {
        "M": metrics.M,
        "alpha": metrics.alpha,
        "tau": metrics.tau,
        "TPT": metrics.tpt,
        "lossless": metrics.lossless.identical if metrics.samples else None,
        "E(Spd)": metrics.expected_speedup.measured_cost,
        "speedup": metrics.speedup.paired,
    }
    sort = {name: value for name, value in sort.items() if value is not None}
    return {"id": folder.name, "cells": cells, "sort": sort, "detail": detail}


def _text(sample: Sample, completion: Completion | None) -> Found:
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


def unreadable(runs: Sequence[Found]) -> list[str]:
    """Name and error of each run that cannot be read."""
    return [run["detail"]["unreadable"] for run in runs if "unreadable" in run["detail"]]


def about(runs: Sequence[Found]) -> str | None:
    """The line on top of the page: how many runs of which models, methods and datasets, where and
    when; `None` without a run that can be read.
    """
    sound = [run["cells"] for run in runs if "unreadable" not in run["detail"]]
    if not sound:
        return None
    kinds = {
        name: list(dict.fromkeys(cells[name] for cells in sound if cells[name] != MISSING))
        for name in (*NAMES, "device", "date")
    }
    models, methods, datasets = (_some(kinds[name], f"{name}s") for name in NAMES)
    text = f"{len(sound)} run{'s' if len(sound) > 1 else ''} of {models}: {methods} on {datasets}"
    if kinds["device"]:
        text += f", measured on {', '.join(kinds['device'])}"
    if dates := sorted(kinds["date"]):
        text += f", {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"
    return f"{text}."


def _some(names: Sequence[str], kind: str) -> str:
    """Up to four names, or how many there are."""
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{len(names)} {kind} ({shown}, ...)"


def as_script(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can close the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)
    escapes = {ord(c): f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"}
    return text.translate(escapes)
