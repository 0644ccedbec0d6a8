"""A run's folder: written atomically, resumed by reading, locked by one process at a time.

`config.yaml`, `provenance.json`, `samples.jsonl` and `completions.jsonl` (append only),
`metrics.json`, `status.json`.
"""

import contextlib
import json
import os
import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, read_lines, write_atomic, write_json, writing
from skipbench.runs.lock import held
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, config_hash, named_hash, portable
from skipbench.runs.reading import read_json, read_yaml
from skipbench.runs.record import Completion, Sample, dump, parse, parse_lines
from skipbench.runs.state import Status, read_status, write_status

BEAT_S = 5.0  # between two signs of life: each may be a round trip to a file server
_BACK = "put the file back from a copy, or move the folder away and run its command again"


def read_samples(path: Path, repair: bool = False) -> list[Sample]:
    """The records of a `samples.jsonl`, in the order written.

    A last line that is torn or unreadable was being written when the process died: it is left out,
    and with `repair` cut off. In a run that is done, it is damage and an error.

    Raises:
        SkipbenchError: another line is unreadable, an index occurs twice, a sample is of another
            run, or `metrics.json` counts other samples.
    """
    status, beside = read_status(path.parent), path.with_name("metrics.json")
    # before the lines: a run that goes on meanwhile writes it after them
    metrics = read_json(beside, Metrics)
    lines = read_lines(path, repair and not status.done, torn=not status.done)
    if metrics and (status.done or not repair):
        number, counted = len(lines), metrics.samples
        if number < counted or (status.done and number != counted):
            raise SkipbenchError(
                f"{path}, line {min(number, counted) + 1}: {number} whole lines, but metrics.json "
                f"is of {counted} samples; {_BACK}"
            )
    samples = list(parse_lines(path, lines, Sample).values())
    hashes = {named_hash(path.parent), *(s.config_hash or None for s in samples)} - {None}
    if len(hashes) > 1:
        raise SkipbenchError(
            f"{path} holds samples of another run: its folder and its lines have the hashes "
            f"{', '.join(sorted(map(str, hashes)))}; {_BACK}"
        )
    return samples


def read_completions(path: Path) -> dict[int, Completion]:
    """The completions by index, in the order written, without a torn last line; empty if there is
    no file. Raises SkipbenchError for a line that cannot be read, or an index that occurs twice.
    """
    return parse_lines(path, read_lines(path), Completion)


def cut_unfinished(path: Path, finished: Collection[int]) -> None:
    """Cuts a torn line, and texts of no sample in `finished`, off the end of a file."""
    lines = read_lines(path)
    while lines:
        with contextlib.suppress(SkipbenchError):
            if parse(lines[-1][1], Completion).index in finished:
                break
        lines.pop()
    end = sum(len(line) + 1 for _, line in lines)
    if path.exists() and end < path.stat().st_size:
        os.truncate(path, end)


class RunStore:
    """The folder of one run, open for writing. Raises SkipbenchError for one that is not writable,
    is held by another process, or was made with another configuration, or under other `CONDITIONS`.
    """

    def __init__(
        self,
        folder: Path,
        config: Mapping[str, object],
        provenance: Provenance | None = None,
        prompts: int | None = None,
    ) -> None:
        self.folder, self.prompts = folder, prompts
        self._config_hash = config_hash(config)
        self._beaten = 0.0
        with contextlib.ExitStack() as stack:
            stack.enter_context(held(folder))
            with writing(folder):
                self._settle(config, provenance)
            self._held = stack.pop_all()

    def _settle(self, config: Mapping[str, object], provenance: Provenance | None) -> None:
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
        count = None
        # An append after a torn line would be lost with it; other damage is for whoever reads.
        with contextlib.suppress(SkipbenchError):
            if not read_status(self.folder).done:
                finished = {s.index for s in self.samples()}
                count = len(finished)
                cut_unfinished(self.folder / "completions.jsonl", finished)
        path = self.folder / "provenance.json"
        if not path.exists():
            write_json(path, msgspec.to_builtins(provenance or Provenance()))
        elif provenance and count is not None:
            first = read_json(path, Provenance) or Provenance()
            now = first.resumed_by(provenance, count, self.folder)
            write_json(path, msgspec.to_builtins(now))

    def samples(self) -> list[Sample]:
        """The samples written so far; cuts a torn last line off, unless the run is done."""
        return read_samples(self.folder / "samples.jsonl", repair=True)

    def completions(self) -> dict[int, Completion]:
        """The texts of the samples written so far, by index."""
        return read_completions(self.folder / "completions.jsonl")

    def append(self, sample: Sample, completion: Completion | None = None) -> None:
        """Writes a finished sample, its texts first: those without one are cut off at a resume."""
        if completion is not None:
            append_line(self.folder / "completions.jsonl", dump(completion))
        own = replace(sample, config_hash=self._config_hash)
        append_line(self.folder / "samples.jsonl", dump(own))
        if time.monotonic() - self._beaten > BEAT_S:
            self._beaten = time.monotonic()
            with contextlib.suppress(OSError):  # the sample is safe; a later one will tell
                os.utime(self.folder / "status.json")

    def status(self, state: str, error: str | None = None) -> None:
        """`state`: running, done, interrupted or failed."""
        write_status(self.folder, replace(Status.now(state, error), prompts=self.prompts))

    def amend(self, **known: Any) -> None:
        """Adds entries to the provenance."""
        path = self.folder / "provenance.json"
        write_json(path, json.loads(path.read_text()) | known)

    def write_metrics(self, metrics: Metrics) -> None:
        write_json(self.folder / "metrics.json", msgspec.to_builtins(metrics))

    def write_scores(self, scores: Sequence[Mapping[str, object]]) -> None:
        """Replaces `scores.jsonl`: one line per sample."""
        lines = (json.dumps(score) + "\n" for score in scores)
        write_atomic(self.folder / "scores.jsonl", "".join(lines))

    def close(self) -> None:
        """Releases the folder's lock; a second call does nothing."""
        self._held.close()


def record_failure(folder: Path, reason: str) -> None:
    """Writes `failed` for a run that could not be opened, unless it is done or locked."""
    with contextlib.suppress(SkipbenchError), held(folder):
        if not read_status(folder).done:
            write_status(folder, Status.now("failed", reason))
