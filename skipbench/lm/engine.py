"""`Engine`: executes sub-layers, with the same results in every engine."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.families import modules_of
from skipbench.lm.metadata import AttentionMetadata, RotaryCache

Sublayer = Callable[[Tensor, AttentionMetadata], Tensor]
"""`hidden [T, D], metadata -> hidden [T, D]`"""
Chosen = tuple[tuple[int, ...], str]
"""Sub-layers of a pass, and the variant of their weights; empty for their own."""

States = list[Tensor] | None
"""Receives the states of a pass, where it is a list."""


class CapturedGraphs(NamedTuple):
    """CUDA graphs captured so far, the seconds that took, and what those that are held take."""

    graphs: int = 0
    seconds: float = 0.0
    mib: float = 0.0


class Variant(Protocol):
    """Other weights in the place of the model's own, for drafts: a copy made at first use."""

    @property
    def sublayers(self) -> list[Sublayer]:
        """As those of `Engine`."""

    def head(self, hidden: Tensor) -> Tensor:
        """As that of `Engine`."""


class Engine:
    """Executes sub-layers over a model's weights and a K/V cache."""

    name: str
    sublayers: list[Sublayer]  # S = 2L of them, in the order in which they run
    embed: Callable[[Tensor], Tensor]  # [T] -> [T, D]
    head: Callable[[Tensor], Tensor]  # [T, D] -> logits [T, V] through the final norm
    result_is_borrowed: bool = False
    """True if a result is a buffer that the next sub-layer overwrites."""
    padded_rows: int = 0
    """Passes run at multiples of so many rows: no bit depends on their number. 0: they do not."""
    strict: bool = False
    """Verified rows have the bits that they have alone."""
    lenient: bool = False
    """Where that ends to hold after the load, a note says so, and no error is raised."""
    kernels: Sequence[str] = ("torch",)
    """What multiplies by its weights, for the record."""

    def __init__(self, model: Any, cache: KVCache, notes: Iterable[str] = ()) -> None:
        modules = modules_of(model)
        self.cache, self._notes = cache, list(notes)
        self.output_device: torch.device = modules.head.weight.device
        devices = {*cache.devices, modules.embedding.weight.device, self.output_device}
        self.one_device = len(devices) == 1
        self.works_ahead: bool = self.output_device.type == "cuda"
        """The device works while the host reads, so that what is read may be read late."""

    def notes(self) -> list[str]:
        """Lines on the parts that this machine lacks, their replacement, and its cost."""
        return self._notes

    def verified_head(self, hidden: Tensor) -> Tensor:
        """`head` of rows that are verified."""
        return self.head(hidden)

    def identity(self) -> dict[str, str]:
        """What decides the bits of its arithmetic: fields of `Provenance`."""
        parts = torch.backends.cpu.get_cpu_capability(), torch.get_float32_matmul_precision()
        return {"native_kernels": "torch", "arithmetic": " ".join(parts)}

    def fast(self, variant: str) -> bool:
        """True if a variant of the weights has a kernel here, so that it may take less time."""
        return False

    def variant(self, name: str) -> Variant:
        """A variant of the weights. Raises SkipbenchError where the engine has none."""
        raise SkipbenchError(
            f"engine={self.name} has no products of {name}; use engine=fused, or "
            "method.precision=full"
        )

    def variant_bytes(self) -> int:
        """Bytes of the copies of weights made so far."""
        return 0

    def run(
        self, hidden: Tensor, metadata: AttentionMetadata, chosen: Chosen, states: States = None
    ) -> Tensor:
        """Runs sub-layers in turn, each on its device, [T, D] -> [T, D].

        Args:
            metadata: of the rows, padded where `padded_rows` says so; `hidden` is not.
            states: when given, receives the state before the first and after every sub-layer.
        """
        numbers, variant = chosen
        sublayers, local = (self.variant(variant) if variant else self).sublayers, metadata
        self.keep(states, hidden)
        for s in numbers:
            if not self.one_device:
                device = self.cache.devices[s // 2]
                hidden, local = hidden.to(device), metadata.on(device)
            hidden = sublayers[s](hidden, local)
            self.keep(states, hidden)
        return hidden

    def keep(self, states: States, state: Tensor) -> None:
        """Appends a state that no later pass overwrites, where states are asked for."""
        if states is not None:
            kept = state.clone() if self.result_is_borrowed else state
            states.append(kept.to(self.output_device))

    def prefill_rows(self, tokens: int) -> int:
        """Rows of a pass over a prompt of so many tokens."""
        return tokens

    def capture_ahead(self, start: int, end: int) -> None:
        """Prepares passes that begin at the cache rows `start` to `end`, with the numbers of rows
        met so far, so that nothing is captured while a text is timed.
        """

    def captured(self) -> CapturedGraphs:
        """What was captured."""
        return CapturedGraphs()

    def release(self) -> None:
        """Frees what was made for the cache, which is about to be made anew."""

    def allocated(self, rotary: dict[torch.device, RotaryCache]) -> "Engine":
        """The engine to go on with after the cache or its rotary tables were made anew."""
        return self


MakeEngine = Callable[..., Engine]  # `model, family, cache, *, strict -> Engine`
ENGINES = ("reference", "fused", "cuda_graphs")
