"""`engine=cuda_graphs`: one CUDA graph per sub-layer and row count, replayed in the order of a skip
set, so that a new set needs no capture.

A pass uploads its position as a few numbers and replays one graph that makes rotary tables, and
paths or masks of them, then one graph per sub-layer. Attention reads a bucket of the cache, of few
sizes. A bucket's graphs are captured together at first use: a search over skip sets would otherwise
meet captures in its timings. A pass that skips nothing and keeps no states replays one graph of it
all, and so does a set that is used often.
Longer prompts, passes of more than MAX_ROWS rows and the embedding are the fused engine's.
"""

import math
from collections.abc import Callable
from functools import cached_property
from statistics import median
from typing import Any

import torch
from torch import Tensor

from skipbench.errors import NotStrictError
from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs import on_cpu as on_cpu  # registers
from skipbench.lm.cuda_graphs.capture import CudaGraphCapture, EagerCapture
from skipbench.lm.cuda_graphs.device import DeviceGraphs
from skipbench.lm.cuda_graphs.ops import at_hand
from skipbench.lm.cuda_graphs.parts import MAX_ROWS
from skipbench.lm.cuda_graphs.products import ROWS
from skipbench.lm.cuda_graphs.work import Attention, Mlp, Normed
from skipbench.lm.engine import Chosen, Engine, Sublayer
from skipbench.lm.families import parts_of
from skipbench.lm.fused.engine import FusedEngine, fused_engine
from skipbench.lm.fused.weights import LayerWeights
from skipbench.lm.layer import Family
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.rows import TokenRows

DRAWS, SMALL = 11, 2.0**-10  # draws of the self-test, and the size of their states
MIN_FREE_BYTES = 512 << 20  # for graphs of a few row counts, beside weights and cache
SHORT_PROMPT = 2 * MAX_ROWS  # tokens: in passes that replay graphs; launches bound such a prompt
FALLBACK_NOTE = (
    "the tokens are the same, but every kernel is launched by itself, which bounds "
    "the speed of small passes"
)


def replaced(fused: FusedEngine, reason: str) -> FusedEngine:
    """The fused engine with a note on what it replaces."""
    fused.add_note(f"engine=cuda_graphs: {reason}; engine=fused is used instead: {FALLBACK_NOTE}")
    return fused


def unsupported_reason(model: Any) -> str | None:
    """The reason why graphs cannot run this model on this machine; `None` if they can."""
    devices = {p.device for p in model.parameters()}
    if not torch.cuda.is_available():
        return "no CUDA device is at hand"
    if others := sorted({str(d) for d in devices if d.type != "cuda"}):
        return f"weights are on {', '.join(others)}, and CUDA graphs hold work of a GPU alone"
    for device in devices:
        if not at_hand(device):
            return "Triton is not installed"
        free, _ = torch.cuda.mem_get_info(device)
        if free < MIN_FREE_BYTES:
            needed = f"{MIN_FREE_BYTES >> 20} MiB is what graphs may need"
            return f"{free >> 20} MiB are free on {device}, {needed}"
    return None


BACKEND_ERRORS = (RuntimeError, AttributeError, TypeError, ImportError)
"""Of a backend whose operator is missing or wants other arguments."""


class CudaGraphsEngine(Engine):
    """Sub-layers that replay one graph each."""

    name = "cuda_graphs"
    result_is_borrowed = True
    kernels = "torch", "triton"

    def __init__(
        self,
        model: Any,
        family: Family,
        cache: KVCache,
        *,
        strict: bool,
        capture: Callable[[torch.device], EagerCapture] = CudaGraphCapture,
    ) -> None:
        """
        Args:
            strict: rows have the bits that they have alone, whatever their number, by kernels of
                Triton.
        """
        self.strict = strict
        self.fused = fused_engine(model, family, cache)
        if capture is EagerCapture:
            self.fused.add_note("engine=cuda_graphs: its work is called, no graph is captured")
        self.cache = cache
        self.embed = self.fused.embed
        self._head = Normed(parts_of(model).norm, self.fused.head_weight)
        cache.spare = MAX_ROWS
        self.parts = {
            device: DeviceGraphs(model.config, cache, capture(device), strict)
            for device in dict.fromkeys(cache.devices)
        }
        self._layers = parts_of(model).layers
        self._firsts: dict[str, int] = {}  # numbers of the first graphs, by variant of the weights
        self._variants: dict[str, GraphVariant] = {}
        self.sublayers = self.made_of(self.fused.layers, self.fused.sublayers)

    def made_of(
        self, layers: list[LayerWeights], eager: list[Sublayer], variant: str = ""
    ) -> list[Sublayer]:
        """Sub-layers of the model's weights, or of a variant of them, whose graphs follow those
        made before; what was captured goes.
        """
        first = len(eager) * len(self._firsts)
        self._firsts[variant] = first
        made, places = list[Sublayer](), zip(self._layers, layers, self.cache.devices, strict=True)
        for index, ((attention, mlp), weights, device) in enumerate(places):
            part, s = self.parts[device], first + 2 * index
            part.attentions[s] = Attention(attention, weights, index, self.cache)
            part.mlps[s + 1] = Mlp(mlp, weights)
            made += [part.sublayer(i, eager[i - first]) for i in (s, s + 1)]
            part.forget()
        return made

    def head(self, hidden: Tensor) -> Tensor:
        own = self.strict or len(hidden) <= ROWS
        return self._head(hidden, True) if own else self.fused.head(hidden)

    def fast(self, variant: str) -> bool:
        return self.fused.fast(variant)

    def variant(self, name: str) -> "GraphVariant":
        if name not in self._variants:
            self._variants[name] = GraphVariant(self, name)
        return self._variants[name]

    def variant_bytes(self) -> int:
        return self.fused.variant_bytes()

    def at_once(
        self,
        hidden: Tensor,
        metadata: AttentionMetadata,
        chosen: Chosen,
        states: list[Tensor] | None = None,
    ) -> Tensor | None:
        if len(self.parts) > 1 or states is not None:
            return None  # no graph spans two devices
        (part,) = self.parts.values()
        numbers, variant = chosen
        first = self._firsts[variant]
        return part.at_once(hidden, metadata, tuple(s + first for s in numbers))

    def prefill_rows(self, tokens: int) -> int:
        return MAX_ROWS if tokens <= SHORT_PROMPT else tokens

    def capture_ahead(self, start: int, end: int) -> None:
        for part in self.parts.values():
            part.capture_ahead(start, end)

    def captured(self) -> tuple[int, float]:
        parts = self.parts.values()
        return sum(part.graphs for part in parts), sum(part.seconds for part in parts)

    def notes(self) -> list[str]:
        lines = self.fused.notes()
        if failed := self._failed():
            note = f"engine=cuda_graphs: {failed}; passes not yet captured run as engine=fused: "
            lines = [*lines, note + FALLBACK_NOTE]
        return lines

    def _failed(self) -> str | None:
        return next((p.failed for p in self.parts.values() if p.failed), None)

    def allocated(self, rotary: dict[torch.device, RotaryCache]) -> Engine:
        reason = self.self_test(rotary)
        if reason is None:
            return self
        if self.strict:
            raise NotStrictError(
                f"engine.strict=true cannot be kept by engine=cuda_graphs: {reason}; use "
                "engine=fused, or engine.strict=false"
            )
        return replaced(self.fused, reason)

    @torch.inference_mode()
    def self_test(self, tables: dict[torch.device, RotaryCache]) -> str | None:
        """The reason why graphs cannot be used, by passes over drawn states and cache rows,
        captured and replayed; `None` if they can.
        """
        at, rows = min(100, self.cache.capacity // 2), self.cache.rows
        if at == 0:
            return None
        try:
            for device, part in self.parts.items():
                metadata = AttentionMetadata(TokenRows.chain(at, 1), tables[device])
                part.forget()
                for s in (next(iter(part.attentions)), next(iter(part.mlps))):
                    errors = [self._error(s, metadata, part.hidden) for _ in range(DRAWS)]
                    if median(errors) > 0.02:
                        where = f"a replayed sub-layer on {device}"
                        return f"{where} does not give what the fused engine gives"
            return self._failed()
        except BACKEND_ERRORS as error:
            return f"a sub-layer cannot be captured: {str(error).splitlines()[0]}"
        finally:
            for layer in rows:
                layer.zero_()

    def _error(self, s: int, metadata: AttentionMetadata, hidden: int) -> float:
        """Of a replayed sub-layer's output for a drawn state, relative to the fused engine's."""
        for layer in self.cache.rows:
            layer.normal_()  # zeros would hide a wrong mask
        device = self.cache.rows[s // 2].device
        state = torch.empty(1, hidden, dtype=self.cache.dtype, device=device)
        state.normal_(std=SMALL)
        found = self.sublayers[s](state, metadata).float()
        wanted = self.fused.sublayers[s](state, metadata).float()
        off, output = float((found - wanted).norm()), float((wanted - state.float()).norm())
        if not math.isfinite(off):
            return math.inf
        return 0.0 if off == 0 else off / output if output else math.inf


class GraphVariant:
    """The fused engine's variant of the weights, its sub-layers as graphs."""

    def __init__(self, engine: CudaGraphsEngine, name: str) -> None:
        self._engine, self._name, self._copy = engine, name, engine.fused.variant(name)
        self.head = self._copy.head

    @cached_property
    def sublayers(self) -> list[Sublayer]:
        eager = self._copy.sublayers
        return self._engine.made_of(self._copy.layers, eager, self._name)
