"""Kernels on drawn numbers, before one of them is used: on this device, do they give what torch's
operators give?
"""

import torch
from torch import Tensor

from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.ops import TRITON
from skipbench.lm.cuda_graphs.work import Attention, Mlp
from skipbench.lm.rows import TokenRows

TOLERANCE = 0.02  # of the norm; a wrong mask or position is off by 1
SMALL = 2.0**-10
"""Of a drawn state: near 1 the rounding of bfloat16 would be larger than the output that a
sub-layer with small weights adds."""
DRAWS = 5
"""States, of which most count: where two positions share a sharp attention, the rounding of a query
in bfloat16 alone moves its output by several per cent, in a state of 25.
"""
SIZE, TREE = 192, (-1, 0, 0, 1, 3)  # bucket, of which the tree crosses a border; and its rows


def differs(found: Tensor, wanted: Tensor) -> bool:
    """True where a result is not near the other."""
    return not float((found - wanted).norm()) <= TOLERANCE * float(wanted.norm())


def first_line(error: Exception) -> str:
    """What a compiler or driver said, in a line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class Trial:
    """What every backend is given: a drawn state and cache, drawn angles of positions, and the rows
    of a tree; nothing of the model's cache, which may be shorter.
    """

    def __init__(self, attention: Attention, mlp: Mlp, buffers: GraphBuffers) -> None:
        """`buffers`: of as many rows as TREE has."""
        self.attention, self.mlp, self.buffers = attention, mlp, buffers
        cached = attention.cache.rows[attention.index]
        self.state = torch.randn_like(buffers.hidden) * SMALL
        self.rows = cached.new_empty(SIZE + len(TREE), *cached.shape[1:]).normal_()
        self.columns = torch.arange(SIZE, device=cached.device)
        angles = torch.randn(SIZE, 1, cached.shape[2], device=cached.device)
        self.rope = angles.cos().to(cached.dtype), angles.sin().to(cached.dtype)
        buffers.load(TokenRows.tree(SIZE // 3 * 2 - 2, TREE))

    def results(self, backend: str, windows: tuple[int | None, ...]) -> dict[str, Tensor]:
        """What each sub-layer adds, and what attention writes."""
        buffers, rows, own = self.buffers, self.rows.clone(), backend == TRITON
        buffers.input_preparation(SIZE, windows, self.columns, *self.rope, backend)()
        works = {
            "attention": self.attention.work(buffers, SIZE, backend, own, rows),
            "MLP": self.mlp.work(buffers, backend, own),
        }
        found = dict[str, Tensor]()
        for name, work in works.items():
            buffers.hidden.copy_(self.state)
            work()
            found[name] = (buffers.hidden - self.state).float()
        return found | {"keys and values": rows.float()}


def fault(found: list[dict[str, Tensor]], wanted: list[dict[str, Tensor]]) -> str | None:
    """What is not near in most of several draws, in a line; `None` where all is."""
    for name in wanted[0]:
        off = [differs(f[name], w[name]) for f, w in zip(found, wanted, strict=True)]
        if sum(off) > len(off) // 2:
            return f"its {name} is not near that of torch"
    return None
