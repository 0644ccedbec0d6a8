"""`diff`: two folders of results, cell by cell."""

from collections.abc import Sequence
from pathlib import Path

from skipbench.cli.commands import Diff
from skipbench.cli.parser import parse
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.report.difference import CellDifference, differences


def run(arguments: Sequence[str]) -> None:
    """Prints per cell that both folders hold the ratio of their speedups with its interval, and
    what differs in where they come from.

    Raises:
        SkipbenchError: not two folders, or no cell that both hold.
        SystemExit: 1, when some ratio's interval leaves out 1.
    """
    first, second = map(Path, parse(Diff, arguments).words)
    for folder in (first, second):
        if not (folder / "runs").is_dir():
            raise SkipbenchError(f"{folder} holds no runs; give a folder of results")
    found, alone = differences(first, second)
    if not found:
        raise SkipbenchError(f"{first} and {second} hold no cell of the same settings")
    width = max(len(cell.name) for cell in found)
    show(f"{'cell':<{width}}  {'samples':>9}  {'A':>7}  {'B':>7}  B / A")
    for cell in found:
        show(line(cell, width))
    for origin in dict.fromkeys(text for cell in found for text in cell.origins):
        show(f"origin: {origin}")
    for folder, names in zip((first, second), alone, strict=True):
        if names:
            show(f"only in {folder}: {', '.join(names)}")
    apart = [cell for cell in found if cell.apart]
    show(f"{len(found)} cells in both; {len(apart)} whose interval leaves out 1")
    if apart:
        raise SystemExit(1)


def line(cell: CellDifference, width: int) -> str:
    """One cell in a line."""
    ratio = "-" if cell.ratio is None else f"{cell.ratio:.3f}"
    if cell.interval is not None:
        ratio += f" [{cell.interval[0]:.3f}, {cell.interval[1]:.3f}]" + (" *" if cell.apart else "")
    speedups = [f"{s:.3f}x" if s is not None else "-" for s in cell.speedups]
    tokens = "" if cell.same_tokens else "  other tokens"
    about = f"{cell.name:<{width}}  {cell.samples:>9}  {speedups[0]:>7}  {speedups[1]:>7}"
    return f"{about}  {ratio}{tokens}"
