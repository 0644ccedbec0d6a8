"""The terminal: results on stdout; messages, errors and progress on stderr."""

import contextlib
import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import rich.console
from rich.console import ConsoleOptions, RenderableType
from rich.control import Control
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.segment import ControlType, Segment

from skipbench.errors import printable


class Console(rich.console.Console):
    """Rich's console, with control characters of a text as escapes, such as `\\x1b`."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Segments of a renderable; its colours are not text, and stay."""
        for segment in super().render(renderable, options):
            text = segment.text
            if segment.control or text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, text.split("\n"))), segment.style)


out = Console()
err = Console(stderr=True)
LINES = 10
"""Without a terminal, a long task prints about so many lines."""

T = TypeVar("T")
Advance = Callable[[str], None]
"""Reports one finished step, with a note that replaces the last one."""


def show(what: RenderableType) -> None:
    """Prints a result; text without markup, highlighting and wrapping."""
    if isinstance(what, str):
        out.print(what, markup=False, highlight=False, soft_wrap=True)
    else:
        out.print(what)


@contextmanager
def _within(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


_machine = ContextVar("machine", default=False)


def json_lines(wanted: bool = True) -> AbstractContextManager[None]:
    """Within it, `show_result` prints one line of JSON per result."""
    return _within(_machine, wanted)


def show_result(record: Mapping[str, Any], shown: Callable[[], RenderableType]) -> None:
    """Prints a result: `record` where a machine reads, else what `shown` makes of it."""
    if is_json():
        show(json.dumps(record, allow_nan=False))
    else:
        show(shown())


def is_json() -> bool:
    """True if a machine reads the results."""
    return _machine.get()


@dataclass
class _Log:
    """Messages for files; they wait until these have names."""

    waiting: str = ""
    paths: Sequence[Path] = ()

    def write(self) -> None:
        for path in self.paths:
            # a full disk: the run itself will say so
            with contextlib.suppress(OSError), path.open("a", encoding="utf-8") as file:
                file.write(self.waiting)
        self.waiting = "" if self.paths else self.waiting


_log = ContextVar[_Log | None]("log", default=None)


def logged() -> AbstractContextManager[None]:
    """Keeps what is said within it, for the files that `log_to` names."""
    return _within(_log, _Log())


def note(text: str) -> None:
    """Adds a line with the time to the log alone."""
    if (log := _log.get()) is not None:
        log.waiting += f"{datetime.now(UTC).isoformat(timespec='seconds')} {printable(text)}\n"
        log.write()


def say_replaced(asked: str, lm: Any) -> None:
    """The notes of a model where another engine runs than was asked for; else they are for its
    record alone.
    """
    for text in lm.notes() if lm.engine.name != asked else ():
        say(text, "dim")


def log_to(paths: Sequence[Path]) -> None:
    """Names the files of the log that is open, if one is."""
    if (log := _log.get()) is not None:
        log.paths = paths
        log.write()


@contextmanager
def working(what: str) -> Iterator[None]:
    """A line on stderr while something takes its time, gone afterwards; the log keeps it."""
    note(f"{what} ...")
    if not err.is_terminal:
        yield
        return
    # no spinner: its thread would run beside what is timed
    err.print(f"{what} ...", style="dim", end="", markup=False, highlight=False)
    try:
        yield
    finally:
        err.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))


def say(text: str, style: str | None = None) -> None:
    """Prints a message, which is not part of the result."""
    note(text)
    err.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def complain(text: str) -> None:
    """Prints an error."""
    say(text, "red")


@contextmanager
def progress(name: str, total: int, done: int = 0) -> Iterator[Advance]:
    """A bar with the time left on a terminal, else a line per tenth of the steps.

    Nothing is drawn between two calls of `advance`: a refreshing thread would run inside the timed
    region.
    """
    count, begun = done, time.monotonic()

    def line(remark: str, tell: Callable[[str], None] = say) -> None:
        nonlocal count
        count += 1
        if count == total or count % max(1, total // LINES) == 0:
            left_s = (time.monotonic() - begun) / (count - done) * (total - count)
            left = f", {duration(left_s)} left" if count < total else ""
            tell(f"{name}: {count}/{total}{left}{f', {remark}' if remark else ''}")

    if not err.is_terminal:
        yield line
        return
    remark = TextColumn("{task.fields[note]}")
    columns = TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), remark
    with Progress(*columns, console=err, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(name, total=total, completed=done, note="")

        def drawn(remark: str) -> None:
            line(remark, note)
            bar.update(task, advance=1, note=remark, refresh=True)

        yield drawn


def duration(seconds: float) -> str:
    """Hours and minutes, minutes, or seconds, as text."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
