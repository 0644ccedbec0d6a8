"""`engine=fused`: the same arithmetic from the same weights, in fewer and larger calls.

Queries, keys and values come from one product, gate and up from one; output products add the
residual. The weights of the Hugging Face modules become views of the fused ones.
"""

from typing import Any

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
        self._int8: list[Int8Weight] = []
        self.int8_layers: list[LayerWeights[Int8Weight]] = []
        self._int8_sublayers: list[Sublayer] = []
        self._int8_head: Int8Weight | None = None
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
        weights: list[LayerWeights[Any]] = [*self.layers, *self.int8_layers]
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
        # in halves that tiles multiply; torch is faster with longer prompts
        most, half = self._native.most if self._native else 0, -(-tokens // 2)
        return half if MOST_ROWS < half <= most < tokens else tokens

    def add_note(self, note: str) -> None:
        self._notes = [*self._notes, note]

    def notes(self) -> list[str]:
        if not self._int8:
            return self._notes
        size = f"a copy of weights in 8 bits for drafts takes {self.int8_bytes() >> 20} MiB"
        fault = self._int8[0].fault
        slow = f"; torch multiplies by it, no faster than by the weights ({fault})" if fault else ""
        return [*self._notes, size + slow]

    def embed(self, tokens: Tensor) -> Tensor:
        return F.embedding(tokens, self._embedding)

    def head(self, hidden: Tensor) -> Tensor:
        rows, missing = len(hidden), -len(hidden) % (self.padded_rows or 1)
        if missing:
            hidden = F.pad(hidden, (0, 0, 0, missing))
        return self._head(self._final_norm(hidden), self._most)[:rows]

    @property
    def fast_int8(self) -> bool:
        like = self._embedding
        plain = like.device.type == "cpu" and not isinstance(self._head, ParallelWeight)
        return plain and like.dtype in NATIVE and int8_kernel()[0] is not None

    def int8_sublayers(self) -> list[Sublayer]:
        if not self._int8_sublayers:
            self.int8_layers = [LayerWeights(*map(self._quantised, w)) for w in self.layers]
            self._int8_sublayers = self._sublayers(self.int8_layers)
            self._native = self._native_pass()
        return self._int8_sublayers

    def int8_head(self, hidden: Tensor) -> Tensor:
        if self._int8_head is None:
            self._int8_head = self._quantised(self._head)
        return self._int8_head(self._final_norm(hidden))

    def int8_bytes(self) -> int:
        return sum(weight.nbytes for weight in self._int8)

    def _quantised(self, weight: Weight) -> Int8Weight:
        if isinstance(weight, ParallelWeight):
            raise SkipbenchError(
                "engine=fused has products of 8 bits in one process only; use drafts without "
                "method.precision=int8 and int8 in method.skip"
            )
        across, bias = weight.transposed()
        if across.device.type == "cpu":
            made = Int8Weight(across.t(), bias)
        else:
            from skipbench.lm.cuda_graphs import int8

            known = self._int8[0].fault if self._int8 else int8.int8_fault(across)
            made = int8.GpuInt8Weight(across.t(), bias, known)
        self._int8.append(made)
        return made

    def likely_head(self, hidden: Tensor, ids: Tensor) -> Tensor:
        if isinstance(self._head, ParallelWeight):
            return super().likely_head(hidden, ids)
        if self._likely is None or self._likely[0] is not ids:
            self._likely = ids, self._head.of_outputs(ids)
        few = self._likely[1](self._final_norm(hidden))
        logits = few.new_full((len(few), self._head.outputs), float("-inf"))
        return logits.index_copy_(1, ids, few)
