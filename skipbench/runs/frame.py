"""A results folder as pandas frames."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import run_folders
from skipbench.runs.run import Run, read_run

if TYPE_CHECKING:
    import pandas


def frame(results: str | Path = "results", samples: bool = False) -> "pandas.DataFrame":
    """The runs of a results folder, one row per run; every setting and number has a column by its
    path, such as `settings.method.stop.max_steps` or `metrics.speedup.paired`.

    Args:
        results: a results folder.
        samples: one row per sample instead: `run`, model, method, dataset, counts, seconds per
            phase and `speedup`; vanilla's counts and seconds begin with `vanilla.`.

    Raises:
        SkipbenchError: there are no runs, or one cannot be read.
    """
    import pandas

    runs = [read_run(folder) for folder in run_folders(Path(results))]
    if not runs:
        raise SkipbenchError(f"{results} has no runs; give a results folder")
    rows = [row for run in runs for row in (_samples(run) if samples else [_run(run)])]
    return pandas.json_normalize(rows)


def _run(run: Run) -> dict[str, object]:
    row: dict[str, Any] = msgspec.to_builtins(run, enc_hook=str)
    provenance = row.pop("provenance", {})
    return {"run": row.pop("id"), "state": run.status.state, **row, "origin": provenance}


def _samples(run: Run) -> list[dict[str, object]]:
    names = {"run": run.id, "model": run.model, "method": run.method, "dataset": run.dataset}
    rows = []
    for s in run.samples:
        row = msgspec.to_builtins(s)
        vanilla, method = row.pop("vanilla"), row.pop("method")
        for arm, plain in ((s.vanilla, vanilla), (s.method, method)):
            sums = [sum(counts) for counts in zip(*arm.rounds, strict=True)] or [0] * 5
            counts = zip(("steps", "nodes", "accepted", "chain", "emitted"), sums, strict=True)
            plain |= {"rounds": len(arm.rounds), "tokens": len(arm.tokens), **dict(counts)}
        rows.append({**names, **row, **method, "vanilla": vanilla, "speedup": s.speedup})
    return rows
