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
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor

from skipbench.errors import NotStrictError
from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs import on_cpu as on_cpu  # registers
from skipbench.lm.cuda_graphs.attention import MAX_ROWS, partial_bytes
from skipbench.lm.cuda_graphs.capture import CudaGraphCapture, EagerCapture
from skipbench.lm.cuda_graphs.device import DeviceGraphs
from skipbench.lm.cuda_graphs.ops import at_hand, differs
from skipbench.lm.cuda_graphs.products import ROWS
from skipbench.lm.cuda_graphs.work import Attention, Mlp, Normed
from skipbench.lm.engine import CapturedGraphs, Chosen, Engine, States, Sublayer
from skipbench.lm.families import modules_of
from skipbench.lm.fused.engine import FusedEngine, fused_engine
from skipbench.lm.fused.weights import LayerWeights
from skipbench.lm.layer import Family
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.rows import TokenRows

DRAWS, SMALL = 11, 2.0**-10  # draws of the self-test, and the size of their states
MIN_FREE_BYTES = 512 << 20  # for graphs of a few row counts, beside the parts of long texts
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
    return None if all(map(at_hand, devices)) else "Triton is not installed"


BACKEND_ERRORS = (RuntimeError, AttributeError, TypeError, ImportError)
"""Of a backend whose operator is missing or wants other arguments."""


class GraphVariant(NamedTuple):
    """The fused engine's variant of the weights, its sub-layers as graphs."""

    sublayers: list[Sublayer]
    head: Callable[[Tensor], Tensor]


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
        super().__init__(model, cache)
        self.strict, self._layers, self._loose = strict, modules_of(model).layers, ""
        self.fused = fused_engine(model, family, cache)
        if capture is EagerCapture:
            self.fused.add_note("engine=cuda_graphs: its work is called, no graph is captured")
        self.embed = self.fused.embed
        self._head = Normed(modules_of(model).norm, self.fused.head_weight)
        cache.spare = MAX_ROWS
        self.graphs = {
            device: DeviceGraphs(model.config, cache, capture(device), strict)
            for device in dict.fromkeys(cache.devices)
        }
        self._variants: dict[str, GraphVariant] = {}
        self.sublayers = self.made_of(self.fused.layers, self.fused.sublayers)

    def made_of(
        self, layers: list[LayerWeights], eager: list[Sublayer], variant: str = ""
    ) -> list[Sublayer]:
        """Sub-layers of the model's weights, or of a variant of them."""
        made, places = list[Sublayer](), zip(self._layers, layers, self.cache.devices, strict=True)
        for index, ((attention, mlp), weights, device) in enumerate(places):
            graphs, s = self.graphs[device], 2 * index
            blocks = graphs.blocks.setdefault(variant, {})
            blocks[s] = Attention(attention, weights, index, self.cache)
            blocks[s + 1] = Mlp(mlp, weights)
            made += [graphs.sublayer(i, variant, eager[i]) for i in (s, s + 1)]
        return made

    def head(self, hidden: Tensor) -> Tensor:
        return self._head(hidden, True) if len(hidden) <= ROWS else self.fused.head(hidden)

    def verified_head(self, hidden: Tensor) -> Tensor:
        return self._head(hidden, True) if self.strict else self.head(hidden)

    def refuse(self, why: str) -> None:
        """Raises NotStrictError, as a row gets other bits than alone where that is not allowed."""
        if self.strict and not self.lenient:
            instead = "use engine.strict=false, or smaller drafts or texts"
            raise NotStrictError(f"engine.strict=true cannot be kept: {why}; {instead}")
        self._loose = self._loose or why * self.strict

    def fast(self, variant: str) -> bool:
        return self.fused.fast(variant)

    def variant(self, name: str) -> GraphVariant:
        if name not in self._variants:
            copy = self.fused.variant(name)
            made = self.made_of(copy.layers, copy.sublayers, name)
            self._variants[name] = GraphVariant(made, copy.head)
        return self._variants[name]

    def variant_bytes(self) -> int:
        return self.fused.variant_bytes()

    def run(
        self, hidden: Tensor, metadata: AttentionMetadata, chosen: Chosen, states: States = None
    ) -> Tensor:
        if self.one_device and states is None:
            (graphs,) = self.graphs.values()
            if (out := graphs.at_once(hidden, metadata, chosen)) is not None:
                return out
        return super().run(hidden, metadata, chosen, states)

    def prefill_rows(self, tokens: int) -> int:
        return MAX_ROWS if tokens <= SHORT_PROMPT else tokens

    def capture_ahead(self, start: int, end: int) -> None:
        for graphs in self.graphs.values():
            graphs.capture_ahead(start, end)

    def captured(self) -> CapturedGraphs:
        each = [(g.graphs, g.seconds, g.bytes / (1 << 20)) for g in self.graphs.values()]
        return CapturedGraphs(*map(sum, zip(*each, strict=True)))

    def notes(self) -> list[str]:
        lacked = [graphs.lacked for graphs in self.graphs.values() if graphs.lacked]
        then = f"; the rest of that text ran as engine=fused: {FALLBACK_NOTE}"
        loose = [f"not all texts were strict, the default of this model: {self._loose}"]
        told = [f"engine=cuda_graphs: {why}{then}" for why in lacked] + loose * bool(self._loose)
        return [*self.fused.notes(), *told]

    def release(self) -> None:
        for graphs in self.graphs.values():
            graphs.forget()

    def allocated(self, rotary: dict[torch.device, RotaryCache]) -> Engine:
        for device, graphs in self.graphs.items():
            graphs.rope, graphs.refuse = rotary[device].rope, self.refuse
        if (reason := self.short_of() or self.self_test(rotary)) is None:
            return self
        self.refuse(f"engine=cuda_graphs: {reason}")
        return replaced(self.fused, reason)

    def short_of(self) -> str | None:
        """The reason why a device has no memory for graphs; `None` if each has."""
        size, (_, _, d) = self.cache.capacity, self.cache.rows[0].shape
        for device, graphs in self.graphs.items():
            heads = max(b.heads for b in graphs.blocks[""].values() if isinstance(b, Attention))
            needed = MIN_FREE_BYTES + partial_bytes(size, heads, d, self.cache.dtype)
            if 0 < (free := graphs.capture.free_bytes()) < needed:
                needs = f"graphs may need {needed >> 20} MiB"
                return f"{free >> 20} MiB are free on {device}, and {needs}"
        return None

    @torch.inference_mode()
    def self_test(self, tables: dict[torch.device, RotaryCache]) -> str | None:
        """The reason why graphs cannot be used, by passes over drawn states and cache rows,
        captured and replayed; `None` if they can.
        """
        at = min(100, self.cache.capacity // 2)
        if at == 0:
            return None
        try:
            state = torch.randn(1, self.fused.embedding.shape[1]) * SMALL
            state = state.to(self.output_device, self.cache.dtype)
            if differs(self.head(state).float(), self.fused.head(state).float()):
                return "the head does not give what the fused engine gives"
            for device, graphs in self.graphs.items():
                metadata = AttentionMetadata(TokenRows.chain(at, 1), tables[device])
                for s in list(graphs.blocks[""])[:2]:
                    errors = [self._error(s, metadata, graphs.hidden) for _ in range(DRAWS)]
                    if median(errors) > 0.02:
                        where = f"a replayed sub-layer on {device}"
                        return f"{where} does not give what the fused engine gives"
            return None
        except BACKEND_ERRORS as error:
            return f"a sub-layer cannot be captured: {str(error).splitlines()[0]}"
        finally:
            for layer in self.cache.rows:
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
