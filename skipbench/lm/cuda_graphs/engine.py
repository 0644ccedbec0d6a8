"""`engine=cuda_graphs`: one CUDA graph per sub-layer and row count, replayed in the order of a skip
set.

A pass uploads its position as a few numbers, replays one graph that makes masks and rotary tables
of them, then one graph per sub-layer; a skipped sub-layer is not replayed, so that a new skip set
needs no capture. The length enters in two ways: attention reads a bucket of the cache, of few
sizes, and a mask (or a length) made on the device says where in it the text ends. The graphs of a
row count and bucket are captured at first use, all sub-layers together: lazily, because most pairs
never occur; together, because a search over skip sets would otherwise meet captures in its timings.
A pass that skips nothing and keeps no states (vanilla, most verifications) replays one graph that
holds all of it.

Prompts and passes of more than MAX_ROWS rows run the fused engine's sub-layers, over the same
weights and cache. Embedding and head are the fused engine's too: one kernel and two, which a graph
would only surround with copies.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.cuda_graphs.buckets import MAX_ROWS
from skipbench.lm.cuda_graphs.capture import CudaGraphCapture, GraphCapture
from skipbench.lm.cuda_graphs.device import DeviceGraphs
from skipbench.lm.cuda_graphs.sublayers import Attention, Mlp
from skipbench.lm.engine import Engine, Sublayer, refuse_strict
from skipbench.lm.families import parts_of
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.layer import Family
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.reference import reference_instead
from skipbench.lm.rows import TokenRows

# bytes that graphs of a few row counts may take, beside weights and cache
MIN_FREE_BYTES = 512 << 20
FALLBACK_NOTE = (
    "the tokens are the same, but every kernel is launched by itself, which bounds "
    "the speed of small passes"
)
MakeCapture = Callable[[torch.device], GraphCapture]


def make_engine(
    model: Any, family: Family, cache: KVCache, *, strict: bool, spare_mib: int
) -> Engine:
    """As `MakeEngine`; the fused engine where graphs cannot be used."""
    if (other := reference_instead(model, family, cache, "cuda_graphs")) is not None:
        return other
    if reason := unsupported_reason(model):
        return replaced(FusedEngine(model, family, cache, spare_mib), reason)
    return CudaGraphsEngine(model, family, cache, strict=strict, spare_mib=spare_mib)


def replaced(fused: FusedEngine, reason: str) -> FusedEngine:
    """The fused engine with a note on what it replaces."""
    fused.add_note(f"engine=cuda_graphs: {reason}; engine=fused is used instead: {FALLBACK_NOTE}")
    return fused


def unsupported_reason(model: Any) -> str | None:
    """The reason why graphs cannot run this model on this machine; `None` if they can."""
    devices = {p.device for p in model.parameters()}
    if not torch.cuda.is_available():
        return "no CUDA device is at hand"
    others = sorted({str(d) for d in devices if d.type != "cuda"})
    if others:
        return f"weights are on {', '.join(others)}, and CUDA graphs hold work of a GPU alone"
    for device in devices:
        free, _ = torch.cuda.mem_get_info(device)
        if free < MIN_FREE_BYTES:
            return (
                f"{free >> 20} MiB are free on {device}, {MIN_FREE_BYTES >> 20} MiB is what "
                "graphs may need"
            )
    return None


class CudaGraphsEngine:
    """Sub-layers that replay one graph each."""

    name = "cuda_graphs"
    result_is_borrowed = True

    def __init__(
        self,
        model: Any,
        family: Family,
        cache: KVCache,
        *,
        strict: bool,
        spare_mib: int,
        capture: MakeCapture = CudaGraphCapture,
        backend: str | None = None,
    ) -> None:
        """`backend`: of `attention.attention_backends`; `None` takes the fastest of those that the
        capture can time.
        """
        refuse_strict(strict, "cuda_graphs")
        self.fused = FusedEngine(model, family, cache, spare_mib)
        self.kernels, self.cache = self.fused.kernels, cache
        self.embed, self.head = self.fused.embed, self.fused.head
        cache.spare = MAX_ROWS
        self.parts: dict[torch.device, DeviceGraphs] = {}
        self.sublayers: list[Sublayer] = []
        layers = zip(parts_of(model).layers, self.fused.layers, cache.devices, strict=True)
        for index, ((attention, mlp), weights, device) in enumerate(layers):
            if device not in self.parts:
                self.parts[device] = DeviceGraphs(model.config, cache, capture(device), backend)
            part, s = self.parts[device], 2 * index
            window = family.window(model.config, index)
            part.attentions[s] = Attention(attention, weights, index, window, cache)
            part.mlps[s + 1] = Mlp(mlp, weights)
            self.sublayers += [part.sublayer(i, self.fused.sublayers[i]) for i in (s, s + 1)]

    def whole_pass(self, hidden: Tensor, metadata: AttentionMetadata) -> Tensor | None:
        if len(self.parts) > 1:
            return None  # no graph spans two devices
        (part,) = self.parts.values()
        return part.whole_pass(hidden, metadata)

    def notes(self) -> list[str]:
        lines = self.fused.notes()
        if self.failed:
            lines = [
                *lines,
                f"engine=cuda_graphs: {self.failed}; passes not yet captured run as engine=fused: "
                f"{FALLBACK_NOTE}",
            ]
        return [*lines, *self.discarded()]

    def discarded(self) -> list[str]:
        """Backends of attention that were left out, a line each with the error."""
        found = {k: v for part in self.parts.values() for k, v in part.discarded.items()}
        return [f"attention backend {k} is left out: {v}" for k, v in found.items()]

    @property
    def failed(self) -> str | None:
        """The device that ran out of memory, after which no graph is captured; `None` for none."""
        return next((p.failed for p in self.parts.values() if p.failed), None)

    def allocated(self, rotary: dict[torch.device, RotaryCache]) -> Engine:
        reason = self.self_test(rotary)
        return self if reason is None else replaced(self.fused, reason)

    def self_test(self, tables: dict[torch.device, RotaryCache]) -> str | None:
        """Captures and replays one pass over an empty cache.

        Returns the reason why graphs cannot be used; `None` if they can.
        """
        at, rows = min(100, self.cache.capacity // 2), self.cache.rows
        if at == 0:
            return None
        for layer in rows:
            layer.normal_()  # zeros would hide a wrong mask
        try:
            return self._difference(TokenRows.chain(at, 1), tables) or self.failed
        except RuntimeError as error:
            return f"a sub-layer cannot be captured: {str(error).splitlines()[0]}"
        finally:
            for layer in rows:
                layer.zero_()

    def _difference(
        self, token_rows: TokenRows, tables: dict[torch.device, RotaryCache]
    ) -> str | None:
        for device, part in self.parts.items():
            metadata = AttentionMetadata(token_rows, tables[device])
            part.metadata = None
            ones = torch.ones(1, part.hidden, dtype=self.cache.dtype, device=device)
            for s in (next(iter(part.attentions)), next(iter(part.mlps))):
                found = self.sublayers[s](ones, metadata).float()
                wanted = self.fused.sublayers[s](ones, metadata).float()
                if not float((found - wanted).norm()) <= 0.02 * float((wanted - ones).norm()):
                    return (
                        f"a replayed sub-layer on {device} does not give what the fused engine "
                        "gives"
                    )
        return None
