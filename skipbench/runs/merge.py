"""Results folders of several machines become one. Nothing is overwritten, and nothing of two
origins becomes one run.

A run is known by its folder's name, the hash of its settings, and by its origin: commit, device and
versions. Runs of one name and origin are united sample by sample; of another origin, both are kept,
the later one as `NAME.<hash of its origin>`.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.runs.completions import Completion
from skipbench.runs.files import held, write_atomic, writing
from skipbench.runs.provenance import Provenance, config_hash
from skipbench.runs.reading import (
    MOST_SAMPLES,
    printable,
    read_bytes,
    refuse_link,
    run_folders,
    strict_json,
)
from skipbench.runs.record import MEASURED, Sample, dump
from skipbench.runs.run import Run, read_run
from skipbench.runs.state import write_status
from skipbench.runs.store import RunStore, digests

COPIED = ("config.yaml", "provenance.json", "scores.jsonl", "metrics.json", "table.md")
OF_THE_WHOLE = ("scores.jsonl", "metrics.json", "table.md")
"""What is made of all samples together, and no longer true where some were added."""
ORIGIN = ("commit", "dirty", "device", "versions", "model_commit", "rows_sha256", "prompts_sha256")
FINGERPRINTS = (
    *("weights_sha256", "tokenizer_sha256", "generation_sha256", "draft_sha256"),
    *("method_sha256", "imports_sha256", "package_sha256", "latency_sha256"),
)
_UNFINISHED = "merged before it was finished; the same command goes on"


@dataclass
class Merged:
    """What became of a source: how often what was done, what is worth telling, and what the source
    alone still has.
    """

    did: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def counts(self) -> str:
        return (
            ", ".join(f"{number} {what}" for what, number in self.did.items()) or "nothing merged"
        )


@dataclass(frozen=True)
class _Source:
    """A run as it was read: what is written is this, though its process may go on meanwhile."""

    run: Run
    folder: Path
    files: dict[str, bytes]
    samples: dict[int, Sample]
    texts: dict[int, Completion]

    def holds(self, other: "_Source") -> bool:
        return (
            self.samples.keys() >= other.samples.keys() and self.texts.keys() >= other.texts.keys()
        )


def merge_into(source: Path, target: Path) -> Merged:
    """Brings the runs, searches and stored sets of `source` into `target`; a second time, that does
    nothing.

    Tables and figures are made again from the records, and latencies belong to their
    machine: they stay.

    Raises:
        SkipbenchError: the two are one folder, `target` is not writable, or another process merges
            into it. What of `source` is refused is in `left`.
    """
    if source.resolve() == target.resolve():
        raise SkipbenchError(f"{source} is the target itself")
    done = Merged()
    with held(target.resolve()), writing(target):
        (runs := target / "runs").mkdir(exist_ok=True)
        for half in runs.glob(".merge-*"):  # a copy that was stopped
            shutil.rmtree(half)
        for folder in run_folders(source):
            with _refused(done):
                _merge_run(_read(folder), runs, done)
        for kind, pattern in (
            ("search", "*/trace.jsonl"),
            ("search", "*/retimed.jsonl"),
            ("skip_sets", "*.json"),
        ):
            with _refused(done):
                refuse_link(source / kind)
                for path in sorted((source / kind).glob(pattern)):
                    with _refused(done):
                        _merge_file(path, target / path.relative_to(source), done)
    return done


@contextlib.contextmanager
def _refused(done: Merged) -> Iterator[None]:
    try:
        yield
    except SkipbenchError as error:
        done.left.append(printable(str(error)))


def origin_hash(provenance: Provenance) -> str:
    """Six digits that depend on what tells two origins apart, but on no machine's name or time."""
    origin = {name: getattr(provenance, name) for name in ORIGIN}
    # Records of earlier versions have none: their hash stays what it was.
    hashes = {name: getattr(provenance, name) for name in FINGERPRINTS}
    origin |= {name: digest for name, digest in hashes.items() if digest is not None}
    if provenance.mixed:
        origin["mixed"] = provenance.mixed
    if provenance.device == "cpu":
        origin["device"] = provenance.cpu
    origin["versions"] = origin["versions"] or None
    return hashlib.sha256(json.dumps(origin, sort_keys=True).encode()).hexdigest()[:6]


def _name(folder: Path) -> tuple[str, str]:
    """The run's name without a mark of its origin, and the hash in it."""
    parts, _, last = folder.name.rpartition("_")
    digest = last.partition(".")[0]
    return f"{parts}_{digest}", digest


def _read(folder: Path) -> _Source:
    run = read_run(folder)
    if not run.settings:
        raise SkipbenchError(f"{folder} holds no run")
    if config_hash(run.settings) != _name(folder)[1]:
        raise SkipbenchError(
            f"{folder}: its name is not that of its settings; run it again with this version"
        )
    samples = {s.index: s for s in run.samples}
    # A text without a sample was being written when its process died.
    texts = {index: text for index, text in run.completions.items() if index in samples}
    files = {
        name: data
        for name in COPIED
        if (data := read_bytes(folder / name, MOST_SAMPLES)) is not None
    }
    return _Source(run, folder, files, samples, texts)


def _merge_run(run: _Source, runs: Path, done: Merged) -> None:
    name, own = _name(run.folder)[0], origin_hash(run.run.provenance)
    for slot in (runs / name, runs / f"{name}.{own}"):
        if not slot.exists():
            _copy(run, slot)
            done.did["new" if slot.name == name else "kept beside another origin"] += 1
            if slot.name != name:
                done.said.append(
                    f"{name} is there of another commit, device or version; kept beside it "
                    f"as {slot.name}"
                )
            return
        there = _read(slot)
        if origin_hash(there.run.provenance) == own:
            _unite(there, run, done)
            return
    raise SkipbenchError(f"{slot} is of another origin than its name says; move it away")


def _copy(run: _Source, folder: Path) -> None:
    """Under another name first, so that nobody meets half a run."""
    half = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".merge-"))
    _write(run, half)
    half.chmod(0o755)
    os.rename(half, folder)


def _write(run: _Source, folder: Path) -> None:
    """All of the run, sealed if it is done; but what was running does not run here."""
    for name, records in (("samples", run.samples), ("completions", run.texts)):
        if records:
            lines = "".join(f"{dump(record)}\n" for record in records.values())
            write_atomic(folder / f"{name}.jsonl", lines)
    for name in COPIED:
        if name in run.files:
            write_atomic(folder / name, run.files[name])
        elif name in OF_THE_WHOLE:
            (folder / name).unlink(missing_ok=True)
    status = run.run.status
    if status.state in ("running", "missing"):
        status = replace(status, state="failed", error=_UNFINISHED)
    write_status(folder, replace(status, sha256=digests(folder)) if status.done else status)


def _unite(there: _Source, run: _Source, done: Merged) -> None:
    """Adds the samples that only `run` has; those of both are equal but for what was measured."""
    both = there.samples.keys() & run.samples.keys()
    if unlike := sorted(i for i in both if _told(there.samples[i]) != _told(run.samples[i])):
        raise SkipbenchError(
            f"{run.folder} and {there.folder} are of one origin, but samples {unlike[:10]} have "
            "other tokens or counts; both are as they were: find out which is right, and move the "
            "other away"
        )
    if there.holds(run) and (there.run.done or not run.run.done):
        done.did["there already"] += 1
        return
    new = sorted(run.samples.keys() - there.samples.keys())
    own = replace(run.run.provenance, resumed=[])
    store = RunStore(there.folder, there.run.settings, own, mixed=True)
    try:
        if run.holds(there):
            _take_over(store, run)
        else:
            _add(store, run, new)
    finally:
        store.close()
    done.did["united"] += 1
    done.said.append(
        f"{there.folder.name}: {len(new)} samples more, {len(there.samples) + len(new)} in all"
    )


def _take_over(store: RunStore, run: _Source) -> None:
    """All of `run`, its seconds too: its metrics are then those of its samples.

    Killed before the end, a second merge goes on.
    """
    store.status("failed", "a merge was stopped; merge again")
    _write(run, store.folder)


def _add(store: RunStore, run: _Source, new: list[int]) -> None:
    """Each sample as a run itself writes it, so that a kill loses none; the same command then makes
    the metrics of the whole.
    """
    store.status("failed", _UNFINISHED)
    for name in OF_THE_WHOLE:
        (store.folder / name).unlink(missing_ok=True)
    for index in new:
        store.append(run.samples[index], run.texts.get(index))


def _told(sample: Sample) -> dict[str, Any]:
    """A sample without what is measured: times, energy, and of the device also the logit gap."""
    raw = dataclasses.asdict(sample)
    for arm in ("vanilla", "method"):
        for name in MEASURED:
            del raw[arm][name]
    for name in ("logit_gap", "error"):
        (raw["divergence"] or {}).pop(name, None)
    return raw


def _merge_file(path: Path, target: Path, done: Merged) -> None:
    """A stored set; or a search's trace, the longer of two where one goes on with the other."""
    data = read_bytes(path, MOST_SAMPLES) or b""
    if path.suffix == ".jsonl":
        data = data[: data.rfind(b"\n") + 1]
    try:
        for line in data.splitlines() if path.suffix == ".jsonl" else [data]:
            strict_json(line)
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(f"{path} cannot be read: {error}") from error
    before = read_bytes(target, MOST_SAMPLES)
    if before is not None and (before.startswith(data) or not data):
        done.did["files there already"] += 1
        return
    if before is not None and not (path.suffix == ".jsonl" and data.startswith(before)):
        raise SkipbenchError(f"{path} and {target} are different; both are as they were")
    write_atomic(target, data)
    done.did["files"] += 1
