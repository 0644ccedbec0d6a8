"""Tables made from a summary of the records, which is stored beside them and can be read back."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from skipbench.report.compared import over_lines
from skipbench.report.published import paper_of
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table
from skipbench.report.tables.runs import row_table
from skipbench.runs.reading import readable
from skipbench.runs.run import Run, plain

SMALLER = (
    "scale={scale}: another model and other data than the paper's, so that none of its numbers "
    "stands here; scale=paper has them."
)


class Summary(msgspec.Struct, omit_defaults=True):
    """The runs of a table without their samples."""

    experiment: str
    scale: str
    runs: Sequence[Run]
    columns: Sequence[str] = ()
    notes: Sequence[str] = ()  # both as `row_table` takes them
    over: str = ""  # as `row_table` takes it

    @property
    def text(self) -> str:
        """As JSON, a run per line."""
        head: dict[str, object] = {"experiment": self.experiment, "scale": self.scale}
        for name in ("columns", "notes", "over"):
            head |= {name: value} if (value := getattr(self, name)) else {}
        runs = ",\n".join(json.dumps(plain(run), allow_nan=False) for run in self.runs)
        return f'{json.dumps(head)[:-1]}, "runs": [\n{runs}\n]}}\n'


def read_summary(path: Path) -> Summary:
    """Raises SkipbenchError for a file that cannot be read, or holds no `Summary`."""
    with readable(path, "write it with python -m skipbench table NAME"):
        return msgspec.json.decode(path.read_bytes(), type=Summary)


def table_of(stored: Summary, columns: Sequence[str] = (), over: str = "") -> Table:
    """The paper's table, or that of runs; `columns` and `over` go before the stored ones."""
    over = over or stored.over
    name, scale, columns = stored.experiment, stored.scale, columns or stored.columns
    if published_beside(name, scale):
        table = paper_table(*(paper_of(name) or ("", "")), stored.runs, columns)
        lines = over_lines([run for run in stored.runs if not run.noise], over) if over else []
        return replace(table, remarks=(*lines, *table.remarks))
    smaller = [SMALLER.format(scale=scale)] if paper_of(name) else []
    title, name = (f"Experiment {name}", f"{name}-{scale}") if scale else ("", name)
    return row_table(stored.runs, columns, title, [*smaller, *stored.notes], name, over)


def check_table(name: str, scale: str, columns: Sequence[str]) -> None:
    """Raises SkipbenchError for columns that the table of an experiment has not."""
    table_of(Summary(name, scale, []), columns)


def published_beside(experiment: str, scale: str) -> bool:
    """True for a paper's table with its own models and datasets: published numbers stand in it."""
    _, table = paper_of(experiment) or ("", "")
    return scale == "paper" and table.startswith(("table", "section"))
