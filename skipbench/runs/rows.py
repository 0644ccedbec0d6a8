"""One run as rows of the index: one of the run, columns of its samples.

Reads each file once, and imports nothing large.
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.json import encode

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import printable, value_at
from skipbench.runs.record import Arm, Sample
from skipbench.runs.store import each_sample, load_run

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
ALWAYS = ("M", "alpha", "tau", "tpt", "tokens_per_s", "tokens_per_s_vanilla", "speedup.paired")
"""Numbers that have a column even where no run is done yet."""
COUNTS = ("steps", "nodes", "accepted", "chain", "emitted")
PHASES = ("prefill", "draft", "verify", "adapt", "other")
ABOUT = {"index": "int64", "id": "string", "prompt_tokens": "int64", "lossless": "string"}
ABOUT |= {"diverged_at": "int64", "logit_gap": "double", "skip": "string"}
ABOUT |= {"score": "string", "groups": "string"}
ARM = {"tokens": "int64", "rounds": "int64", "finish": "string", "looped": "bool"}
ARM |= dict.fromkeys(COUNTS, "int64") | dict.fromkeys(PHASES, "double")
COLUMNS = ABOUT | ARM | {f"vanilla_{name}": kind for name, kind in ARM.items()}
"""Of a sample, and the type that Arrow has for each."""


class Rows(NamedTuple):
    """Of one folder: its row, and by name the columns of its samples, all of one length."""

    run: dict[str, Any]
    samples: dict[str, list[Any]]


def stamp(folder: Path) -> str:
    """What changes whenever a file that the index reads is written: inode, size and time of each,
    links not followed.
    """

    def of(name: str) -> str:
        try:
            found = os.lstat(folder / name)
        except FileNotFoundError:
            return "-"
        return f"{found.st_ino}.{found.st_size}.{found.st_mtime_ns}"

    return " ".join([f"{os.lstat(folder).st_mode:o}", *map(of, FILES)])


def rows_of(folder: Path) -> Rows:
    """Reads a run.

    One that cannot be read is a row whose `state` is unreadable and whose `error` names the file.
    """
    # The stamp before the files: they may change now.
    run: dict[str, Any] = {"run": printable(folder.name), "stamp": stamp(folder)}
    try:
        state = load_run(folder)
        columns = columns_of(each_sample(folder / "samples.jsonl"))
    except (SkipbenchError, OSError) as error:
        return Rows(
            run | {"state": "unreadable", "error": printable(str(error)), "samples": 0},
            columns_of([]),
        )
    config, origin, status = (state[name] or {} for name in ("config", "provenance", "status"))
    run |= {name: _plain(value_at(config, *path), name in TEXTS) for name, path in SETTINGS.items()}
    run |= {name: _plain(origin.get(name), True) for name in ORIGIN}
    torch = _plain(value_at(origin, "versions", "torch"), True)
    run |= {"dirty": origin.get("dirty"), "torch": torch}
    run |= {
        "state": status.get("state", "missing"),
        "error": _plain(status.get("error"), True),
        "samples": len(columns["index"]),
    }
    whole = {"settings": config, "metrics": state["metrics"], "provenance": origin}
    run |= {
        name: None if value is None else json.dumps(value, default=str)
        for name, value in whole.items()
    }
    return Rows(run | dict.fromkeys(ALWAYS) | _numbers(state["metrics"] or {}), columns)


def columns_of(samples: Iterable[Sample]) -> dict[str, list[Any]]:
    """Counts and seconds of each sample; vanilla's have `vanilla_` before their names."""
    rows = [(*_about(s), *_arm(s.method), *_arm(s.vanilla)) for s in samples]
    columns = zip(*rows, strict=True) if rows else ((),) * len(COLUMNS)
    return {name: list(column) for name, column in zip(COLUMNS, columns, strict=True)}


def _about(s: Sample) -> tuple[Any, ...]:
    at, gap = (s.divergence.position, s.divergence.logit_gap) if s.divergence else (None, None)
    score, groups = (encode(found).decode() if found else None for found in (s.score, s.groups))
    return s.index, s.id, s.prompt_tokens, s.lossless, at, gap, s.skip, score, groups


def _arm(arm: Arm) -> tuple[Any, ...]:
    sums = map(sum, zip(*arm.rounds, strict=True)) if arm.rounds else (0,) * len(COUNTS)
    s = arm.seconds
    times = s.prefill, s.draft, s.verify, s.adapt, s.other
    return len(arm.tokens), len(arm.rounds), arm.finish, arm.looped, *sums, *times


def _plain(value: Any, text: bool) -> Any:
    """A value of the column's one type, None where the record has another."""
    if text:
        return value if value is None or isinstance(value, str) else str(value)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _numbers(tree: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Every number in the metrics by its path, as `speedup.paired`; those of groups stay there."""
    found: dict[str, float] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping) and name != "by":
            found |= _numbers(value, f"{prefix}{name}.")
        elif (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and prefix + name != "samples"
        ):
            found[prefix + name] = float(value)
    ends = value_at(tree, "speedup", "ci95") if not prefix else None
    return found | ({"speedup.low": float(ends[0]), "speedup.high": float(ends[1])} if ends else {})
