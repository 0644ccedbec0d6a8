"""`Clock`: seconds by phase and round; on a GPU by events and one synchronisation per sample."""

import itertools
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch

PHASES = ("prefill", "draft", "verify", "adapt", "other")
ROUND = "draft"  # the first phase of a round
PASS, WAIT = "pass", "wait"
"""Marks beside the phases: the end of the pass of a verification, a part of which it is, and the
end of a time that belongs to no round.
"""
Key = TypeVar("Key")


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the work that it leaves to a GPU included."""
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


def interleaved(
    calls: Mapping[Key, Callable[[], object]], device: torch.device, turns: int, untimed: int = 1
) -> list[dict[Key, float]]:
    """Seconds of every call in each turn, after some that are not counted: a busy moment of the
    machine does not fall on one call alone.
    """
    count = untimed + turns
    times = [{key: timed(call, device) for key, call in calls.items()} for _ in range(count)]
    return times[untimed:]


def synchronize(device: torch.device) -> None:
    """Waits for a GPU's work; a CPU has none outstanding."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Clock:
    """Counts the time since the last mark to the phase that just ended."""

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        """`now` gives seconds; on a CPU `time.thread_time` leaves out other processes."""
        self.device, self.now = device, now

    def start(self) -> None:
        """Begins a sample; waits for the device first."""
        synchronize(self.device)
        self._began = self.now()
        first = self.moment() if self.device.type == "cuda" else self._began
        self._marks: list[tuple[str, Any]] = [("", first)]

    def moment(self) -> Any:
        """Now: an event in the work of a GPU, seconds on a CPU."""
        if self.device.type != "cuda":
            return self.now()
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it so
        event.record(torch.cuda.current_stream(self.device))
        return event

    def mark(self, phase: str, at: Any = None) -> None:
        """Everything from the last mark to `at`, a `moment` (`None`: now), belongs to `phase`."""
        self._marks.append((phase, self.moment() if at is None else at))

    def stop(self) -> dict[str, float]:
        """Seconds by phase; what no mark covers of the wall-clock is `other`."""
        synchronize(self.device)
        total, seconds = self.now() - self._began, dict.fromkeys(PHASES, 0.0)
        rounds, on_gpu = list[dict[str, float]](), self.device.type == "cuda"
        for (_, before), (phase, after) in itertools.pairwise(self._marks):
            passed = before.elapsed_time(after) / 1e3 if on_gpu else after - before
            if phase == WAIT:
                continue
            seconds["verify" if phase == PASS else phase] += passed
            if phase == ROUND:
                rounds.append(dict.fromkeys((*PHASES, PASS), 0.0))
            if rounds:
                rounds[-1][phase] += passed
        self.round_s = [sum(each.values()) for each in rounds]
        """Seconds of each round, from its draft to the end of its adaptation."""
        self.draft_s = [each["draft"] for each in rounds]
        self.pass_s = [each[PASS] for each in rounds]
        """Of each round's verification, the pass alone."""
        seconds["other"] += max(0.0, total - sum(seconds.values()))
        return seconds
