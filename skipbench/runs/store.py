"""A run's folder: written atomically, resumed by reading, held by one process at a time.

`config.yaml`, `provenance.json`, `samples.jsonl` and `completions.jsonl` (append only),
`metrics.json`, `status.json`.
"""

import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from math import fsum, isclose
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

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
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, portable
from skipbench.runs.reading import MOST_SAMPLES, read_bytes, read_json, read_yaml
from skipbench.runs.record import Arm, Sample, dump, parse_lines
from skipbench.runs.state import Status, read_status, write_status

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
    status = read_status(path.parent)
    # before the lines: a run that goes on meanwhile writes it after them
    metrics = read_json(path.with_name("metrics.json"), Metrics)
    lines = read_lines(path, repair and not status.done, torn=not status.done)
    if metrics and (status.done or not repair):
        _check_count(path, len(lines), metrics.samples, status.done)
    samples = parse_lines(path, lines, Sample)
    if metrics and status.done and not status.sha256:
        _check_figures(path.with_name("metrics.json"), metrics, kept := list(samples))
        samples = iter(kept)
    yield from samples
    check_digest(path, status.sha256)


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files that make up a run; `status.json` of a done one holds them."""
    found = {name: _digest(folder / name) for name in SEALED}
    return {name: digest for name, digest in found.items() if digest is not None}


def _digest(path: Path) -> str | None:
    data = read_bytes(path, MOST_SAMPLES)
    return None if data is None else hashlib.sha256(data).hexdigest()


def check_digest(path: Path, sha256: Mapping[str, str]) -> None:
    """Raises SkipbenchError for a file of a done run that is not what the run wrote.

    Args:
        sha256: digests by file name, of `status.json`.
    """
    if path.name in sha256 and _digest(path) != sha256[path.name]:
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


def _check_figures(path: Path, metrics: Metrics, samples: Sequence[Sample]) -> None:
    """Compares a done run of an early version, which holds no digests, with its samples.

    Raises:
        SkipbenchError: M, alpha, tokens per second or the speedup in `path` is another.
    """
    sound = [s for s in samples if s.lossless != "failed"]
    rounds = [r for s in sound for r in s.method.rounds]
    steps = sum(r.steps for r in rounds)
    accepted = sum(r.accepted for r in rounds if r.steps)
    ratios = [s.speedup for s in sound if s.speedup is not None]
    figures = {
        "M": (metrics.M, fmean(r.emitted for r in rounds) if rounds else None),
        "alpha": (metrics.alpha, accepted / steps if steps else None),
        "tokens_per_s": (metrics.tokens_per_s, _rate([s.method for s in sound])),
        "tokens_per_s_vanilla": (metrics.tokens_per_s_vanilla, _rate([s.vanilla for s in sound])),
        "speedup.paired": (metrics.speedup.paired, geometric_mean(ratios) if ratios else None),
    }
    for name, (recorded, value) in figures.items():
        if recorded is not None and (value is None or not isclose(recorded, value, rel_tol=1e-6)):
            raise SkipbenchError(
                f"{path} says {name} = {recorded:g}, but the samples beside it give {value}; put "
                "the file back from a copy, or move the folder away and run its command again"
            )


def _rate(arms: Sequence[Arm]) -> float | None:
    """Emitted tokens per second of decoding."""
    decode_s = fsum(arm.seconds.decode for arm in arms)
    return sum(arm.emitted for arm in arms) / decode_s if decode_s else None


class RunStore:
    """The folder of one run, open for writing.

    Raises:
        SkipbenchError: not writable, held by another process, or made with another configuration,
            or without `mixed` under other `CONDITIONS`.
    """

    def __init__(
        self,
        folder: Path,
        config: dict[str, Any],
        provenance: Provenance | None = None,
        mixed: bool = False,
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

    def _settle(self, config: dict[str, Any], provenance: Provenance | None, mixed: bool) -> None:
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
            if not read_status(self.folder).done:
                kept = self.samples()
                cut_unfinished(self.folder / "completions.jsonl", {s.index for s in kept})
        if not (self.folder / "provenance.json").exists():
            first = provenance or Provenance()
            write_json(self.folder / "provenance.json", msgspec.to_builtins(first))
        elif provenance and kept is not None:
            self._go_on(provenance, len(kept), mixed)

    def _go_on(self, now: Provenance, kept: int, mixed: bool) -> None:
        """Adds this process to the provenance of a run that has `kept` samples."""
        path = self.folder / "provenance.json"
        before: Provenance = read_json(path, Provenance) or Provenance()
        there, here = before.conditions, now.conditions
        changed = [k for k in there.keys() & here.keys() if there[k] != here[k]]
        if kept and changed and not mixed:
            texts = ", ".join(f"{name} {there[name]} -> {here[name]}" for name in sorted(changed))
            raise SkipbenchError(
                f"{self.folder} was begun under other conditions ({texts}), on which its times "
                "depend; go on where it was begun, start anew with fresh=true, or go on here with "
                "mixed=true, and every table says so"
            )
        if kept:
            first = msgspec.to_builtins(before)
            one = {k: v for k, v in msgspec.to_builtins(now).items() if first[k] != v}
            resumed = [r for r in before.resumed if r["after_samples"] < kept]
            now = replace(before, resumed=[*resumed, {"after_samples": kept} | one])
        write_json(path, msgspec.to_builtins(now))

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
        status = Status.now(state, error, digests(self.folder) if state == "done" else {})
        try:
            write_status(self.folder, status)
        except SkipbenchError:
            text = json.dumps(msgspec.to_builtins(status), indent=2)
            if not overwrite(self.folder / "status.json", text + "\n"):
                raise

    @contextlib.contextmanager
    def unsealed(self) -> Iterator[None]:
        """Lets a run's files be replaced; killed within, it stays as done as it was, unsealed."""
        status = read_status(self.folder)
        if status.sha256:
            write_status(self.folder, replace(status, sha256={}))
        yield
        if status.done:
            write_status(self.folder, replace(status, sha256=digests(self.folder)))

    def amend(self, **known: Any) -> None:
        """Adds to the provenance what showed only while the run went on."""
        path = self.folder / "provenance.json"
        write_json(path, json.loads(path.read_text()) | known)

    def write_metrics(self, metrics: Metrics) -> None:
        write_json(self.folder / "metrics.json", msgspec.to_builtins(metrics))

    def write_scores(self, scores: list[dict[str, Any]]) -> None:
        """`scores.jsonl`, as a whole: one line per sample."""
        lines = (json.dumps(score) + "\n" for score in scores)
        write_atomic(self.folder / "scores.jsonl", "".join(lines))

    def close(self) -> None:
        """Lets another process have the folder; a second call does nothing."""
        self._held.close()


def record_failure(folder: Path, reason: str) -> None:
    """Leaves `failed` in the folder of a run that did not get as far as opening it.

    A run that is done, or that another process has, stays as it is.
    """
    with contextlib.suppress(SkipbenchError), held(folder):
        if not read_status(folder).done:
            write_status(folder, Status.now("failed", reason))
