"""Merges results folders of several machines; nothing is overwritten.

Runs of one name and one origin (commit, device and versions) are united sample by sample. Of two
origins both are kept, the later one as `NAME.<hash of its origin>`.
"""

import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from skipbench.errors import SkipbenchError, printable
from skipbench.runs.files import write_atomic, writing
from skipbench.runs.fingerprint import MEANINGS
from skipbench.runs.lock import held
from skipbench.runs.provenance import Provenance, config_hash, hashed, named_hash
from skipbench.runs.reading import read_bytes, refuse_link, run_folders, strict_json
from skipbench.runs.record import MEASURED, Completion, Sample, dump
from skipbench.runs.run import Run, read_run
from skipbench.runs.state import write_status
from skipbench.runs.store import RunStore, sealed

OF_THE_WHOLE = ("scores.jsonl", "metrics.json", "table.md")  # wrong once samples are added
COPIED = ("config.yaml", "provenance.json", *OF_THE_WHOLE)
ORIGIN = ("commit", "dirty", "device", "versions", "model_commit", "rows_sha256", "prompts_sha256")
FINGERPRINTS = [*MEANINGS, "draft_sha256", "latency_sha256", "files"]
_UNFINISHED = "merged before it was finished; the same command goes on"


@dataclass
class Merged:
    """A merged source: counts of what was done, notes, and reasons for what was not merged."""

    did: Counter[str] = field(default_factory=Counter)
    said: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    def counts(self) -> str:
        return ", ".join(f"{n} {what}" for what, n in self.did.items()) or "nothing merged"

    @contextlib.contextmanager
    def refused(self) -> Iterator[None]:
        """Within it an error is a reason in `left`."""
        try:
            yield
        except SkipbenchError as error:
            self.left.append(printable(str(error)))


@dataclass(frozen=True)
class _Source:
    """A run as it was read, and is written, though its process may go on meanwhile."""

    run: Run
    folder: Path
    files: dict[str, bytes]
    samples: dict[int, Sample]
    texts: dict[int, Completion]

    @classmethod
    def read(cls, folder: Path) -> "_Source":
        run = read_run(folder)
        if not run.settings:
            raise SkipbenchError(f"{folder} holds no run")
        if config_hash(run.settings) != named_hash(folder):
            raise SkipbenchError(
                f"{folder}: its name is not that of its settings; run it again with this version"
            )
        samples = {s.index: s for s in run.samples}
        # a text without a sample was being written when its process died
        texts = {index: text for index, text in run.completions.items() if index in samples}
        files = {n: data for n in COPIED if (data := read_bytes(folder / n)) is not None}
        return cls(run, folder, files, samples, texts)

    def holds(self, other: "_Source") -> bool:
        samples = self.samples.keys() >= other.samples.keys()
        return samples and self.texts.keys() >= other.texts.keys()

    def append_to(self, store: RunStore, new: Iterable[int]) -> None:
        """Adds the samples of these indices to another record of the run."""
        store.status("failed", _UNFINISHED)
        for name in OF_THE_WHOLE:
            (store.folder / name).unlink(missing_ok=True)
        for index in sorted(new):
            store.append(self.samples[index], self.texts.get(index))

    def write(self, folder: Path) -> None:
        """Writes all of the run, with digests if it is done; a running one has failed there."""
        for name, records in (("samples", self.samples), ("completions", self.texts)):
            if records:
                lines = "".join(f"{dump(record)}\n" for record in records.values())
                write_atomic(folder / f"{name}.jsonl", lines)
        for name in COPIED:
            if name in self.files:
                write_atomic(folder / name, self.files[name])
            elif name in OF_THE_WHOLE:
                (folder / name).unlink(missing_ok=True)
        status = self.run.status
        if status.state in ("running", "missing"):
            status = replace(status, state="failed", error=_UNFINISHED)
        write_status(folder, sealed(folder, status))


def merge_into(source: Path, target: Path) -> Merged:
    """Merges the runs, searches and stored sets of `source` into `target`; a second time, that does
    nothing.

    Tables and figures are made again from the records, and latencies belong to their machine: they
    are not merged.

    Raises:
        SkipbenchError: the two are one folder, `target` is not writable, or another process merges
            into it. Other errors are in `left`.
    """
    if source.resolve() == target.resolve():
        raise SkipbenchError(f"{source} is the target itself")
    done = Merged()
    with held(target.resolve()), writing(target):
        (runs := target / "runs").mkdir(exist_ok=True)
        for half in runs.glob(".merge-*"):  # a copy that was stopped
            shutil.rmtree(half)
        for folder in run_folders(source):
            with done.refused():
                _merge_run(_Source.read(folder), runs, done)
        for pattern in ("search/*/trace.jsonl", "search/*/retimed.jsonl", "skip_sets/*.json"):
            with done.refused():
                refuse_link(source / pattern.partition("/")[0])
                for path in sorted(source.glob(pattern)):
                    with done.refused():
                        _merge_file(path, target / path.relative_to(source), done)
    return done


def join_shard(shard: Path, folder: Path, mixed: bool) -> int:
    """Adds the samples that only a shard has to the run in `folder`, as a process that resumes it;
    returns their number. Raises SkipbenchError where the shard is being written, or was measured
    under other conditions, unless `mixed`.
    """
    with held(shard):
        part = _Source.read(shard)
        new = part.samples.keys() - {s.index for s in read_run(folder).samples}
        if part.run.provenance.mixed:
            raise SkipbenchError(f"{shard} is mixed itself; fresh=true measures it anew")
        if new:
            own = replace(part.run.provenance, resumed=[])
            with contextlib.closing(RunStore(folder, part.run.settings, own, mixed)) as store:
                part.append_to(store, new)
    return len(new)


def origin_hash(provenance: Provenance) -> str:
    """Six digits that depend on what two origins differ in, but on no machine's name or time."""
    origin = {name: getattr(provenance, name) for name in ORIGIN}
    # Records of earlier versions have no fingerprints: their hash is as it was.
    origin |= {k: v for k in (*FINGERPRINTS, "mixed") if (v := getattr(provenance, k))}
    if provenance.device == "cpu":
        origin["device"] = provenance.cpu
    origin["versions"] = origin["versions"] or None
    return hashed(origin)[:6]


def _name(folder: Path) -> str:
    """The run's name, which ends with its hash, without the hash of an origin."""
    parts, _, last = folder.name.rpartition("_")
    return f"{parts}_{last.partition('.')[0]}"


def _merge_run(run: _Source, runs: Path, done: Merged) -> None:
    name, origin = _name(run.folder), origin_hash(run.run.provenance)
    for slot in (runs / name, runs / f"{name}.{origin}"):
        if not slot.exists():  # copied under another name first: nobody reads half a run
            half = Path(tempfile.mkdtemp(dir=runs, prefix=".merge-"))
            try:
                run.write(half)
                half.chmod(0o755)
                os.rename(half, slot)
            except BaseException:  # also a signal
                shutil.rmtree(half, ignore_errors=True)
                raise
            done.did["new" if slot.name == name else "kept beside another origin"] += 1
            if slot.name != name:
                done.said.append(
                    f"{name} is there of another commit, device or version; kept beside it as "
                    f"{slot.name}"
                )
            return
        there = _Source.read(slot)
        if origin_hash(there.run.provenance) == origin:
            _unite(there, run, done)
            return
    raise SkipbenchError(f"{slot} is of another origin than its name says; move it away")


def _unite(there: _Source, run: _Source, done: Merged) -> None:
    """Adds the samples that only `run` has; those of both are equal but for what was measured."""
    both = there.samples.keys() & run.samples.keys()
    if unlike := sorted(i for i in both if _decided(there.samples[i]) != _decided(run.samples[i])):
        raise SkipbenchError(
            f"{run.folder} and {there.folder} are of one origin, but samples {unlike[:10]} have "
            "other tokens or counts; both are as they were: find out which is right, and move the "
            "other away"
        )
    if there.holds(run) and (there.run.done or not run.run.done):
        done.did["there already"] += 1
        return
    new = run.samples.keys() - there.samples.keys()
    own = replace(run.run.provenance, resumed=[])
    store = RunStore(there.folder, there.run.settings, own, mixed=True)
    with contextlib.closing(store):
        if run.holds(there):  # all of it, seconds too: its metrics are those of its samples
            store.status("failed", "a merge was stopped; merge again")
            run.write(store.folder)
        else:  # each sample as a run writes it: killed, none is lost, and the same command goes on
            run.append_to(store, new)
    done.did["united"] += 1
    done.said.append(
        f"{there.folder.name}: {len(new)} samples more, {len(there.samples) + len(new)} in all"
    )


def _decided(sample: Sample) -> Mapping[str, object]:
    """A sample without what is measured: times, and of the device also the logit gap."""
    raw: dict[str, Any] = msgspec.to_builtins(replace(sample, config_hash=msgspec.UNSET))
    for arm in ("vanilla", "method"):
        for name in MEASURED:
            del raw[arm][name]
    for name in ("logit_gap", "error"):
        (raw["divergence"] or {}).pop(name, None)
    return raw


def _merge_file(path: Path, target: Path, done: Merged) -> None:
    """A stored set; or a search's trace, the longer of two where one continues the other."""
    data, lines = read_bytes(path) or b"", path.suffix == ".jsonl"
    if lines:
        data = data[: data.rfind(b"\n") + 1]
    try:
        for line in data.splitlines() if lines else [data]:
            strict_json(line)
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(f"{path} cannot be read: {error}") from error
    before = read_bytes(target)
    if before is not None and (before.startswith(data) or not data):
        done.did["files there already"] += 1
    elif before is None or (lines and data.startswith(before)):
        write_atomic(target, data)
        done.did["files"] += 1
    else:
        raise SkipbenchError(f"{path} and {target} are different; both are as they were")
