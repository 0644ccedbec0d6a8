"""A run's folder: written atomically, resumed by reading, held by one process at a time.

`config.yaml`, `provenance.json`, `samples.jsonl` and `completions.jsonl` (append only),
`metrics.json`, `status.json`.
"""

import contextlib
import hashlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import yaml

from skipbench.errors import SkipbenchError
from skipbench.runs.completions import Completion, cut_unfinished, dump_completion, read_completions
from skipbench.runs.files import (
    acquire,
    append_line,
    lines_of,
    not_writable,
    overwrite,
    sign,
    write_atomic,
)
from skipbench.runs.provenance import portable
from skipbench.runs.reading import MOST_SAMPLES, check_name, read_bytes, read_json, read_yaml
from skipbench.runs.record import Sample, dump, parse
from skipbench.runs.shapes import Metrics, Origin, Status, check_config

BEAT_S = 5.0
"""A sign of life is given after a sample, and not more often than this: it may be a round trip to a
file server.
"""
SEALED = (
    *("config.yaml", "provenance.json", "metrics.json"),
    *("samples.jsonl", "completions.jsonl", "scores.jsonl"),
)


def read_samples(path: Path, repair: bool = False) -> list[Sample]:
    """The records of a `samples.jsonl`, in the order written.

    A last line that is torn or unreadable was being written when the process died: it is left out,
    and with `repair` cut off. Not so where the run beside it is done: then it is damage, and
    nothing is left out or cut off.

    Raises:
        SkipbenchError: another line is unreadable, an index occurs twice, or `metrics.json` counts
            other samples.
    """
    return list(each_sample(path, repair))


def each_sample(path: Path, repair: bool = False) -> Iterator[Sample]:
    """`read_samples`, one at a time: many are read faster where none is kept."""
    status = read_json(path.parent / "status.json", Status) or {}
    done = status.get("state") == "done"
    repair = repair and not done
    lines = lines_of(path, repair)
    if not repair:
        _check_count(path, len(lines), done)
    seen: set[int] = set()
    for number, line in lines:
        try:
            sample = parse(line)
        except SkipbenchError as error:
            if number == len(lines) and not done and not _is_json(line):
                if repair:
                    os.truncate(path, sum(len(before) + 1 for _, before in lines[:-1]))
                return
            raise SkipbenchError(f"{path}, line {number}: {error}") from error
        if sample.index in seen:
            raise SkipbenchError(f"{path}, line {number}: samples [{sample.index}] occur twice")
        seen.add(sample.index)
        yield sample
    _check_digest(path, status)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that make up a run; `status.json` of a done one holds them."""
    found = {name: _digest(folder / name) for name in SEALED}
    return {name: digest for name, digest in found.items() if digest is not None}


def _digest(path: Path) -> str | None:
    data = read_bytes(path, MOST_SAMPLES)
    return None if data is None else hashlib.sha256(data).hexdigest()


def _check_digest(path: Path, status: Mapping[str, Any]) -> None:
    """Raises SkipbenchError for a file of a done run that is not what the run wrote."""
    wanted = (status.get("sha256") or {}).get(path.name)
    if wanted is not None and _digest(path) != wanted:
        raise SkipbenchError(
            f"{path} is not what its run wrote: status.json has another sha256 of it; put the file "
            "back from a copy, or move the folder away and run its command again"
        )


def _check_count(path: Path, lines: int, done: bool) -> None:
    """Compares the number of samples with that of `metrics.json`.

    Raises:
        SkipbenchError: samples are missing, or the run is done and has more of them.
    """
    counted = (read_json(path.parent / "metrics.json", Metrics) or {}).get("samples", lines)
    if lines < counted or (done and lines != counted):
        raise SkipbenchError(
            f"{path}, line {min(lines, counted) + 1}: {lines} whole lines, but metrics.json is of "
            f"{counted} samples; put the file back from a copy, or move the folder away and run "
            "its command again"
        )


def _is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except (json.JSONDecodeError, UnicodeDecodeError):
        return False
    except (ValueError, RecursionError):  # JSON, but not of any record
        return True
    return True


def _differences(path: Path, config: dict[str, Any]) -> list[str]:
    before = read_yaml(path) or {}
    return sorted(str(k) for k in {*before, *config} if before.get(k) != config.get(k))


class RunStore:
    """The folder of one run, open for writing.

    Raises:
        SkipbenchError: not writable, held by another process, or made with another configuration.
    """

    def __init__(self, folder: Path, config: dict[str, Any], provenance: dict[str, Any]) -> None:
        self.folder = folder
        self._beaten = 0.0
        self._lock = acquire(folder)
        try:
            self._settle(config, provenance)
        except OSError as error:
            self.close()
            raise not_writable(folder, error) from error
        except BaseException:
            self.close()
            raise

    def _settle(self, config: dict[str, Any], provenance: dict[str, Any]) -> None:
        sign(self._lock)
        path = self.folder / "config.yaml"
        text = yaml.safe_dump(portable(config), sort_keys=False)
        if path.exists():
            keys = _differences(path, yaml.safe_load(text))
            if keys:
                raise SkipbenchError(
                    f"{self.folder} holds a run with other settings ({', '.join(keys)}); use "
                    "another results folder"
                )
        else:
            write_atomic(path, text)
        if not (self.folder / "provenance.json").exists():
            write_atomic(self.folder / "provenance.json", json.dumps(provenance, indent=2) + "\n")
        # An append behind a torn line would be lost with it; damage elsewhere is for whoever reads.
        with contextlib.suppress(SkipbenchError):
            if not is_done(self.folder):
                cut_unfinished(self.folder / "completions.jsonl", {s.index for s in self.samples()})

    def samples(self) -> list[Sample]:
        """What is there already; cuts a torn last line off, unless the run is done."""
        return read_samples(self.folder / "samples.jsonl", repair=True)

    def completions(self) -> list[Completion]:
        """The texts of the samples that are there."""
        return read_completions(self.folder / "completions.jsonl")

    def append(self, sample: Sample, completion: Completion | None = None) -> None:
        """Writes a finished sample down.

        Its texts go first: what has no sample is cut off when the folder is opened again.
        """
        if completion is not None:
            append_line(self.folder / "completions.jsonl", dump_completion(completion))
        append_line(self.folder / "samples.jsonl", dump(sample))
        if time.monotonic() - self._beaten > BEAT_S:
            self._beaten = time.monotonic()
            with contextlib.suppress(OSError):  # the sample is safe; a later one will tell
                os.utime(self.folder / "status.json")

    def status(self, state: str, error: str | None = None) -> None:
        """`state`: running, done, interrupted, or failed; `done` seals the files of the run."""
        sealed = digests(self.folder) if state == "done" else None
        self._replace("status.json", _status(state, error, sealed))

    @contextlib.contextmanager
    def unsealed(self) -> Iterator[None]:
        """Lets a run's files be replaced; killed within, it stays as done as it was, unsealed."""
        path = self.folder / "status.json"
        status = read_json(path, Status) or {}
        sealed = status.pop("sha256", None)
        if sealed is not None:
            self._replace("status.json", json.dumps(status, indent=2) + "\n")
        yield
        if status.get("state") == "done":
            status["sha256"] = digests(self.folder)
            self._replace("status.json", json.dumps(status, indent=2) + "\n")

    def amend(self, **known: Any) -> None:
        """Adds to the provenance what showed only while the run went on."""
        origin = json.loads((self.folder / "provenance.json").read_text())
        self._replace("provenance.json", json.dumps(origin | known, indent=2) + "\n")

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        self._replace("metrics.json", json.dumps(metrics, indent=2, allow_nan=False) + "\n")

    def write_scores(self, scores: list[dict[str, Any]]) -> None:
        """`scores.jsonl`, as a whole: one line per sample."""
        self._replace("scores.jsonl", "".join(json.dumps(score) + "\n" for score in scores))

    def _replace(self, name: str, text: str) -> None:
        try:
            write_atomic(self.folder / name, text)
        except OSError as error:
            if name == "status.json" and overwrite(self.folder / name, text):
                return
            raise SkipbenchError(
                f"cannot write {self.folder / name}: {error}; free some space and run the "
                "same command again"
            ) from error

    def close(self) -> None:
        """Lets another process have the folder; a second call does nothing."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _status(state: str, error: str | None, sealed: dict[str, str] | None = None) -> str:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    value: dict[str, Any] = {
        "state": state,
        "error": error,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "updated": now,
    }
    value["slurm"] = os.environ.get("SLURM_JOB_ID")
    value |= {"sha256": sealed} if sealed else {}
    return json.dumps(value, indent=2, allow_nan=False) + "\n"


def record_failure(folder: Path, reason: str) -> None:
    """Leaves `failed` in the folder of a run that did not get as far as opening it.

    A run that is done, or that another process has, stays as it is.
    """
    with contextlib.suppress(SkipbenchError, OSError):
        lock = acquire(folder)
        try:
            if not is_done(folder):
                write_atomic(folder / "status.json", _status("failed", reason))
        finally:
            os.close(lock)


def is_done(folder: Path) -> bool:
    """Reads from `status.json` whether a run is done.

    Raises SkipbenchError if it cannot be read.
    """
    return (read_json(folder / "status.json", Status) or {}).get("state") == "done"


def load_run(folder: Path) -> dict[str, Any]:
    """What a folder says of its run, for reports: `config`, `provenance`, `status`, `metrics`, each
    `None` if missing.

    Raises:
        SkipbenchError: a file cannot be read, is a link, holds something else, or is not what a
            done run wrote; whoever reads the samples is told so of them.
    """
    check_name(folder)
    config = read_yaml(folder / "config.yaml")
    if config is not None:
        check_config(folder / "config.yaml", config)
    found = {
        "config": config,
        "provenance": read_json(folder / "provenance.json", Origin),
        "status": read_json(folder / "status.json", Status),
        "metrics": read_json(folder / "metrics.json", Metrics),
    }
    status = found["status"] or {}
    for name in SEALED:
        if name != "samples.jsonl":
            _check_digest(folder / name, status)
    return found
