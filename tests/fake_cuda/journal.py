"""What was found, by phase of the decoding loop, with file and line."""

import os
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import skipbench
from skipbench.profile.clock import PASS, PHASES, WAIT

SOURCE = os.path.dirname(skipbench.__file__) + os.sep
"""Folder of the package; a checkout or an environment may be called `skipbench`, too."""


@dataclass(frozen=True)
class Found:
    """One thing that the host did to the device.

    Attributes:
        kind: `read` (the host waits for a value), `wait` (for an event), `pageable` (for a copy to
            the device), `upload` (a copy that it does not wait for), `capture` (what no capture may
            contain), `kernel` (attention in the math kernel, or a mask that another one refuses),
            `order` (memory that another stream may still be using), `graph` (a graph whose memory
            or numbers are no longer right).
    """

    kind: str
    what: str
    where: str


class Journal:
    """What was found, by phase of the decoding loop."""

    def __init__(self) -> None:
        self.capturing = False
        self.clear()

    def clear(self) -> None:
        self.phases: dict[str, list[Found]] = {phase: [] for phase in ("", *PHASES)}
        self.since: list[Found] = []

    def add(self, kind: str, what: str, where: str | None = None) -> None:
        if self.capturing and kind in ("read", "wait", "pageable", "upload"):
            kind = "capture"
        self.since.append(Found(kind, what, where or here()))

    def mark(self, phase: str) -> None:
        self.phases[{PASS: "verify", WAIT: "other"}.get(phase, phase)] += self.since
        self.since = []

    def count(self, phase: str, *kinds: str) -> int:
        return sum(found.kind in kinds for found in self.phases[phase])

    def lines(self, *kinds: str) -> list[str]:
        """Every distinct finding of these kinds, with its place and how often it occurred."""
        found = [*self.since, *(f for phase in self.phases.values() for f in phase)]
        counted = Counter(f"{f.where}: {f.what}" for f in found if f.kind in kinds)
        return [f"{line} ({count} times)" for line, count in counted.items()]


def here() -> str:
    """File and line of the innermost frame inside the package, or inside a test."""
    frame, test = sys._getframe(2), "?"
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(SOURCE):
            return f"{name.removeprefix(SOURCE)}:{frame.f_lineno}"
        if test == "?" and Path(name).name.startswith("test_"):
            test = f"{Path(name).name}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]  # None ends the loop
    return test


class PhaseClock:
    """Stands in the place of `Clock` and sorts the journal by phase."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def start(self) -> None:
        self.journal.mark("")

    def moment(self) -> None:
        pass

    def mark(self, phase: str, at: None = None) -> None:
        self.journal.mark(phase)

    def stop(self) -> dict[str, float]:
        self.journal.mark("other")
        return dict.fromkeys(PHASES, 0.0)

    draft_s = pass_s = round_s = ()
