"""The speedups of an experiment's runs by the groups of their samples: a row per method, a column
per group, as the six subtasks of Spec-Bench.
"""

from collections.abc import Sequence

from skipbench.report.columns import main_cells, sample_count
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
    names = list(dict.fromkeys(_names(run) for run in runs if not run.group))
    kinds = dict.fromkeys(kind for run in runs for kind in run.group)
    return tuple(_grid(kind, names, [r for r in runs if kind in r.group]) for kind in kinds)


def _names(run: Run) -> tuple[str, ...]:
    return str(run.dataset), str(run.model), str(run.method)


def _grid(kind: str, rows: Sequence[tuple[str, ...]], runs: Sequence[Run]) -> Grid:
    labels = sorted({run.group[kind] for run in runs})
    cells: dict[tuple[str, ...], dict[str, Cell]] = {row: {} for row in rows}
    for run in runs:
        metrics = run.metrics or Metrics()
        text = f"{main_cells(metrics)['speedup']}, n {sample_count(metrics)}"
        cells.setdefault(_names(run), {})[run.group[kind]] = Cell(text)
    return Grid(
        (
            *(Column(name, kind="label") for name in ROW),
            *(Column(label, group=kind) for label in labels),
        ),
        tuple(
            Row((*map(Cell, names), *(row.get(label, Cell("—")) for label in labels)))
            for names, row in cells.items()
        ),
        f"Speedup by {kind}, of the same runs.",
    )
