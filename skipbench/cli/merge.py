"""`merge`: the results of several machines in one folder, without loss."""

from collections.abc import Sequence
from pathlib import Path

from skipbench.cli.commands import Merge
from skipbench.cli.parser import parse
from skipbench.console import show
from skipbench.errors import SkipbenchError


def run(arguments: Sequence[str]) -> None:
    """Merges results folders into `results=`; what is left out is named.

    Raises:
        SkipbenchError: no such folder, or something was left where it is.
    """
    from skipbench.runs.merge import merge_into

    asked = parse(Merge, arguments)
    if asked.results is None:
        raise SkipbenchError(f"merge {Merge.NEEDS}")
    sources = [Path(word) for word in asked.words]
    if missing := [str(s) for s in sources if not s.is_dir()]:
        raise SkipbenchError(f"there is no results folder {missing[0]}")
    left = []
    for source in sources:
        done = merge_into(source, asked.results)
        left += done.left
        for line in (f"{source}: {done.counts()}", *(f"  {text}" for text in done.said)):
            show(line)
    if left:
        raise SkipbenchError(
            f"{len(left)} not merged, the source holds them still: {'; '.join(left)}"
        )
