"""The model of the cell before, for the next cell of a table."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from skipbench.config.model import Model
from skipbench.config.run_config import RunConfig
from skipbench.config.schemas import Engine
from skipbench.data.rows import Row

if TYPE_CHECKING:  # a table of finished cells needs no torch
    from skipbench.bench.load import Loaded

KEPT_BYTES = 2 * 2**30  # larger models are not kept: they would count as taken memory for the next


class LastLoaded:
    """`load_model` that keeps the last model for a cell with the same model and engine, if it is
    small, dense and on the CPU, or else with `always`. That saves the load and the proof of
    `engine.strict`.
    """

    def __init__(self, always: bool = False) -> None:
        self._always = always
        self._key: tuple[Model, Engine] | None = None
        self._loaded: Loaded | None = None

    def holds(self, config: RunConfig) -> bool:
        """True if the model of a cell is loaded already."""
        return self._key == _key(config.model, config.engine)

    def __call__(
        self, model: Model, engine: Engine, rows: Sequence[Row] = (), tokens: int | None = None
    ) -> "Loaded":
        from skipbench.bench.load import load_model

        if self._loaded is not None and self._key == _key(model, engine):
            return self._loaded
        self._key = self._loaded = None  # its memory goes first
        loaded = load_model(model, engine, rows, tokens)
        dense = model.device == "cpu" and model.sparsity == "none"
        if self._always or (dense and loaded[0].weight_bytes <= KEPT_BYTES):
            self._key, self._loaded = _key(model, engine), loaded
        return loaded


def _key(model: Model, engine: Engine) -> tuple[Model, Engine]:
    return model, dataclasses.replace(engine, warmup=0)
