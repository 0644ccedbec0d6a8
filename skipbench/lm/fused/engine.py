"""`engine=fused`: the same arithmetic from the same weights, in fewer and larger calls.

Queries, keys and values come from one product, gate and up from one; output products add the
residual. The weights of the Hugging Face modules become views of the fused ones.
"""

import hashlib
from functools import cached_property
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import Chosen, Engine, Sublayer
from skipbench.lm.families import HEAD, parts_of
from skipbench.lm.fused import elementwise, sublayers
from skipbench.lm.fused.bit_exact import MOST, padded_rows
from skipbench.lm.fused.few_rows import MOST_ROWS, Product, few_rows_kernel
from skipbench.lm.fused.int8 import NATIVE, Int8Weight, int8_kernel
from skipbench.lm.fused.native import compiled, source_of
from skipbench.lm.fused.native_pass import NativePass, native_pass
from skipbench.lm.fused.weights import (
    LayerWeights,
    ParallelWeight,
    W,
    Weight,
    Weights,
    pass_bytes,
)
from skipbench.lm.layer import Family
from skipbench.lm.metadata import AttentionMetadata


class FusedEngine(Engine):
    """Sub-layers of families whose layers are Llama's."""

    name = "fused"

    def __init__(
        self, model: Any, family: Family, cache: KVCache, spare_mib: int, strict: bool = False
    ) -> None:
        """
        Args:
            spare_mib: memory that second layouts of weights may take, MiB.
            strict: verified rows pass attention with the bits of one, and products `MOST` at once;
                on a GPU passes run at `MOST` rows.
        """
        weights, parts = Weights(spare_mib, pass_bytes(model)), parts_of(model)
        self.padded_rows = padded_rows(parts.embedding.weight.device) if strict else 0
        if self.padded_rows:
            cache.spare = 2 * MOST  # of a padded pass, and of a padded row behind it
        self._most = MOST if strict else None
        self._cache, self._strict, self._parts = cache, strict, parts.layers
        windows = [attention.window for attention, _ in parts.layers if attention.window]
        self._window = min(windows, default=None)
        self.layers = [
            LayerWeights(
                weights.fuse(attention.module, family.qkv, len(parts.layers)),
                weights.fuse(attention.module, (family.output,), len(parts.layers)),
                weights.fuse(mlp.module, family.gate_up, len(parts.layers)),
                weights.fuse(mlp.module, (family.down,), len(parts.layers)),
            )
            for attention, mlp in parts.layers
        ]
        self.sublayers = self.made_of(self.layers)
        self._copy = Int8Copy(self)
        self._native = self._native_pass()
        self._likely: tuple[Tensor, Product] | None = None
        self.final_norm, self._embedding = sublayers.rms_norm(parts.norm), parts.embedding.weight
        tied = parts.head.weight.data_ptr() == self._embedding.data_ptr()
        self.head_weight = weights.fuse(model, HEAD, 1, keep=tied)
        self.kernels, self._notes = weights.kernels, weights.notes(self._embedding)

    def made_of(self, layers: list[LayerWeights[W]]) -> list[Sublayer]:
        made: list[Sublayer] = []
        how = self._cache, self._strict, self.padded_rows
        for index, (parts, layer) in enumerate(zip(self._parts, layers, strict=True)):
            attention = sublayers.attention(parts[0], layer, index, *how)
            made += [attention, sublayers.mlp(parts[1], layer, self._strict)]
        return made

    def take_native(self, **variants: list[LayerWeights[Int8Weight]]) -> None:
        """Makes the native pass anew, with these variants of the layers besides their own."""
        self._native = self._native_pass(**variants)

    def _native_pass(self, **variants: list[LayerWeights[Int8Weight]]) -> NativePass | None:
        weights: dict[str, list[LayerWeights[Any]]] = {"": self.layers, **variants}
        return None if self.padded_rows else native_pass(self._parts, self._cache, weights)

    def at_once(
        self,
        hidden: Tensor,
        metadata: AttentionMetadata,
        chosen: Chosen,
        states: list[Tensor] | None = None,
    ) -> Tensor | None:
        if self._native is None or metadata.rows > self._native.most:
            return None
        attends = elementwise.attends(metadata, hidden, self._strict)
        if not attends or not metadata.native(self._window):
            return None
        return self._native(hidden, metadata, chosen, states)

    def prefill_rows(self, tokens: int) -> int:
        # in pieces that tiles multiply
        most = self._native.most if self._native else 0
        return -(-tokens // -(-tokens // most)) if most > MOST_ROWS else tokens

    def add_note(self, note: str) -> None:
        self._notes = [*self._notes, note]

    def notes(self) -> list[str]:
        return [*self._notes, *self._copy.notes()]

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.embedding(self._embedding, tokens)

    def head(self, hidden: Tensor) -> Tensor:
        rows, missing = len(hidden), -len(hidden) % (self.padded_rows or 1)
        if missing:
            hidden = F.pad(hidden, (0, 0, 0, missing))
        return self.head_weight(self.final_norm(hidden), self._most)[:rows]

    def identity(self) -> dict[str, str]:
        found, like = super().identity(), self._embedding
        kernel = few_rows_kernel(like.dtype)[0] if like.device.type == "cpu" else None
        if kernel is None:
            return found
        sha256 = hashlib.sha256(compiled(source_of(kernel)).read_bytes()).hexdigest()[:8]
        return {"native_kernels": kernel, "arithmetic": f"{found['arithmetic']} {sha256}"}

    def fast(self, variant: str) -> bool:
        like = self._embedding
        if isinstance(self.head_weight, ParallelWeight):
            return False
        if like.device.type == "cpu":
            return like.dtype in NATIVE and int8_kernel()[0] is not None
        from skipbench.lm.cuda_graphs import ops

        return ops.at_hand(like.device)

    def variant(self, name: str) -> "Int8Copy":
        return self._copy

    def variant_bytes(self) -> int:
        return sum(weight.nbytes for weight in self._copy.weights)

    def likely_head(self, hidden: Tensor, ids: Tensor) -> Tensor:
        if isinstance(self.head_weight, ParallelWeight):
            return super().likely_head(hidden, ids)
        if self._likely is None or self._likely[0] is not ids:
            self._likely = ids, self.head_weight.of_outputs(ids)
        few = self._likely[1](self.final_norm(hidden))
        logits = few.new_full((len(few), self.head_weight.outputs), float("-inf"))
        return logits.index_copy_(1, ids, few)


class Int8Copy:
    """The weights of an engine in 8 bits; layers and head are quantised at first use."""

    def __init__(self, engine: FusedEngine) -> None:
        self._engine = engine
        self.weights: list[Int8Weight] = []

    @cached_property
    def layers(self) -> list[LayerWeights[Int8Weight]]:
        made = [LayerWeights(*map(self._quantized, weights)) for weights in self._engine.layers]
        self._engine.take_native(int8=made)
        return made

    @cached_property
    def sublayers(self) -> list[Sublayer]:
        return self._engine.made_of(self.layers)

    @cached_property
    def _head(self) -> Int8Weight:
        return self._quantized(self._engine.head_weight)

    def head(self, hidden: Tensor) -> Tensor:
        return self._head(self._engine.final_norm(hidden))

    def notes(self) -> list[str]:
        """A line on its size, and on what multiplies by it."""
        if not self.weights:
            return []
        mib, fault = self._engine.variant_bytes() >> 20, self.weights[0].fault
        slow = f"; torch multiplies by it, no faster than by the weights ({fault})" if fault else ""
        return [f"a copy of weights in 8 bits for drafts takes {mib} MiB{slow}"]

    def _quantized(self, weight: Weight) -> Int8Weight:
        if isinstance(weight, ParallelWeight):
            raise SkipbenchError(
                "engine=fused has products of 8 bits in one process only; use drafts without int8 "
                "in method.precision, method.head and method.skip"
            )
        across, bias = weight.transposed()
        if across.device.type == "cpu":
            made = Int8Weight(across.t(), bias)
        else:
            from skipbench.lm.cuda_graphs import int8

            known = self.weights[0].fault if self.weights else int8.int8_fault(across)
            made = int8.GpuInt8Weight(across.t(), bias, known)
        self.weights.append(made)
        return made
