"""Kernels that a pass launches, counted by the operators that torch dispatches."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
NONE = {
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default,
    aten._unsafe_view.default,
    torch.ops.prim.device.default,
}  # fmt: skip
SEVERAL = {"skipbench::attend": 2}


class Launches(TorchDispatchMode):
    """Counts operators that are neither views nor allocations: on a GPU a kernel each."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[str] = []

    @property
    def count(self) -> int:
        return sum(SEVERAL.get(name, 1) for name in self.operators)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shared = (r.alias_info for r in func._schema.returns)
        if func not in NONE and not any(s is not None and not s.is_write for s in shared):
            self.operators.append(func._schema.name)
        return func(*args, **(kwargs or {}))
