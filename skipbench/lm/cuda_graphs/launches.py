"""Kernels that a pass launches, counted by the operators that torch dispatches."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from skipbench.lm.cuda_graphs.device import PREPARE_INPUTS, DeviceGraphs
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.rows import TokenRows

aten = torch.ops.aten
NONE = {
    aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default,
    aten._unsafe_view.default,
    torch.ops.prim.device.default,
}  # fmt: skip
SEVERAL = {"skipbench::attend_parts": 2}


class Launches(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it so
    """Counts operators on a device that are neither views nor allocations: on a GPU a kernel or a
    copy each.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # likewise
        self.device = device
        self.operators: list[str] = []

    @property
    def count(self) -> int:
        return sum(SEVERAL.get(name, 1) for name in self.operators)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        shared = (r.alias_info for r in func._schema.returns)
        view = any(s is not None and not s.is_write for s in shared)
        given = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        here = not given or any(t.device.type == self.device.type for t in given)
        if here and not view and func not in NONE:
            self.operators.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def count(part: DeviceGraphs, metadata: AttentionMetadata) -> tuple[int, int]:
    """Kernels of one layer of a pass, and copies and kernels that make its positions, tables and
    paths or masks, behind a chain elsewhere; of graphs that `EagerCapture` made.
    """
    device = part.capture.device
    part.load(metadata)  # captures
    with Launches(device) as layer:
        part.replays[min(part.attentions)]()
        part.replays[min(part.mlps)]()
    chain = TokenRows.chain(metadata.start - 1, metadata.rows)
    part.load(AttentionMetadata(chain, metadata.tables))
    with Launches(device) as inputs:
        part.load(metadata)
        part.replays[PREPARE_INPUTS]()
    return layer.count, inputs.count
