"""Signals that ask a run to end: a sample that is being measured is finished first."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGUSR2)
"""Sent by preemption, `scancel` and `kill`, and by Slurm before the time limit."""


class Interrupted(BaseException):
    """A signal has asked for the end; no Exception, so that nothing handles it as a failure."""

    def __init__(self, number: int) -> None:
        self.signal = signal.Signals(number)
        super().__init__(f"interrupted by {self.signal.name}; the same command goes on")


class SignalState:
    """Process-wide record of the last termination signal received."""

    received: int | None = None
    deferred = False

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        self.received = number
        if not self.deferred:
            self.end()

    def end(self) -> None:
        """Raises `Interrupted` if a signal was received, and ignores all that follow: what the
        first one has begun to write is finished.
        """
        if self.received is not None:
            number, self.received = self.received, None
            for known in SIGNALS:
                if signal.getsignal(known) == self.receive:
                    signal.signal(known, signal.SIG_IGN)
            raise Interrupted(number)


_state = SignalState()


@contextlib.contextmanager
def handle_signals() -> Iterator[None]:
    """Within it the signals raise `Interrupted`, unless another, as submitit, listens already."""
    main = threading.current_thread() is threading.main_thread()  # others cannot set handlers
    ours = [n for n in SIGNALS if main and signal.getsignal(n) == signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _state.receive)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def defer_signals() -> Iterator[None]:
    """A signal within it is raised as `Interrupted` at its end."""
    _state.deferred = True
    try:
        yield
    finally:
        _state.deferred = False
    _state.end()
