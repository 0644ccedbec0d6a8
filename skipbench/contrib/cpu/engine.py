"""`engine=fused` on a CPU, by kernels of our own in C."""

import hashlib
from typing import Any

from torch import Tensor

from skipbench.contrib.cpu.elementwise import attends, kernel_of, supports_window
from skipbench.contrib.cpu.few_rows import MOST_ROWS
from skipbench.contrib.cpu.native import compiled, source_of
from skipbench.contrib.cpu.native_pass import NativePass, native_pass
from skipbench.contrib.cpu.sublayers import CpuAttention, CpuMlp
from skipbench.contrib.cpu.weights import CpuWeights
from skipbench.lm.engine import Chosen, States, Sublayer
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.fused.weights import LayerWeights
from skipbench.lm.metadata import AttentionMetadata


class CpuEngine(FusedEngine):
    """Runs the sub-layers of few rows in one call, where every part has a kernel."""

    weights_type, attention_type, mlp_type = CpuWeights, CpuAttention, CpuMlp

    def __init__(self, *given: Any) -> None:
        self._layers: dict[str, list[LayerWeights]] = {}  # by variant, empty for the model's own
        self._native: NativePass | None = None
        super().__init__(*given)
        windows = [attention.window for attention, _ in self.modules if attention.window]
        self._window = min(windows, default=None)

    def made_of(self, layers: list[LayerWeights], variant: str = "") -> list[Sublayer]:
        self._layers[variant] = layers
        if not self.padded_rows:
            self._native = native_pass(self.modules, self.cache, self._layers)
        return super().made_of(layers, variant)

    def run(
        self, hidden: Tensor, metadata: AttentionMetadata, chosen: Chosen, states: States = None
    ) -> Tensor:
        if (
            self._native is None
            or metadata.rows > self._native.most
            or not attends(metadata, hidden, self.strict)
            or not supports_window(metadata, self._window)
        ):
            return super().run(hidden, metadata, chosen, states)
        self.keep(states, hidden)
        return self._native(hidden, metadata, chosen, states)

    def prefill_rows(self, tokens: int) -> int:
        # in pieces that tiles multiply
        most = self._native.most if self._native else 0
        return -(-tokens // -(-tokens // most)) if most > MOST_ROWS else tokens

    def identity(self) -> dict[str, str]:
        found, kernel = super().identity(), kernel_of(self.embedding)
        if kernel is None:
            return found
        sha256 = hashlib.sha256(compiled(source_of(kernel)).read_bytes()).hexdigest()[:8]
        return {"native_kernels": kernel, "arithmetic": f"{found['arithmetic']} {sha256}"}
