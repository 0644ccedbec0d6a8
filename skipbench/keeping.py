"""The commands that keep a results folder in order: `index` and `merge`."""

import os
from collections.abc import Sequence
from pathlib import Path

from rich.progress import Progress

from skipbench.cells import console
from skipbench.errors import SkipbenchError

LARGE = 32 * 2**20
"""Bytes of samples from which on it pays to start a process on every core."""


def index(arguments: Sequence[str]) -> None:
    """Makes the index of a results folder, or brings it up to date; `--fresh` reads every run again.

    Raises:
        SkipbenchError: some runs cannot be read; they are named, and the index holds the others and says so of these.
    """
    from skipbench.runs.index import build

    results, words = _results(arguments, "index", ("--fresh",))
    if words:
        raise SkipbenchError(f"index takes results=FOLDER and --fresh, not {words[0]!r}")
    size = sum(p.stat().st_size for p in (results / "runs").glob("*/samples.jsonl") if not p.is_symlink())
    workers = len(os.sched_getaffinity(0)) if size > LARGE else 1
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("index", total=None)
        made = build(
            results, workers, "--fresh" in arguments, lambda done, of: bar.update(task, completed=done, total=of)
        )
    console.print(
        f"{results / 'index'}: {made.runs} runs, {made.samples} samples; {made.read} runs read, {made.kept} as before",
        highlight=False,
        soft_wrap=True,
    )
    if made.unreadable:
        raise SkipbenchError(f"{len(made.unreadable)} runs cannot be read: {'; '.join(made.unreadable)}")


def merge(arguments: Sequence[str]) -> None:
    """Merges results folders into `results=`; what is not taken is named.

    Raises:
        SkipbenchError: no such folder, or something was left where it is.
    """
    from skipbench.runs.merge import merge_into

    results, words = _results(arguments, "merge", ())
    sources = [Path(word) for word in words]
    if not sources or not any(a.startswith("results=") for a in arguments):
        raise SkipbenchError("merge needs results folders and where to: python -m skipbench merge A B results=TARGET")
    if missing := [str(s) for s in sources if not s.is_dir()]:
        raise SkipbenchError(f"there is no results folder {missing[0]}")
    left = []
    for source in sources:
        done = merge_into(source, results)
        left += done.left
        for line in (f"{source}: {done.counts()}", *(f"  {text}" for text in done.said)):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if left:
        raise SkipbenchError(f"{len(left)} not merged, the source holds them still: {'; '.join(left)}")


def _results(arguments: Sequence[str], command: str, flags: Sequence[str]) -> tuple[Path, list[str]]:
    """The folder of `results=`, and the words that are neither a key nor one of `flags`."""
    for word in arguments:
        key = word.partition("=")[0]
        if ("=" in word and key != "results") or (word.startswith("-") and word not in flags):
            raise SkipbenchError(f"{command} does not take {word}; it takes {', '.join(('results=FOLDER', *flags))}")
    given = [a.partition("=")[2] for a in arguments if a.startswith("results=")]
    return Path(given[-1] if given else "results"), [a for a in arguments if "=" not in a and not a.startswith("-")]
