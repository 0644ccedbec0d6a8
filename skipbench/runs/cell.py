"""`Cell`: one configuration with its state."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from skipbench.config.run_config import RunConfig
from skipbench.runs.provenance import config_hash, run_name


@dataclass
class Cell:
    """A configuration whose skip set is known.

    Attributes:
        examples: the prompts that are asked for, once they are read.
    """

    config: RunConfig
    examples: list[Any] = field(default_factory=list)

    @cached_property
    def row(self) -> Path:
        """The folder of its row."""
        names = [self.config.model.name, self.config.dataset.name]
        digest = config_hash(self.config.row_record())
        return self.config.results / "runs" / run_name(names, digest)

    @cached_property
    def folder(self) -> Path:
        """The folder of its run, an arm of the row."""
        method = self.config.method
        return self.row / run_name([method.name], config_hash({"method": {**method.node}}))


@dataclass
class Row:
    """Cells of one model, dataset and settings, whose methods take turns on every prompt."""

    cells: Sequence[Cell]
