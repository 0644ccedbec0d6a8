"""`merge`: the results of several machines in one folder, without loss."""

from pathlib import Path

from skipbench.cli.results import parse
from skipbench.console import show
from skipbench.errors import SkipbenchError


def run(arguments: list[str]) -> None:
    """Merges results folders into `results=`; what is left out is named.

    Raises:
        SkipbenchError: no such folder, or something was left where it is.
    """
    from skipbench.runs.merge import merge_into

    results, words = parse(arguments, "merge")
    sources = [Path(word) for word in words]
    if not sources or not any(a.startswith("results=") for a in arguments):
        raise SkipbenchError(
            "merge needs results folders and where to: python -m skipbench merge A B results=TARGET"
        )
    if missing := [str(s) for s in sources if not s.is_dir()]:
        raise SkipbenchError(f"there is no results folder {missing[0]}")
    left = []
    for source in sources:
        done = merge_into(source, results)
        left += done.left
        for line in (f"{source}: {done.counts()}", *(f"  {text}" for text in done.said)):
            show(line)
    if left:
        raise SkipbenchError(
            f"{len(left)} not merged, the source holds them still: {'; '.join(left)}"
        )
