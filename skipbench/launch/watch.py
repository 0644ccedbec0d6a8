"""A command in a child process, so that a parent is left to record how it died: the kernel gives
no notice when memory ends.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import FrameType

WATCHED = "SKIPBENCH_WATCHED"
"""In the environment of a child of `watch`."""
HANDED_ON = (signal.SIGTERM, signal.SIGUSR2)


def watch(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Runs a command, hands on the signals that ask for its end, and returns its exit status, -n
    where signal n killed it.

    Ctrl-C reaches the child by itself, as one of the terminal's processes.
    """
    child: subprocess.Popen[bytes] | None = None
    early: list[int] = []

    def hand_on(number: int, frame: FrameType | None = None) -> None:
        if child is None:
            early.append(number)
            return
        child.send_signal(signal.SIGCONT)  # a stopped child would not receive the next one
        child.send_signal(number)

    # A handler, which no child inherits, unlike SIG_IGN.
    handlers = {**dict.fromkeys(HANDED_ON, hand_on), signal.SIGINT: lambda number, frame: None}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        child = subprocess.Popen(command, env={**environment, WATCHED: str(os.getpid())})
        for number in early:
            hand_on(number)
        return child.wait()
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
