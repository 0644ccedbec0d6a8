"""How far the cells of a row are, and what their logs say last."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, geometric_mean

from skipbench.console import duration
from skipbench.errors import SkipbenchError, printable
from skipbench.launch.status import CellStatus
from skipbench.runs.record import Sample, speedups
from skipbench.runs.run import Run, read_run

LOG_LINES = 5
LOG_BYTES = 4096


@dataclass(frozen=True)
class Progress:
    """Samples of a cell so far, of how many, their speedup, and seconds until its row is done."""

    samples: int = 0
    of: int | None = None
    speedup: float | None = None
    left_s: float | None = None

    def __str__(self) -> str:
        """`212/480  1.31x  ~1 h 40 min`."""
        parts = [f"{self.samples}/{self.of}" if self.of else str(self.samples)]
        parts += [f"{self.speedup:.2f}x"] if self.speedup is not None else []
        parts += [f"~{duration(self.left_s)}"] if self.left_s else []
        return "  ".join(parts) if self.samples else ""


def row_progress(row: Sequence[CellStatus]) -> list[Progress]:
    """The progress of the cells of one row, whose running arms take turns on every prompt."""
    runs = [_read(cell.folder) for cell in row]
    turns = [
        (fmean(s.method.seconds.total for s in own), fmean(s.vanilla.seconds.total for s in own))
        for cell, (_, own) in zip(row, runs, strict=True)
        if own and cell.state.state == "running"
    ]
    prompt_s = sum(method for method, _ in turns) + max((v for _, v in turns), default=0.0)
    made = list[Progress]()
    for cell, (run, own) in zip(row, runs, strict=True):
        of = run.status.prompts if run else None
        ratios = [*speedups(own).values()]
        speedup = run.speedup if run and run.done else geometric_mean(ratios) if ratios else None
        running = of is not None and cell.state.state == "running"
        left_s = prompt_s * (of - len(own)) if running and of else None
        made.append(Progress(len(own), of, speedup, left_s))
    return made


def _read(folder: Path | None) -> tuple[Run | None, Sequence[Sample]]:
    """What can be read; what is wrong with the rest is the reason of the cell's state."""
    run = None
    with contextlib.suppress(SkipbenchError):
        if folder is not None:
            return (run := read_run(folder)), run.samples
    return run, []


def last_lines(cell: CellStatus) -> list[str]:
    """The end of the newest log of a cell: of its run, or of its last job."""
    places = [*cell.logs, *([cell.folder / "run.log"] if cell.folder else [])]
    logs = [path for path in places if path.is_file()]
    if not logs:
        return []
    with max(logs, key=lambda path: path.stat().st_mtime).open("rb") as log:
        log.seek(max(0, log.seek(0, 2) - LOG_BYTES))
        text = log.read().decode(errors="replace")
    return [printable(line) for line in text.splitlines() if line.strip()][-LOG_LINES:]
