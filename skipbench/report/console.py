"""The terminal: results on stdout; messages, errors and progress on stderr."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from skipbench.runs.terminal import Console

out = Console()
err = Console(stderr=True)
LINES = 10
"""Without a terminal, a long task prints about so many lines."""

Advance = Callable[[str], None]
"""Reports one finished step, with a note that replaces the last one."""


def show(what: RenderableType) -> None:
    """Prints a result; text without markup, highlighting and wrapping."""
    if isinstance(what, str):
        out.print(what, markup=False, highlight=False, soft_wrap=True)
    else:
        out.print(what)


def say(text: str, style: str | None = None) -> None:
    """Prints a message, which is not part of the result."""
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
    if err.is_terminal:
        columns = (
            TextColumn(name),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=err, transient=True, auto_refresh=False) as bar:
            task = bar.add_task(name, total=total, completed=done, note="")
            yield lambda note: bar.update(task, advance=1, note=note, refresh=True)
        return
    count, begun = done, time.monotonic()

    def line(note: str) -> None:
        nonlocal count
        count += 1
        if count == total or count % max(1, total // LINES) == 0:
            left_s = (time.monotonic() - begun) / (count - done) * (total - count)
            left = f", {_duration(left_s)} left" if count < total else ""
            say(f"{name}: {count}/{total}{left}{f', {note}' if note else ''}")

    yield line


@contextmanager
def progress_of(name: str) -> Iterator[Callable[[int, int], None]]:
    """A bar for work that knows its total only when it has begun; without a terminal nothing is
    drawn.
    """
    with Progress(console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return (
        f"{hours} h {minutes} min"
        if hours
        else f"{minutes} min {rest} s"
        if minutes
        else f"{rest} s"
    )
