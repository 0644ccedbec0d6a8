"""The speedups of an experiment's runs by the groups of their samples: a row per method, a column
per group, as the six subtasks of Spec-Bench.
"""

from collections.abc import Sequence

from skipbench.report.columns import MISSING, sample_count, speedup_text
from skipbench.report.tables.model import Cell, Column, Grid, Row
from skipbench.runs.measures import Metrics
from skipbench.runs.run import Run

ROW = ("dataset", "model", "method")


def group_grids(runs: Sequence[Run]) -> tuple[Grid, ...]:
    """One grid per kind of group; none where no run is of a group.

    Args:
        runs: whole ones in the order of the rows, and those of a group, which have `group`,
            `{kind: label}`.
    """
    kinds = dict.fromkeys(kind for run in runs for kind in run.group)
    return tuple(_grid(kind, runs) for kind in kinds)


def _grid(kind: str, runs: Sequence[Run]) -> Grid:
    labels = sorted({run.group[kind] for run in runs if kind in run.group})
    cells: dict[tuple[str, ...], dict[str, Cell]] = {}
    for run in sorted(runs, key=lambda run: bool(run.group)):  # whole ones give the order
        row = cells.setdefault(tuple(getattr(run, name) for name in ROW), {})
        metrics = run.metrics or Metrics()
        if kind in run.group:
            text = speedup_text(metrics.speedup.paired, metrics.speedup.ci95)
            row[run.group[kind]] = Cell(f"{text}, n {sample_count(metrics)}")
    return Grid(
        (
            *(Column(name, kind="label") for name in ROW),
            *(Column(label, group=kind) for label in labels),
        ),
        tuple(
            Row((*map(Cell, names), *(row.get(label, Cell(MISSING)) for label in labels)))
            for names, row in cells.items()
        ),
        f"Speedup by {kind}, of the same runs.",
    )
