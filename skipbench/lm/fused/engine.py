"""`engine=fused`: the same arithmetic from the same weights, in fewer and larger calls.

Queries, keys and values come from one product, gate and up from one; output products add the
residual. The weights of the Hugging Face modules become views of the fused ones.
"""

from collections.abc import Set
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
from skipbench.lm.fused.few_rows import MOST_ROWS, Product
from skipbench.lm.fused.int8 import NATIVE, Int8Weight, int8_kernel
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

IN_FULL = 16
"""Best tokens of a head in 4 bits that the model's head judges again: on `dataset=tuning` its own
first choice was always among them.
"""


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
        self.sublayers = self._sublayers(self.layers)
        self._copies: list[Int8Weight] = []
        self.quantized: dict[int, list[LayerWeights[Int8Weight]]] = {}
        """Layers by the bits of their weights."""
        self._quantized_sublayers: dict[int, list[Sublayer]] = {}
        self._quantized_heads: dict[int, Int8Weight] = {}
        self._native = self._native_pass()
        self._likely: tuple[Tensor, Product] | None = None
        self._final_norm, self._embedding = sublayers.rms_norm(parts.norm), parts.embedding.weight
        tied = parts.head.weight.data_ptr() == self._embedding.data_ptr()
        self._head = weights.fuse(model, HEAD, 1, keep=tied)
        self.kernels, self._notes = weights.kernels, weights.notes(self._embedding)

    def _sublayers(self, layers: list[LayerWeights[W]]) -> list[Sublayer]:
        made: list[Sublayer] = []
        how = self._cache, self._strict, self.padded_rows
        for index, (parts, layer) in enumerate(zip(self._parts, layers, strict=True)):
            attention = sublayers.attention(parts[0], layer, index, *how)
            made += [attention, sublayers.mlp(parts[1], layer, self._strict)]
        return made

    def _native_pass(self) -> NativePass | None:
        weights: dict[int, list[LayerWeights[Any]]] = {0: self.layers, **self.quantized}
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
        if not self._copies:
            return self._notes
        bits = " and ".join(str(b) for b in sorted({w.bits for w in self._copies}, reverse=True))
        size = (
            f"a copy of weights in {bits} bits for drafts takes {self.quantized_bytes() >> 20} MiB"
        )
        fault = self._copies[0].fault
        slow = f"; torch multiplies by it, no faster than by the weights ({fault})" if fault else ""
        return [*self._notes, size + slow]

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.embedding(self._embedding, tokens)

    def head(self, hidden: Tensor) -> Tensor:
        rows, missing = len(hidden), -len(hidden) % (self.padded_rows or 1)
        if missing:
            hidden = F.pad(hidden, (0, 0, 0, missing))
        return self._head(self._final_norm(hidden), self._most)[:rows]

    def fast(self, bits: int) -> bool:
        like = self._embedding
        if isinstance(self._head, ParallelWeight):
            return False
        if like.device.type == "cpu":
            return like.dtype in NATIVE and int8_kernel(bits)[0] is not None
        from skipbench.lm.cuda_graphs import ops

        return bits == 8 and ops.at_hand(like.device)

    def quantized_sublayers(self, bits: int) -> list[Sublayer]:
        if bits not in self._quantized_sublayers:
            made = [LayerWeights(*(self._quantized(w, bits) for w in of)) for of in self.layers]
            self.quantized[bits] = made
            self._quantized_sublayers[bits] = self._sublayers(made)
            self._native = self._native_pass()
        return self._quantized_sublayers[bits]

    def quantized_head(self, hidden: Tensor, bits: int) -> Tensor:
        if bits not in self._quantized_heads:
            self._quantized_heads[bits] = self._quantized(self._head, bits)
        hidden = self._final_norm(hidden)
        logits = self._quantized_heads[bits](hidden)
        if bits == 8:
            return logits
        across, bias = self._head.transposed()
        count = min(IN_FULL, logits.shape[1])
        return elementwise.rescore_best(logits, hidden, across.t(), bias, count)

    def quantized_bytes(self, levers: Set[str] | None = None) -> int:
        read = [w for w in self._copies if levers is None or f"int{w.bits}" in levers]
        return sum(weight.nbytes for weight in read)

    def _quantized(self, weight: Weight, bits: int) -> Int8Weight:
        if isinstance(weight, ParallelWeight):
            raise SkipbenchError(
                f"engine=fused has products of {bits} bits in one process only; use drafts without "
                f"int{bits} in method.precision, method.head and method.skip"
            )
        across, bias = weight.transposed()
        if across.device.type == "cpu":
            made = Int8Weight(across.t(), bias, None, bits)
        elif bits != 8:
            raise SkipbenchError(self._unquantized(bits))
        else:
            from skipbench.lm.cuda_graphs import int8

            known = self._copies[0].fault if self._copies else int8.int8_fault(across)
            made = int8.GpuInt8Weight(across.t(), bias, known)
        self._copies.append(made)
        return made

    def likely_head(self, hidden: Tensor, ids: Tensor) -> Tensor:
        if isinstance(self._head, ParallelWeight):
            return super().likely_head(hidden, ids)
        if self._likely is None or self._likely[0] is not ids:
            self._likely = ids, self._head.of_outputs(ids)
        few = self._likely[1](self._final_norm(hidden))
        logits = few.new_full((len(few), self._head.outputs), float("-inf"))
        return logits.index_copy_(1, ids, few)
