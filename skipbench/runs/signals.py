"""Signals that ask a run to end: the sample that is being measured is finished first, everything
else ends at once.
"""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""Preemption, `scancel` and `kill` send the first; Slurm sends the second ahead of the time limit,
as it is told to.
"""


class Interrupted(BaseException):
    """A signal has asked for the end; no error, so that nothing takes it for a cell's failure."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"interrupted by {self.signal.name}; the same command goes on")


class SignalState:
    """Signals belong to the process, and so does what has been heard of them."""

    def __init__(self) -> None:
        self.heard: int | None = None
        self.defer_signals = False

    def hear(self, number: int, frame: FrameType | None) -> None:
        self.heard = number
        if not self.defer_signals:
            self.end()

    def end(self) -> None:
        if self.heard is not None:
            number, self.heard = self.heard, None
            # a second one must not break off what the first one has begun to write
            for known in SIGNALS:
                if signal.getsignal(known) == self.hear:
                    signal.signal(known, signal.SIG_IGN)
            raise Interrupted(number)


_ear = SignalState()


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Within it the signals raise `Interrupted`, unless another, as submitit, listens already."""
    if threading.current_thread() is not threading.main_thread():  # Python allows no handlers there
        yield
        return
    ours = [number for number in SIGNALS if signal.getsignal(number) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _ear.hear)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """A signal within it is raised as `Interrupted` at its end: the work in it is done whole."""
    _ear.defer_signals = True
    try:
        yield
    finally:
        _ear.defer_signals = False
    _ear.end()
