"""The index of a results folder, as parquet: one row per run, one row per sample. Made from the
files alone, and made again at will.

`index/runs.parquet` names the file of samples that belongs to it, so that a reader never sees
halves of two indices.
"""

import gc
import json
import multiprocessing
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from skipbench.errors import SkipbenchError
from skipbench.runs.files import held, writing
from skipbench.runs.reading import printable, run_folders, value_at
from skipbench.runs.rows import (
    ALWAYS,
    COLUMNS,
    ORIGIN,
    SETTINGS,
    TEXTS,
    Rows,
    rows_of,
    stamp,
)

VERSION = b"1"
_WHOLE = ("torch", "state", "error", "settings", "metrics", "provenance")
GROUP = 50_000
"""Samples that are held in memory before they are written."""
SAMPLES = pa.schema(
    [("run", pa.string()), *((n, pa.type_for_alias(k)) for n, k in COLUMNS.items())]
)


@dataclass(frozen=True)
class Built:
    """What a build did: numbers of runs, and what could not be read."""

    runs: int
    samples: int
    read: int
    kept: int
    unreadable: list[str]


def build(
    results: Path,
    workers: int = 1,
    fresh: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Built:
    """Brings the index up to date: reads the runs whose files changed, keeps the rows of the
    others, drops what is gone.

    Args:
        workers: processes that read; more than one only from a program whose main module may be
            imported.
        fresh: reads everything.
        progress: told how many of how many runs are read.

    Raises:
        SkipbenchError: the folder has no runs or is not writable, or another process is building
            the index.
    """
    folders = {printable(f.name): f for f in run_folders(results)}
    if not folders:
        raise SkipbenchError(f"{results} has no runs; give a results folder with results=FOLDER")
    with held(results / "index"), writing(results / "index"):
        before = None if fresh else _before(results)
        kept = (
            set()
            if before is None
            else {r for r, s in _stamps(before).items() if r in folders and stamp(folders[r]) == s}
        )
        todo = [folder for name, folder in folders.items() if name not in kept]
        if before is not None and not todo and len(kept) == len(before):
            return _built(before, 0)
        name = f"samples-{secrets.token_hex(4)}.parquet"
        lines = []
        with pq.ParquetWriter(results / "index" / name, SAMPLES, compression="zstd") as writer:
            if before is not None and kept:
                _copy(results / "index" / before.attrs["samples"], writer, kept)
            for number, rows in enumerate(_batched(_read(todo, workers), writer), 1):
                lines.append(rows)
                if progress is not None:
                    progress(number, len(todo))
        parts = [pd.DataFrame(lines)] if lines else []
        if before is not None and kept:
            parts.insert(0, before[before.run.isin(kept)])
        runs = _typed(pd.concat(parts, ignore_index=True).sort_values("run", ignore_index=True))
        _write(results / "index", runs, name)
        return _built(runs, len(todo))


def read_runs(results: Path) -> pd.DataFrame:
    """One row per run, from the index as it is. `settings`, `metrics` and `provenance` hold the
    whole files as JSON.

    Raises:
        SkipbenchError: there is no index; `build` makes one.
    """
    found = _before(results)
    if found is None:
        raise SkipbenchError(
            f"{results} has no index; make it with python -m skipbench index results={results}"
        )
    return found


def read_sample_rows(
    results: Path, columns: Sequence[str] | None = None, runs: Sequence[str] | None = None
) -> pd.DataFrame:
    """One row per sample: of `runs` or of all, all columns or `columns`; `run` is a category.

    Raises:
        SkipbenchError: there is no index.
    """
    chosen = None if runs is None else [("run", "in", list(runs))]
    for attempt in (1, 2):
        path = results / "index" / str(read_runs(results).attrs["samples"])
        try:
            table = pq.read_table(path, columns=columns, filters=chosen, read_dictionary=["run"])
            frame: pd.DataFrame = table.to_pandas()
            return frame
        except FileNotFoundError:  # the index was made anew in between
            if attempt == 2:
                raise SkipbenchError(
                    f"{path} is missing; make the index again, with --fresh"
                ) from None
    raise AssertionError


def setting(runs: pd.DataFrame, path: str) -> "pd.Series[Any]":
    """A setting of each run by its path, such as `method.stop.max_steps`; None without it."""

    def of(text: Any) -> Any:
        return value_at(json.loads(text), *path.split(".")) if isinstance(text, str) else None

    return runs["settings"].map(of)


def rows_for_table(runs: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of `read_runs` as `run_table` of report/tables takes them."""
    found = []
    for row in runs.to_dict("records"):
        metrics = json.loads(row["metrics"]) if isinstance(row["metrics"], str) else None
        origin = json.loads(row["provenance"]) if isinstance(row["provenance"], str) else {}
        more = {
            "engine": row["engine"],
            "date": str(origin.get("started", ""))[:10],
            "torch": row["torch"],
        }
        more["transformers"] = origin.get("versions", {}).get("transformers")
        reason = (
            None
            if metrics
            else ": ".join(str(row[k]) for k in ("state", "error") if isinstance(row[k], str))
        )
        names = {k: row[k] for k in ("model", "method", "dataset")}
        names["label"] = origin.get("label")
        found.append(names | {"metrics": metrics, "reason": reason, "provenance": origin | more})
    return found


def _before(results: Path) -> pd.DataFrame | None:
    """The runs of the index that is there; None if there is none of this version."""
    path = results / "index" / "runs.parquet"
    if path.is_symlink():
        return None
    try:
        table = pq.read_table(path)
    except (FileNotFoundError, pa.ArrowInvalid):  # it can be made again, whatever it is
        return None
    about = table.schema.metadata or {}
    if about.get(b"skipbench") != VERSION:
        return None
    frame: pd.DataFrame = table.to_pandas()
    frame.attrs["samples"] = Path(about[b"samples"].decode()).name
    return frame if (results / "index" / frame.attrs["samples"]).is_file() else None


def _typed(runs: pd.DataFrame) -> pd.DataFrame:
    """A column without a value has the type that it would have with one."""
    numbers = [*(name for name in SETTINGS if name not in TEXTS), *ALWAYS]
    wanted = {name: "float64" for name in numbers} | dict.fromkeys(
        (*TEXTS, *ORIGIN, *_WHOLE), "str"
    )
    wanted["dirty"] = "boolean"
    return runs.astype({name: kind for name, kind in wanted.items() if name in runs})


def _stamps(runs: pd.DataFrame) -> dict[str, str]:
    return dict(zip(runs["run"], runs["stamp"], strict=True))


def _built(runs: pd.DataFrame, read: int) -> Built:
    bad = runs[runs.state == "unreadable"]
    return Built(len(runs), int(runs.samples.sum()), read, len(runs) - read, list(bad.error))


def _read(folders: list[Path], workers: int) -> Iterator[Rows]:
    if workers < 2 or len(folders) < 2:
        yield from map(rows_of, folders)
        return
    # Arrow has threads, and a fork of a process with threads may hang. Records have no cycles to
    # collect.
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), gc.disable) as pool:
        yield from pool.map(rows_of, folders, chunksize=max(1, min(16, len(folders) // workers)))


def _batched(found: Iterator[Rows], writer: Any) -> Iterator[dict[str, Any]]:
    """Writes the samples in groups of about `GROUP` and gives the runs on."""
    waiting: list[Any] = []
    for rows in found:
        size = len(rows.samples["index"])
        waiting.append(pa.table({"run": [rows.run["run"]] * size, **rows.samples}, schema=SAMPLES))
        if sum(map(len, waiting)) >= GROUP:
            writer.write_table(pa.concat_tables(waiting))
            waiting.clear()
        yield rows.run
    if waiting:
        writer.write_table(pa.concat_tables(waiting))


def _copy(path: Path, writer: Any, kept: set[str]) -> None:
    with pq.ParquetFile(path) as old:
        for batch in old.iter_batches(batch_size=GROUP):
            table = pa.Table.from_batches([batch])
            writer.write_table(table.filter(pa.compute.is_in(table["run"], pa.array(sorted(kept)))))


def _write(folder: Path, runs: pd.DataFrame, samples: str) -> None:
    table = pa.Table.from_pandas(runs, preserve_index=False)
    named = (table.schema.metadata or {}) | {b"skipbench": VERSION, b"samples": samples.encode()}
    new = folder / f".runs-{samples}"
    pq.write_table(table.replace_schema_metadata(named), new, compression="zstd")
    os.replace(new, folder / "runs.parquet")
    # of earlier indices, and of builds that were stopped
    for path in folder.glob("*samples-*.parquet"):
        if path.name != samples:
            path.unlink(missing_ok=True)
