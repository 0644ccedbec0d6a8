"""A row's folder, and in it those of its arms: written atomically, resumed by reading, an arm by
one process at a time.

Of the row: `config.yaml`, what its arms share; `turns.jsonl` and `texts.jsonl` (append only). Of an
arm: `config.yaml`, `provenance.json`, `metrics.json`, `status.json`.
"""

import contextlib
import functools
import itertools
import json
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, read_lines, write_atomic, write_json, writing
from skipbench.runs.lock import alone, held
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, portable
from skipbench.runs.reading import read_json, read_yaml
from skipbench.runs.record import VANILLA, Lossless, Texts, Turn, dump, parse_lines
from skipbench.runs.state import Status, read_status, write_status

BEAT_S = 5.0  # between two signs of life: each may be a round trip to a file server
CONFIG, TURNS, TEXTS = "config.yaml", "turns.jsonl", "texts.jsonl"
OF_ARM = "method"  # the settings of an arm; the others are the row's
_BACK = "put the file back from a copy, or move the folder away and run its command again"


def row_turns(row: Path) -> list[Turn]:
    """All turns of a row, in the order written. A last line that is torn or unreadable, which is
    being written or was when a process died, is left out. Raises SkipbenchError where another line
    is unreadable, or an arm has a prompt twice.
    """
    path = row / TURNS
    try:
        found = path.stat()
    except OSError:
        return []
    return _parsed(path, found.st_ino, found.st_size, found.st_mtime_ns)


@functools.lru_cache(maxsize=4)  # every arm of a row reads the same file
def _parsed(path: Path, *stamp: int) -> list[Turn]:
    return parse_lines(path, read_lines(path, torn=True), Turn)


def read_turns(folder: Path) -> list[Turn]:
    """The turns of the arm in `folder`, by index, as far as it has them. Raises SkipbenchError, as
    `row_turns`, and where `metrics.json` is of more than there are, or of others if it is done.
    """
    # before the lines: an arm that goes on meanwhile writes it after them
    status, metrics = read_status(folder), read_json(folder / "metrics.json", Metrics)
    turns = [turn for turn in row_turns(folder.parent) if folder.name in turn.arms]
    number = len(turns)
    if metrics and (number < metrics.turns or (status.done and number != metrics.turns)):
        raise SkipbenchError(
            f"{folder.parent / TURNS} has {number} whole lines of {folder.name}, but its "
            f"metrics.json is of {metrics.turns} turns; {_BACK}"
        )
    return sorted(turns, key=lambda turn: turn.index)


def read_texts(folder: Path) -> dict[int, Texts]:
    """The texts of the turns of the arm in `folder`, by index; empty if there is no file. Raises
    SkipbenchError for a line that cannot be read.
    """
    path = folder.parent / TEXTS
    records = parse_lines(path, read_lines(path, torn=True), Texts)
    return {one.index: one for one in records if folder.name in one.arms}


def append_turn(row: Path, turn: Turn, texts: Texts, again: bool = False) -> None:
    """Adds a turn to a row, as other processes may; its texts first: those of a process that died
    before its turn stay, and later ones of the same arm go before them. One that was asked `again`
    takes the place of the turn of its index.
    """
    with alone(row / ".lock", row, wait=True):
        append_line(row / TEXTS, dump(texts))
        if again:
            kept = [one for one in row_turns(row) if one.index != turn.index]
            return _write_lines(row / TURNS, [*kept, turn])
        append_line(row / TURNS, dump(turn))


def set_aside(folder: Path) -> None:
    """Moves an arm with its turns to `replaced/`; its row keeps those of others. Raises
    SkipbenchError if it is held, or cannot be.
    """
    row, arm = folder.parent, folder.name
    if not folder.exists():
        return
    with held(folder), alone(row / ".lock", row, wait=True), writing(row):
        turns, lines = row_turns(row), read_lines(row / TEXTS, torn=True)
        texts = parse_lines(row / TEXTS, lines, Texts)
        files: dict[str, Sequence[Any]] = {TURNS: turns, TEXTS: texts}
        places = (row.parent.parent / "replaced" / f"{row.name}.{n}" for n in itertools.count(1))
        aside = next(place for place in places if not place.exists())
        write_atomic(aside / CONFIG, (row / CONFIG).read_bytes() if (row / CONFIG).exists() else "")
        for name, records in files.items():
            _write_lines(aside / name, [r.only([arm, VANILLA]) for r in records if arm in r.arms])
        for name, records in files.items():
            kept = (record.only(record.arms.keys() - {arm}) for record in records)
            _write_lines(row / name, [one for one in kept if one.arms.keys() - {VANILLA}])
        os.rename(folder, aside / arm)  # last: without its folder nothing would set the turns aside


def judge(folder: Path, kinds: Sequence[Lossless]) -> None:
    """Writes the verdicts on an arm's answers, by index, into its turns that did not fail."""
    row, arm = folder.parent, folder.name
    with alone(row / ".lock", row, wait=True):
        turns = [*row_turns(row)]
        indices = sorted(turn.index for turn in turns if arm in turn.arms)
        known = dict(zip(indices, kinds, strict=True))
        for at, turn in enumerate(turns):
            if (own := turn.arms.get(arm)) and own.lossless != "failed":
                arms = {**turn.arms, arm: replace(own, lossless=known[turn.index])}
                turns[at] = replace(turn, arms=arms)
        _write_lines(row / TURNS, turns)


def _write_lines(path: Path, records: Sequence[Turn | Texts]) -> None:
    write_atomic(path, "".join(f"{dump(one)}\n" for one in records))


class RunStore:
    """The folder of an arm, open for writing, with the `provenance` of a process that decodes, and
    how many questions and `prompts` it is asked for. Raises SkipbenchError where it is not
    writable, held by another process, or made with other `settings` or under other `CONDITIONS`.
    """

    def __init__(
        self,
        folder: Path,
        settings: Mapping[str, object],
        provenance: Provenance | None = None,
        prompts: int | None = None,
        limit: int | None = None,
    ) -> None:
        self.folder, self.prompts, self.limit = folder, prompts, limit
        self._beaten = 0.0
        with contextlib.ExitStack() as stack:
            stack.enter_context(held(folder))
            with writing(folder):
                self._settle(settings, provenance)
            self._held = stack.pop_all()

    def _settle(self, settings: Mapping[str, object], provenance: Provenance | None) -> None:
        row = self.folder.parent
        with alone(row / ".lock", row, wait=True):
            _write_config(row / CONFIG, {k: v for k, v in settings.items() if k != OF_ARM})
            for name in (TURNS, TEXTS):  # a line that was being written when its process died
                read_lines(row / name, repair=True, torn=True)
        _write_config(self.folder / CONFIG, {k: v for k, v in settings.items() if k == OF_ARM})
        path, now = self.folder / "provenance.json", provenance or Provenance()
        before = read_json(path, Provenance)
        if before and provenance:
            turns = list[Turn]()
            with contextlib.suppress(SkipbenchError):  # damage is for whoever reads
                turns = read_turns(self.folder)
            now = before.resumed_by(provenance, len(turns), self.folder)
        if provenance or before is None:
            write_json(path, msgspec.to_builtins(now))

    def beat(self) -> None:
        """Gives a sign of life, now and then."""
        if time.monotonic() - self._beaten > BEAT_S:
            self._beaten = time.monotonic()
            with contextlib.suppress(OSError):  # the turn is safe; a later one will tell
                os.utime(self.folder / "status.json")

    def status(self, state: str, error: str | None = None) -> None:
        """`state`: running, done, interrupted or failed."""
        asked = {"prompts": self.prompts, "limit": self.limit}
        write_status(self.folder, replace(Status.now(state, error), **asked))

    def amend(self, **known: Any) -> None:
        """Adds entries to the provenance."""
        path = self.folder / "provenance.json"
        write_json(path, json.loads(path.read_text()) | known)

    def write_metrics(self, metrics: Metrics) -> None:
        write_json(self.folder / "metrics.json", msgspec.to_builtins(metrics))

    def close(self) -> None:
        """Releases the folder's lock; a second call does nothing."""
        self._held.close()


def _write_config(path: Path, settings: Mapping[str, object]) -> None:
    """Writes settings, or raises SkipbenchError where the file has others."""
    text = yaml.safe_dump(portable(settings), sort_keys=False)
    before, own = read_yaml(path), yaml.safe_load(text)
    if before is None:
        write_atomic(path, text)
    elif keys := sorted(str(k) for k in before.keys() | own if before.get(k) != own.get(k)):
        raise SkipbenchError(
            f"{path.parent} holds a run with other settings ({', '.join(keys)}); use another "
            "results folder"
        )


def record_failure(folder: Path, reason: str) -> None:
    """Writes `failed` for a run that could not be opened, unless it is done or locked."""
    with contextlib.suppress(SkipbenchError), held(folder):
        if not read_status(folder).done:
            write_status(folder, Status.now("failed", reason))
