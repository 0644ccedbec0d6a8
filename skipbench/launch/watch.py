"""A command in a child process, so that somebody is left to tell how it died: the kernel kills
without a word where memory ends.
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

    def hand_on(number: int, frame: FrameType | None) -> None:
        if child is None:
            early.append(number)
            return
        child.send_signal(signal.SIGCONT)  # one that stands still would hear nothing
        child.send_signal(number)

    before = {number: signal.signal(number, hand_on) for number in HANDED_ON}
    # A handler, which no child inherits, unlike SIG_IGN.
    before[signal.SIGINT] = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        child = subprocess.Popen(command, env={**environment, WATCHED: str(os.getpid())})
        for number in early:
            hand_on(number, None)
        return child.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
