"""From the folders of runs to what the page shows of them. Nothing but records is read."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.columns import MISSING, exceptions, main_cells, missing_reasons, waits_cells
from skipbench.report.page.course import courses, skip_sets
from skipbench.report.page.pieces import letters_of, pieces_of
from skipbench.runs.measures import Metrics
from skipbench.runs.reading import printable, run_folders
from skipbench.runs.record import SOURCES, Completion, Sample
from skipbench.runs.run import Run, read_run

MOST_TEXTS = 3
MOST_NAMES = 4  # of the models, methods and datasets in the line on top
NAMES = ("model", "method", "dataset")
MEASURED = ("M", "alpha", "tau", "TPT", "E(Spd)", "speedup", "lossless")
WAITS = ("TTFT", "TPOT", "J/token")
MEDIAN = (50,)  # of the percentiles of waits; the others are among the run's metrics
COLUMNS = (
    *("model", "method", "speedup", "dataset", "point"),
    *(name for name in MEASURED if name != "speedup"),
    *WAITS,
    *("engine", "device", "commit", "date", "note"),
)
"""The first two stay in sight when a narrow screen is scrolled; what is wanted most comes next."""
OPTIONAL = ("point", *WAITS)
"""Columns that are left out where no run has them."""
Found = dict[str, Any]


def all_runs(results: Path) -> list[Found]:
    """Every folder under `results/runs`, by name: `id`, `cells` (column to text), `sort` (column to
    number) and `detail`.
    """
    return [one_run(folder) for folder in run_folders(results)]


def one_run(folder: Path) -> Found:
    """One run on the page; a folder that cannot be read is a row that says so."""
    try:
        run = read_run(folder)
        samples = run.samples
        shown = [_text(s, run.completions.get(s.index)) for s in samples[:MOST_TEXTS]]
    except (SkipbenchError, OSError) as error:
        return {
            "id": printable(folder.name),
            "cells": dict.fromkeys(COLUMNS, MISSING)
            | dict.fromkeys(OPTIONAL, "")
            | {"note": f"cannot be read: {error}"},
            "sort": {},
            "detail": {"unreadable": printable(f"{folder.name}: {error}")},
        }
    metrics, origin = run.metrics or Metrics(), run.origin
    waits = waits_cells(metrics, MEDIAN)
    cells = {
        "model": run.model or MISSING,
        "method": run.method or MISSING,
        "dataset": run.dataset or MISSING,
        "point": run.label or "",
        "engine": origin.engine or MISSING,
        **{k: v for k, v in main_cells(metrics).items() if k in MEASURED},
        **{k: "" if v == MISSING else v for k, v in waits.items()},
        "device": origin.device or MISSING,
        "commit": (origin.commit or MISSING)[:9] + ("+" if origin.dirty else ""),
        "date": origin.date or MISSING,
        "note": _note(run),
    }
    letters = {source for text in shown for *_, source in text["pieces"]}
    detail = {
        "metrics": msgspec.to_builtins(run.metrics) if run.metrics else {},
        "status": msgspec.to_builtins(run.status),
        "config": run.settings,
        "provenance": msgspec.to_builtins(run.provenance),
        "courses": courses(samples),
        "skip": skip_sets(samples, run.provenance.layers),
        "samples": len(samples),
        "texts": shown,
        "sources": {k: v for k, v in SOURCES.items() if k in letters},
    }
    return {"id": folder.name, "cells": cells, "sort": _sort_values(metrics), "detail": detail}


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
    """Why there are no numbers, or what is missing of them."""
    if run.metrics:
        reasons = missing_reasons(run.metrics)
        parts = [
            *([f"mixed: {run.origin.mixed}"] if run.origin.mixed else []),
            *exceptions(run.metrics),
            *(v for k, v in reasons.items() if k != "roofline"),
        ]
        return "; ".join(parts)
    if run.status.state == "missing":
        return "not finished"
    return ": ".join(filter(None, (run.status.state, run.status.error)))


def _sort_values(metrics: Metrics) -> dict[str, float]:
    values = {
        "M": metrics.M,
        "alpha": metrics.alpha,
        "tau": metrics.tau,
        "TPT": metrics.tpt,
        "lossless": metrics.lossless.identical if metrics.samples else None,
        "E(Spd)": metrics.expected_speedup.measured_cost,
        "speedup": metrics.speedup.paired,
    }
    return {name: value for name, value in values.items() if value is not None}


def unreadable(runs: Sequence[Found]) -> list[str]:
    """Name and error of each run that cannot be read."""
    return [run["detail"]["unreadable"] for run in runs if "unreadable" in run["detail"]]


def about(runs: Sequence[Found]) -> str | None:
    """The line on top of the page: how many runs of which models, methods and datasets, where
    and when; `None` without a run that can be read.
    """
    sound = [run["cells"] for run in runs if "unreadable" not in run["detail"]]
    if not sound:
        return None
    kinds = {
        name: list(dict.fromkeys(cells[name] for cells in sound if cells[name] != MISSING))
        for name in (*NAMES, "device", "date")
    }
    dates = sorted(kinds["date"])
    when = f", {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else ""
    return (
        f"{len(sound)} run{'s' if len(sound) > 1 else ''} of {_some(kinds['model'], 'models')}: "
        f"{_some(kinds['method'], 'methods')} on {_some(kinds['dataset'], 'datasets')}"
        f"{', measured on ' + ', '.join(kinds['device']) if kinds['device'] else ''}{when}."
    )


def _some(names: Sequence[str], kind: str) -> str:
    """Up to four names, or how many there are."""
    shown = ", ".join(names[:MOST_NAMES])
    return shown if len(names) <= MOST_NAMES else f"{len(names)} {kind} ({shown}, ...)"


def as_script(value: Any) -> str:
    """JSON that may stand inside a script element: no text in it can close the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True, default=str)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text
