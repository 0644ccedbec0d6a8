"""The model of the cell before, for the next cell of a table."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from skipbench.config.model import Model
from skipbench.config.run_config import Engine
from skipbench.data.rows import Example

if TYPE_CHECKING:  # a table of finished cells needs no torch
    from skipbench.bench.load import Loaded

KEPT_BYTES = 2 * 2**30  # larger models are not kept: they would count as taken memory for the next


class LastLoaded:
    """`load_model` that keeps the last model, if it is small, dense and on the CPU, or else with
    `always`: the next cell of the same model and engine saves the load and the proof of strict.
    """

    def __init__(self, always: bool = False) -> None:
        self._always = always
        self._kept: tuple[tuple[Model, Engine], Loaded] | None = None

    def holds(self, model: Model, engine: Engine) -> bool:
        """True if this model is loaded already."""
        return self._kept is not None and self._kept[0] == (model, replace(engine, warmup=0))

    def __call__(
        self, model: Model, engine: Engine, rows: Sequence[Example] = (), tokens: int | None = None
    ) -> "Loaded":
        from skipbench.bench.load import load_model

        if self._kept is not None and self.holds(model, engine):
            return self._kept[1]
        self._kept = None  # its memory goes first
        loaded = load_model(model, engine, rows, tokens)
        dense = model.device == "cpu" and model.sparsity == "none"
        if self._always or (dense and loaded[0].weight_bytes <= KEPT_BYTES):
            self._kept = (model, replace(engine, warmup=0)), loaded
        return loaded
