"""`Clock`: seconds by phase and round; on a GPU by events and one synchronisation per sample."""

import time
from collections.abc import Callable

import torch

PHASES = ("prefill", "draft", "verify", "adapt", "other")
ROUND = "draft"  # the first phase of a round


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the work that it leaves to a GPU included."""
    synchronize(device)
    began = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    """Waits for a GPU's work; a CPU has none outstanding."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


class Clock:
    """Counts the time since the last mark to the phase that just ended."""

    def __init__(self, device: torch.device, now: Callable[[], float] = time.perf_counter) -> None:
        """`now` gives seconds; on a CPU `time.thread_time` leaves out other processes."""
        self.cuda = device.type == "cuda"
        self.device, self.now = device, now

    def start(self) -> None:
        """Begins a sample; waits for the device first."""
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.round_s: list[float] = []
        """Seconds of each round, from its draft to the end of its adaptation, after `stop`."""
        synchronize(self.device)
        if self.cuda:
            self._events: list[tuple[str, torch.cuda.Event]] = [("", self._event())]
        self._began = self._last = self.now()

    def _event(self) -> torch.cuda.Event:
        event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch leaves it so
        event.record(torch.cuda.current_stream(self.device))
        return event

    def mark(self, phase: str) -> None:
        """Everything since the last mark belongs to `phase`."""
        if self.cuda:
            self._events.append((phase, self._event()))
            return
        now = self.now()
        self._add(phase, now - self._last)
        self._last = now

    def _add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] += seconds
        if phase == ROUND:
            self.round_s.append(seconds)
        elif self.round_s:
            self.round_s[-1] += seconds

    def stop(self) -> dict[str, float]:
        """Seconds by phase; what no event covers of the wall-clock is `other`."""
        if self.cuda:
            torch.cuda.synchronize(self.device)
            total = self.now() - self._began
            for (_, before), (phase, after) in zip(self._events, self._events[1:], strict=False):
                self._add(phase, before.elapsed_time(after) / 1e3)
            self.seconds["other"] += max(0.0, total - sum(self.seconds.values()))
        else:
            self.seconds["other"] += self.now() - self._last
        return self.seconds
