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
from skipbench.runs.completions import Completion, cut_unfinished, read_completions
from skipbench.runs.files import (
    append_line,
    held,
    overwrite,
    read_lines,
    write_atomic,
    write_json,
    writing,
)
from skipbench.runs.provenance import check_identity, conditions, mixed_text, portable
from skipbench.runs.reading import MOST_SAMPLES, check_name, read_bytes, read_json, read_yaml
from skipbench.runs.record import Sample, dump, parse_lines
from skipbench.runs.shapes import Config, Metrics, Origin, Status
from skipbench.runs.vouched import check_figures

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
            other samples or has other figures than theirs.
    """
    return list(each_sample(path, repair))


def each_sample(path: Path, repair: bool = False) -> Iterator[Sample]:
    """`read_samples`, one at a time: many are read faster where none is kept."""
    status = _status_of(path.parent)
    done = status.get("state") == "done"
    # before the lines: a run that goes on meanwhile writes it after them
    counted = (read_json(path.with_name("metrics.json"), Metrics) or {}).get("samples")
    lines = read_lines(path, repair and not done, torn=not done)
    if counted is not None and (done or not repair):
        _check_count(path, len(lines), counted, done)
    found = parse_lines(path, lines, Sample)
    if done and "sha256" not in status:
        check_figures(path.with_name("metrics.json"), samples := list(found))
        found = iter(samples)
    yield from found
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


def _check_count(path: Path, lines: int, counted: int, done: bool) -> None:
    """Compares the number of samples with that of `metrics.json`.

    Raises:
        SkipbenchError: samples are missing, or the run is done and has more of them.
    """
    if lines < counted or (done and lines != counted):
        raise SkipbenchError(
            f"{path}, line {min(lines, counted) + 1}: {lines} whole lines, but metrics.json is of "
            f"{counted} samples; put the file back from a copy, or move the folder away and run "
            "its command again"
        )


class RunStore:
    """The folder of one run, open for writing.

    Raises:
        SkipbenchError: not writable, held by another process, or made with another configuration,
            or without `mixed` under other `CONDITIONS`.
    """

    def __init__(
        self, folder: Path, config: dict[str, Any], provenance: dict[str, Any], mixed: bool = False
    ) -> None:
        self.folder = folder
        self._beaten = 0.0
        self._held = contextlib.ExitStack()
        self._held.enter_context(held(folder))
        try:
            with writing(folder):
                self._settle(config, provenance, mixed)
        except BaseException:
            self.close()
            raise

    def _settle(self, config: dict[str, Any], provenance: dict[str, Any], mixed: bool) -> None:
        path = self.folder / "config.yaml"
        text = yaml.safe_dump(portable(config), sort_keys=False)
        before, own = read_yaml(path), yaml.safe_load(text)
        if before is None:
            write_atomic(path, text)
        elif keys := sorted(str(k) for k in before.keys() | own if before.get(k) != own.get(k)):
            raise SkipbenchError(
                f"{self.folder} holds a run with other settings ({', '.join(keys)}); use "
                "another results folder"
            )
        kept = None
        # An append behind a torn line would be lost with it; damage elsewhere is for whoever reads.
        with contextlib.suppress(SkipbenchError):
            if not is_done(self.folder):
                kept = self.samples()
                cut_unfinished(self.folder / "completions.jsonl", {s.index for s in kept})
        if not (self.folder / "provenance.json").exists():
            write_json(self.folder / "provenance.json", provenance)
        elif provenance and kept is not None:
            self._go_on(provenance, len(kept), mixed)

    def _go_on(self, now: dict[str, Any], kept: int, mixed: bool) -> None:
        """Adds this process to the provenance of a run that has `kept` samples."""
        path = self.folder / "provenance.json"
        before = read_json(path, Origin)
        own, ours = conditions(before), conditions(now)
        changed = [k for k in own.keys() & ours.keys() if own[k] != ours[k]]
        if kept and changed and not mixed:
            told = ", ".join(f"{name} {own[name]} -> {ours[name]}" for name in sorted(changed))
            raise SkipbenchError(
                f"{self.folder} was begun under other conditions ({told}), on which its times "
                "depend; go on where it was begun, start anew with fresh=true, or go on here with "
                "mixed=true, and every table says so"
            )
        one = {"after_samples": kept} | {k: v for k, v in now.items() if before.get(k) != v}
        resumed = [r for r in before.get("resumed", ()) if r["after_samples"] < kept]
        write_json(path, before | {"resumed": [*resumed, one]} if kept else now)

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
            append_line(self.folder / "completions.jsonl", dump(completion))
        append_line(self.folder / "samples.jsonl", dump(sample))
        if time.monotonic() - self._beaten > BEAT_S:
            self._beaten = time.monotonic()
            with contextlib.suppress(OSError):  # the sample is safe; a later one will tell
                os.utime(self.folder / "status.json")

    def status(self, state: str, error: str | None = None) -> None:
        """`state`: running, done, interrupted, or failed; `done` seals the files of the run."""
        told = _status(state, error)
        if state == "done":
            told["sha256"] = digests(self.folder)
        try:
            write_json(self.folder / "status.json", told)
        except SkipbenchError:
            if not overwrite(self.folder / "status.json", json.dumps(told, indent=2) + "\n"):
                raise

    @contextlib.contextmanager
    def unsealed(self) -> Iterator[None]:
        """Lets a run's files be replaced; killed within, it stays as done as it was, unsealed."""
        path, status = self.folder / "status.json", _status_of(self.folder)
        if status.pop("sha256", None) is not None:
            write_json(path, status)
        yield
        if status.get("state") == "done":
            write_json(path, status | {"sha256": digests(self.folder)})

    def amend(self, **known: Any) -> None:
        """Adds to the provenance what showed only while the run went on."""
        path = self.folder / "provenance.json"
        write_json(path, json.loads(path.read_text()) | known)

    def write_metrics(self, metrics: dict[str, Any]) -> None:
        write_json(self.folder / "metrics.json", metrics)

    def write_scores(self, scores: list[dict[str, Any]]) -> None:
        """`scores.jsonl`, as a whole: one line per sample."""
        lines = (json.dumps(score) + "\n" for score in scores)
        write_atomic(self.folder / "scores.jsonl", "".join(lines))

    def close(self) -> None:
        """Lets another process have the folder; a second call does nothing."""
        self._held.close()


def _status(state: str, error: str | None) -> dict[str, Any]:
    return {
        "state": state,
        "error": error,
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "updated": datetime.now(UTC).isoformat(timespec="seconds"),
        "slurm": os.environ.get("SLURM_JOB_ID"),
    }


def record_failure(folder: Path, reason: str) -> None:
    """Leaves `failed` in the folder of a run that did not get as far as opening it.

    A run that is done, or that another process has, stays as it is.
    """
    with contextlib.suppress(SkipbenchError), held(folder):
        if not is_done(folder):
            write_json(folder / "status.json", _status("failed", reason))


def _status_of(folder: Path) -> dict[str, Any]:
    return read_json(folder / "status.json", Status) or {}


def is_done(folder: Path) -> bool:
    """Reads from `status.json` whether a run is done.

    Raises SkipbenchError if it cannot be read.
    """
    return bool(_status_of(folder).get("state") == "done")


def load_run(folder: Path) -> dict[str, Any]:
    """What a folder says of its run, for reports: `config`, `provenance`, `status`, `metrics`, each
    `None` if missing; `provenance` has `mixed_text` as `mixed`, if there is any.

    Raises:
        SkipbenchError: a file cannot be read, is a link, holds something else, or is not what a
            done run wrote (whoever reads the samples is told so of them), or the folder has the
            name of another run.
    """
    check_name(folder)
    found = {
        "config": read_yaml(folder / "config.yaml", Config),
        "provenance": read_json(folder / "provenance.json", Origin),
        "status": read_json(folder / "status.json", Status),
        "metrics": read_json(folder / "metrics.json", Metrics),
    }
    for name in SEALED:
        if name != "samples.jsonl":
            _check_digest(folder / name, found["status"] or {})
    check_identity(folder, found["config"])
    if found["provenance"] and (text := mixed_text(found["provenance"])):
        found["provenance"]["mixed"] = text
    return found
