"""`Cell`: one configuration with its state, from a plan to its run."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from skipbench.config.run_config import RunConfig
from skipbench.runs.provenance import config_hash, run_name
from skipbench.runs.run import Run
from skipbench.runs.state import RunState

MISSING = RunState("missing")


@dataclass
class Cell:
    """A model x method x dataset with its settings, and what became of it."""

    composed: RunConfig | None = None  # None where it is not run, and `reason` says why
    experiment: str = ""  # of whose grid it is a cell
    scale: str = ""  # of that grid
    overrides: dict[str, str] = field(default_factory=dict)  # that compose it
    keys: dict[str, object] = field(default_factory=dict)  # its row of the paper
    noise: bool = False  # vanilla against itself, which is no row of the paper's table
    reason: str | None = None  # why it is not run, or a remark on it
    runnable: bool = True  # False also where it waits for something that the user has to do
    examples: list[Any] = field(default_factory=list)  # the prompts asked for, once they are read
    run: Run | None = None  # its record, once it is read
    error: Exception | None = None  # what it ended with, or why it cannot be run
    name: str = ""  # in messages
    state: RunState = MISSING  # of its run and its jobs, for `status` and `submit`
    gpus: int | None = None  # that a job asks for; None for as many as hold the model
    unknown: bool = False  # it was submitted, and Slurm does not say whether that job is over
    logs: Sequence[Path] = ()  # of the jobs that were submitted for it

    def __post_init__(self) -> None:
        if self.composed is not None and not self.name:
            self.name = " ".join([*self.config.names.values(), self.config.label or ""]).rstrip()

    @property
    def config(self) -> RunConfig:
        """The settings of a cell that is run."""
        assert self.composed is not None
        return self.composed

    @property
    def searches(self) -> bool:
        """True if its skip set comes from its own search."""
        return self.runnable and not self.overrides.keys().isdisjoint(
            {"search", "search.iterations", "search.on"}
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The overrides that compose it, with its experiment."""
        own = ["search.own=true"] if self.searches else []
        given = [f"{key}={value}" for key, value in self.overrides.items()]
        return (f"experiment={self.experiment}", *given, *own)

    @cached_property
    def row(self) -> Path:
        """The folder of its row."""
        names = [self.config.model.name, self.config.dataset.name]
        digest = config_hash(self.config.row_record())
        return self.config.results / "runs" / run_name(names, digest)

    @property
    def filled(self) -> bool:
        """True once its skip set is known, and with it its folder."""
        return self.config.method.skip != "stored"

    @property
    def folder(self) -> Path:
        """The folder of its run, an arm of the row, once its skip set is known."""
        method = self.config.method
        return self.row / run_name([method.name], config_hash({"method": {**method.node}}))


def rows_of(cells: Sequence[Cell]) -> list[list[Cell]]:
    """The rows of cells, both in the order given: cells of one model, dataset and settings, whose
    methods take turns on every prompt.
    """
    rows: dict[Path, list[Cell]] = {}
    for cell in cells:
        rows.setdefault(cell.row, []).append(cell)
    return list(rows.values())
