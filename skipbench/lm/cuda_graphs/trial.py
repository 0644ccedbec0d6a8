"""Kernels on drawn numbers, before one of them is used: on this device, do they give what torch's
operators give?
"""

import torch
from torch import Tensor

from skipbench.lm.cuda_graphs import ops
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.work import Attention
from skipbench.lm.llama import silu_times
from skipbench.lm.rows import TokenRows

TOLERANCE = 0.02  # of the norm; a wrong mask or position is off by 1
SIZE, TREE, WIDTH = 64, (-1, 0, 0, 1, 3), 200  # bucket, rows and numbers of an MLP
Tables = tuple[Tensor, Tensor]


def differs(found: Tensor, wanted: Tensor) -> bool:
    """True where a result is not near the other."""
    return not float((found - wanted).norm()) <= TOLERANCE * float(wanted.norm())


def first_line(error: Exception) -> str:
    """What a compiler or driver said, in a line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


class AttentionTrial:
    """What every backend is given: drawn queries, keys and values, and cache."""

    def __init__(self, attention: Attention, buffers: GraphBuffers, size: int) -> None:
        self.attention, self.buffers, self.size = attention, buffers, size
        cached = attention.cache.rows[attention.index]
        self.qkv = cached.new_empty(buffers.rows, *attention.shape).normal_()
        self.rows = cached.new_empty(size + buffers.rows, *cached.shape[1:]).normal_()

    def result(self, backend: str, triton: bool) -> Tensor:
        """The output and what was written. Meanwhile `target` is `start ..`."""
        buffers, rows = self.buffers, self.rows.clone()
        start, _, written, _ = buffers.bounds.chunk(4)
        buffers.target.sub_(written - start)
        out = self.attention.attended(self.qkv, rows, buffers, self.size, backend, triton)
        written_rows = rows.index_select(0, buffers.target)
        buffers.target.add_(written - start)
        return torch.cat((out.flatten(), written_rows.flatten())).float()


def small_kernels_differ(
    attention: Attention,
    group: int,
    windows: tuple[int | None, ...],
    columns: Tensor,
    rope: Tables,
) -> str | None:
    """The first of the small kernels of `ops` whose result is not near torch's, for a tree."""
    cache, found = attention.cache, list[dict[str, list[Tensor]]]()
    cached = cache.rows[attention.index]
    gate_up = cached.new_empty(len(TREE), 2 * WIDTH).normal_()
    qkv = cached.new_empty(len(TREE), *attention.shape).normal_()
    for triton in (False, True):
        sizes = len(TREE), 1, cache.head_dim, group
        buffers = GraphBuffers(*sizes, cache.dtype, columns.device)
        buffers.load(TokenRows.tree(SIZE - 10, TREE))
        buffers.input_preparation(SIZE, windows, columns, *rope, triton)()
        rows = cached.new_zeros(SIZE, *cached.shape[1:])
        query = attention.rotated(qkv, rows, buffers, triton)
        sees = [(mask == 0).float() for mask in buffers.masks.values()]
        found.append(
            {
                "silu_times": [ops.silu_times(gate_up) if triton else silu_times(gate_up)],
                "prepare": [buffers.target, buffers.used, buffers.cos, buffers.sin, *sees],
                "rotate_and_write": [query, rows],
            }
        )
    wanted, made = found
    for name, results in wanted.items():
        for ours, torchs in zip(made[name], results, strict=True):
            if differs(ours.float(), torchs.float()):
                return name
    return None
