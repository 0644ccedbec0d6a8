"""One run as rows of the index: one of the run, columns of its samples. Reads each file once, and imports nothing large."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import printable
from skipbench.runs.record import Arm, Sample
from skipbench.runs.store import load_run, read_samples

FILES = ("config.yaml", "provenance.json", "samples.jsonl", "metrics.json", "status.json")
SETTINGS = {  # a column of the run, and where its configuration has it
    "model": ("model", "name"),
    "method": ("method", "name"),
    "dataset": ("dataset", "name"),
    "engine": ("engine", "name"),
    "dtype": ("model", "dtype"),
    "temperature": ("decoding", "temperature"),
    "top_p": ("decoding", "top_p"),
    "max_new_tokens": ("dataset", "max_new_tokens"),
    "seed": ("seed",),
    "limit": ("limit",),
}
TEXTS = ("model", "method", "dataset", "engine", "dtype")
ORIGIN = ("commit", "device", "host", "started")
COUNTS = ("steps", "nodes", "accepted", "chain", "emitted")
PHASES = ("prefill", "draft", "verify", "adapt", "other")


class Rows(NamedTuple):
    """Of one folder: its row, and by name the columns of its samples, all of one length."""

    run: dict[str, Any]
    samples: dict[str, list[Any]]


def stamp(folder: Path) -> str:
    """What changes whenever a file that the index reads is written: inode, size and time of each, links not followed."""

    def of(name: str) -> str:
        try:
            found = os.lstat(folder / name)
        except FileNotFoundError:
            return "-"
        return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}"

    return " ".join([f"{os.lstat(folder).st_mode:o}", *map(of, FILES)])


def rows_of(folder: Path) -> Rows:
    """Reads a run. One that cannot be read is a row whose `state` is unreadable and whose `error` names the file."""
    run: dict[str, Any] = {
        "run": printable(folder.name),
        "stamp": stamp(folder),
    }  # before the files: they may change now
    try:
        state = load_run(folder)
        samples = read_samples(folder / "samples.jsonl")
    except (SkipbenchError, OSError) as error:
        return Rows(run | {"state": "unreadable", "error": printable(str(error)), "samples": 0}, columns_of([]))
    config, origin, status = (state[name] or {} for name in ("config", "provenance", "status"))
    run |= {name: _plain(_at(config, path), name in TEXTS) for name, path in SETTINGS.items()}
    run |= {name: _plain(origin.get(name), True) for name in ORIGIN}
    run |= {"dirty": origin.get("dirty"), "torch": _plain(_at(origin, ("versions", "torch")), True)}
    run |= {
        "state": status.get("state", "missing"),
        "error": _plain(status.get("error"), True),
        "samples": len(samples),
    }
    whole = {"settings": config, "metrics": state["metrics"], "provenance": origin}
    run |= {name: None if value is None else json.dumps(value, default=str) for name, value in whole.items()}
    return Rows(run | _numbers(state["metrics"] or {}), columns_of(samples))


def columns_of(samples: list[Sample]) -> dict[str, list[Any]]:
    """Counts and seconds of each sample: the method's under their own names, vanilla's with `vanilla_` before them."""
    found: dict[str, list[Any]] = {
        "index": [s.index for s in samples],
        "id": [s.id for s in samples],
        "prompt_tokens": [s.prompt_tokens for s in samples],
        "lossless": [s.lossless for s in samples],
        "diverged_at": [s.divergence.position if s.divergence else None for s in samples],
        "logit_gap": [float(s.divergence.logit_gap) if s.divergence else None for s in samples],
        "skip": [s.skip for s in samples],
        "score": [json.dumps(s.score) if s.score else None for s in samples],
        "groups": [json.dumps(s.groups) if s.groups else None for s in samples],
    }
    return found | _arm("", [s.method for s in samples]) | _arm("vanilla_", [s.vanilla for s in samples])


def _arm(prefix: str, arms: list[Arm]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {
        "tokens": [len(a.tokens) for a in arms],
        "rounds": [len(a.rounds) for a in arms],
        "finish": [a.finish for a in arms],
        "looped": [a.looped for a in arms],
    }
    sums = [[sum(column) for column in zip(*a.rounds, strict=True)] or [0] * len(COUNTS) for a in arms]
    found |= {name: [of[i] for of in sums] for i, name in enumerate(COUNTS)}
    found |= {phase: [getattr(a.seconds, phase) for a in arms] for phase in PHASES}
    return {prefix + name: column for name, column in found.items()}


def _at(tree: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    found: Any = tree
    for name in path:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found


def _plain(value: Any, text: bool) -> Any:
    """A value of the column's one type, None where the record has another."""
    if text:
        return value if value is None or isinstance(value, str) else str(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(tree: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Every number in the metrics by its path, such as `speedup.paired`; those of groups stay in `metrics`."""
    found: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and name != "by":
            found |= _numbers(value, f"{prefix}{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool) and prefix + name != "samples":
            found[prefix + name] = float(value)
    ends = _at(tree, ("speedup", "ci95")) if not prefix else None
    return found | ({"speedup.low": float(ends[0]), "speedup.high": float(ends[1])} if ends else {})
