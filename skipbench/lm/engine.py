"""`Engine`: executes sub-layers, with the same results in every engine."""

from collections.abc import Callable
from importlib import import_module
from typing import Any, Protocol

import torch
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.layer import Family
from skipbench.lm.metadata import AttentionMetadata, RotaryCache

Sublayer = Callable[[Tensor, AttentionMetadata], Tensor]
"""`hidden [T, D], metadata -> hidden [T, D]`"""
SPARE_MIB = 512


class Engine(Protocol):
    """Executes sub-layers over a model's weights and a K/V cache; engines inherit the defaults."""

    name: str
    sublayers: list[Sublayer]
    """S = 2L of them, in the order in which they run."""
    kernels: dict[str, str]
    """Layouts of the weights by shape `INxOUT`, where the engine chooses any."""
    result_is_borrowed: bool = False
    """True if a result is a buffer that the next sub-layer overwrites."""

    def notes(self) -> list[str]:
        """Lines on the parts that this machine lacks, their replacement, and its cost."""
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """[T] -> [T, D]"""
        ...

    def head(self, hidden: Tensor) -> Tensor:
        """[T, D] -> logits [T, V] through the final norm."""
        ...

    def whole_pass(self, hidden: Tensor, metadata: AttentionMetadata) -> Tensor | None:
        """All sub-layers at once, [T, D] -> [T, D]; `None` where the engine runs them one by
        one.
        """
        return None

    def allocated(self, rotary: dict[torch.device, RotaryCache]) -> "Engine":
        """Called whenever the cache or its rotary tables were made anew.

        Returns the engine to go on with.
        """
        return self


class MakeEngine(Protocol):
    """Makes an engine, or where it cannot run here another one whose notes say why."""

    def __call__(
        self, model: Any, family: Family, cache: KVCache, *, strict: bool, spare_mib: int
    ) -> Engine: ...


ENGINES = {
    "reference": "skipbench.lm.reference",
    "fused": "skipbench.lm.fused.engine",
    "cuda_graphs": "skipbench.lm.cuda_graphs.engine",
}
"""Name to the module whose `make_engine` makes it."""


def engine_factory(name: str) -> MakeEngine:
    """Raises SkipbenchError for an unknown name."""
    if name not in ENGINES:
        raise SkipbenchError(f"engine={name}; wanted one of {', '.join(ENGINES)}")
    make: MakeEngine = import_module(ENGINES[name]).make_engine
    return make


def refuse_strict(strict: bool, name: str) -> None:
    """Raises SkipbenchError where an engine without a strict mode is asked for it."""
    if strict:
        raise SkipbenchError(
            f"engine.strict=true needs engine=fused, not {name}; use that, or engine.strict=false"
        )
