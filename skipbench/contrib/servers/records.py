"""The folder of a bench of servers: `requests.jsonl` has a line per request, `verdicts.jsonl` the
oracle's verdicts, `config.json` the settings.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from skipbench.runs.files import read_lines, write_atomic
from skipbench.runs.reading import readable

CONFIG, REQUESTS, VERDICTS = "config.json", "requests.jsonl", "verdicts.jsonl"
Verdicts = Mapping[tuple[str, int, str], str]
"""By arm, clients and prompt."""
_Verdict = tuple[str, int, str, str]


class DraftCounts(Struct, frozen=True, omit_defaults=True):
    """What became of drafts: verifications, proposed tokens, accepted ones; None: not told."""

    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    histogram: list[int] = []  # verifications that accepted 0, 1, 2, ... tokens


class Record(Struct, kw_only=True, omit_defaults=True):
    """One request, in a form that `verify` reads.

    Attributes:
        turn: the arm's turn in which it was asked: when its process began, and the block.
        at: when its last try began, in seconds since 1970.
        seconds: from there to the last text, `ttft_s` to the first, on an open connection.
        tokens: as the server's `usage` counts them; without one its events with text.
        acceptance: as the answer tells it.
        counted: by the server's counters, of the turn that this request ended.
        faults: what went wrong, tries before the last among them.
        error: the fault of the last try, where there is no answer.
    """

    arm: str
    concurrency: int
    turn: str
    id: str
    question: str
    groups: dict[str, str]
    request: dict[str, Any]
    response: dict[str, Any] | None = None
    at: float = 0.0
    seconds: float = 0.0
    ttft_s: float = 0.0
    tokens: int = 0
    acceptance: DraftCounts | None = None
    counted: DraftCounts | None = None
    faults: list[str] = []
    error: str = ""

    @property
    def texts(self) -> list[str]:
        """What was said: the answer, then any reasoning before it."""
        choice = self.response["choices"][0] if self.response else {}
        said = choice.get("message") or {"content": choice.get("text", "")}
        return [text for name, text in said.items() if name != "role"]

    @property
    def itl_s(self) -> float | None:
        """Seconds per token after the first."""
        return (self.seconds - self.ttft_s) / (self.tokens - 1) if self.tokens > 1 else None


def read_records(folder: Path, repair: bool = False) -> list[Record]:
    """The records of a bench without a torn last line, which `repair` cuts off the file."""
    with readable(path := folder / REQUESTS):
        lines = read_lines(path, repair, torn=True)
        return [msgspec.json.decode(line, type=Record) for _, line in lines]


def read_verdicts(folder: Path) -> Verdicts:
    """The oracle's verdicts on the answers of a bench; none where no checkpoint was given."""
    with readable(path := folder / VERDICTS):
        lines = (msgspec.json.decode(line, type=_Verdict) for _, line in read_lines(path))
        return {(arm, clients, name): kind for arm, clients, name, kind in lines}


def write_verdicts(folder: Path, verdicts: Verdicts) -> None:
    lines = (msgspec.json.encode((*key, kind)).decode() for key, kind in verdicts.items())
    write_atomic(folder / VERDICTS, "".join(f"{line}\n" for line in lines))
