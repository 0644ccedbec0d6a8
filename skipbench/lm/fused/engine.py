"""`engine=fused`: the same arithmetic from the same weights, in fewer and larger calls.

Queries, keys and values come from one product, gate and up from one; output products add the
residual. The weights of the Hugging Face modules become views of the fused ones.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.config import extensions
from skipbench.lm.bit_exact import MOST
from skipbench.lm.cache import KVCache
from skipbench.lm.engine import Chosen, Engine, States, Sublayer
from skipbench.lm.families import HEAD, modules_of
from skipbench.lm.fused.sublayers import Attention, Mlp
from skipbench.lm.fused.weights import LayerWeights, Weights
from skipbench.lm.layer import Family
from skipbench.lm.metadata import AttentionMetadata


class FusedEngine(Engine):
    """Sub-layers of families whose layers are Llama's, by torch's kernels."""

    name = "fused"
    weights_type: type[Weights] = Weights
    attention_type: type[Attention] = Attention
    mlp_type: type[Mlp] = Mlp

    def __init__(self, model: Any, family: Family, cache: KVCache, strict: bool = False) -> None:
        """
        Args:
            strict: verified rows pass attention with the bits of one, and products `MOST` at once;
                on a GPU passes run at `MOST` rows.
        """
        super().__init__(model, cache)
        weights, modules = self.weights_type(), modules_of(model)
        if strict and self.pads:
            self.padded_rows = MOST
            cache.spare = 2 * MOST  # of a padded pass, and of a padded row behind it
        self._most = MOST if strict else None
        self.strict, self.modules = strict, modules.layers
        self.layers = [
            LayerWeights(
                weights.fuse(attention.module, family.qkv),
                weights.fuse(attention.module, ("o_proj",)),
                weights.fuse(mlp.module, family.gate_up),
                weights.fuse(mlp.module, ("down_proj",)),
            )
            for attention, mlp in modules.layers
        ]
        self.sublayers = self.made_of(self.layers)
        self._variants: dict[str, Any] = {}
        self.final_norm = self.attention_type.rms_norm(modules.norm)
        self.embedding = modules.embedding.weight
        self.head_weight = weights.fuse(model, HEAD)
        self._notes += weights.notes(self.embedding)
        made = (*(weight for layer in self.layers for weight in layer), self.head_weight)
        self.kernels = sorted({weight.kernel for weight in made})

    @property
    def pads(self) -> bool:
        """Strict passes run at `MOST` rows here, as a GPU's library has another kernel for one."""
        return self.works_ahead

    def made_of(self, layers: list[LayerWeights], variant: str = "") -> list[Sublayer]:
        """Sub-layers of the model's weights, or of a variant of them."""
        made: list[Sublayer] = []
        how = self.cache, self.strict, self.padded_rows
        for index, (modules, layer) in enumerate(zip(self.modules, layers, strict=True)):
            made.append(self.attention_type(modules[0], layer, index, *how))
            made.append(self.mlp_type(modules[1], layer, self.strict))
        return made

    def add_note(self, note: str) -> None:
        self._notes = [*self._notes, note]

    def notes(self) -> list[str]:
        return [*self._notes, *(line for v in self._variants.values() for line in v.notes())]

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.embedding(self.embedding, tokens)

    def head(self, hidden: Tensor) -> Tensor:
        rows, missing = len(hidden), -len(hidden) % (self.padded_rows or 1)
        if missing:
            hidden = F.pad(hidden, (0, 0, 0, missing))
        return self.head_weight(self.final_norm(hidden), self._most)[:rows]

    def run(
        self, hidden: Tensor, metadata: AttentionMetadata, chosen: Chosen, states: States = None
    ) -> Tensor:
        rows, padding = len(hidden), metadata.token_rows.padding
        if not padding:
            return super().run(hidden, metadata, chosen, states)
        padded = None if states is None else list[Tensor]()
        hidden = super().run(F.pad(hidden, (0, 0, 0, padding)), metadata, chosen, padded)
        if states is not None and padded is not None:
            states += [state[:rows] for state in padded]
        return hidden[:rows]

    def fast(self, variant: str) -> bool:
        return variant in extensions.registered("variant") and bool(self.variant(variant).fast)

    def variant(self, name: str) -> Any:
        if name not in self._variants:
            self._variants[name] = extensions.load("variant", name)(self)
        return self._variants[name]

    def variant_bytes(self) -> int:
        return sum(variant.nbytes for variant in self._variants.values())


def fused_engine(model: Any, family: Family, cache: KVCache, strict: bool = False) -> FusedEngine:
    """`FusedEngine`, or on a CPU the one with kernels of our own, where it is installed."""
    made = FusedEngine
    on_cpu = all(device.type == "cpu" for device in cache.devices)
    if on_cpu and "cpu" in extensions.registered("engine"):
        made = extensions.load("engine", "cpu")
    return made(model, family, cache, strict)
