"""From the folders of runs to what the page shows of them. Nothing but records is read."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from skipbench.errors import SkipbenchError
from skipbench.report.columns import MISSING, exceptions, main_cells, missing_reasons, waits_cells
from skipbench.report.page.course import courses, skip_sets
from skipbench.report.page.pieces import letters_of, pieces_of, tokenizer_of
from skipbench.runs.completions import read_completions
from skipbench.runs.reading import printable, run_folders, value_at
from skipbench.runs.record import SOURCES, Sample
from skipbench.runs.store import load_run, read_samples

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
    tokenizers = functools.cache(tokenizer_of)
    return [one_run(folder, tokenizers) for folder in run_folders(results)]


def one_run(folder: Path, tokenizers: Any = tokenizer_of) -> Found:
    """What the page shows of one run; a folder that cannot be read is a row that says so."""
    try:
        state = load_run(folder)
        samples = read_samples(folder / "samples.jsonl")
        texts = {c.index: c for c in read_completions(folder / "completions.jsonl")}
        config, origin = state["config"] or {}, state["provenance"] or {}
        metrics = state["metrics"] or {}
        names = {
            name: str(value_at(config, name, "name") or MISSING) for name in (*NAMES, "engine")
        }
        shown = [_text(s, texts.get(s.index), config, tokenizers) for s in samples[:MOST_TEXTS]]
        detail = {
            "metrics": metrics,
            "status": state["status"],
            "config": config,
            "provenance": origin,
            "courses": courses(samples),
            "skip": skip_sets(samples, origin.get("layers")),
            "samples": len(samples),
            "texts": shown,
            "sources": _sources(shown),
        }
        cells = names | {
            "point": str(origin.get("label") or ""),
            "engine": str(origin.get("engine") or names["engine"]),
            **{k: v for k, v in main_cells(metrics).items() if k in MEASURED},
            **{k: "" if v == MISSING else v for k, v in waits_cells(metrics, MEDIAN).items()},
            "device": str(origin.get("device") or value_at(config, "model", "device") or MISSING),
            "commit": str(origin.get("commit") or MISSING)[:9]
            + ("+" if origin.get("dirty") else ""),
            "date": str(origin.get("started") or MISSING)[:10],
            "note": _note(state),
        }
    except (
        SkipbenchError,
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        yaml.YAMLError,
    ) as error:
        return {
            "id": printable(folder.name),
            "cells": dict.fromkeys(COLUMNS, MISSING)
            | dict.fromkeys(OPTIONAL, "")
            | {"note": f"cannot be read: {error}"},
            "sort": {},
            "detail": {"unreadable": printable(f"{folder.name}: {error}")},
        }
    return {"id": folder.name, "cells": cells, "sort": _sort_values(metrics), "detail": detail}


def _text(sample: Sample, completion: Any, config: Found, tokenizers: Any) -> Found:
    """One sample's prompt and coloured output."""
    tokenizer = tokenizers(value_at(config, "model", "path"))
    text, letters = completion.method if completion else None, letters_of(sample.trace)
    pieces, how = pieces_of(sample.method, text, tokenizer, letters)
    return {
        "id": sample.id,
        "prompt": completion.prompt if completion else None,
        "pieces": pieces,
        "how": how,
        "lossless": sample.lossless,
        "tokens": len(sample.method.tokens),
        "rounds": len(sample.method.rounds),
    }


def _sources(texts: Sequence[Found]) -> dict[str, str]:
    """Letter and name of the sources of the accepted tokens; empty where no text says its own."""
    found = {source for text in texts for *_, source in text["pieces"]}
    return {letter: name for letter, name in SOURCES.items() if letter in found}


def _note(state: Found) -> str:
    """Why there are no numbers, or what is missing of them."""
    if state["metrics"]:
        reasons = missing_reasons(state["metrics"])
        mixed = value_at(state, "provenance", "mixed")
        return "; ".join(
            [
                *([f"mixed: {mixed}"] if mixed else []),
                *exceptions(state["metrics"]),
                *(v for k, v in reasons.items() if k != "roofline"),
            ]
        )
    status = state["status"] or {"state": "not finished"}
    return ": ".join(filter(None, (str(status.get("state")), status.get("error"))))


def _sort_values(metrics: Found) -> dict[str, float]:
    paths = {
        "M": ("M",),
        "alpha": ("alpha",),
        "tau": ("tau",),
        "TPT": ("tpt",),
        "lossless": ("lossless", "identical"),
    }
    more = {"E(Spd)": ("expected_speedup", "measured_cost"), "speedup": ("speedup", "paired")}
    found = {name: value_at(metrics, *path) for name, path in (paths | more).items()}
    return {name: value for name, value in found.items() if isinstance(value, int | float)}


def about(runs: Sequence[Found]) -> str | None:
    """What a page is about, in a line: how many runs of which models, methods and datasets, where
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
