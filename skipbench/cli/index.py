"""`index`: a parquet index of all runs and samples of a results folder."""

import os

from skipbench.cli.results import parse
from skipbench.errors import SkipbenchError
from skipbench.report.console import progress_of, show

LARGE_BYTES = 32 * 2**20
"""From so many bytes of samples on it pays to start a process per core."""


def run(arguments: list[str]) -> None:
    """Makes the index, or brings it up to date; `--fresh` reads every run again.

    Raises:
        SkipbenchError: runs that cannot be read; they are named, and the index holds the others.
    """
    from skipbench.runs.index import build

    results, words = parse(arguments, "index", ("--fresh",))
    if words:
        raise SkipbenchError(f"index takes results=FOLDER and --fresh, not {words[0]!r}")
    size = sum(
        p.stat().st_size for p in (results / "runs").glob("*/samples.jsonl") if not p.is_symlink()
    )
    workers = len(os.sched_getaffinity(0)) if size > LARGE_BYTES else 1
    with progress_of("index") as update:
        made = build(results, workers, "--fresh" in arguments, update)
    show(
        f"{results / 'index'}: {made.runs} runs, {made.samples} samples; {made.read} runs "
        f"read, {made.kept} as before"
    )
    if made.unreadable:
        raise SkipbenchError(
            f"{len(made.unreadable)} runs cannot be read: {'; '.join(made.unreadable)}"
        )
