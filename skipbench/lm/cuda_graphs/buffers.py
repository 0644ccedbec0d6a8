"""`GraphBuffers`: the static buffers of one row count on one device, and the work that fills them
for a pass. Rows and lengths are rounded up to few steps, so that few graphs serve every pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from skipbench.lm.cache import upload, upload_into
from skipbench.lm.cuda_graphs import attention
from skipbench.lm.cuda_graphs.capture import Work
from skipbench.lm.rows import TokenRows

# Chains and small trees run at their own size; a wide tree carries at most half as many rows
# again, which read no more weights.
ROW_STEPS: tuple[int, ...] = (*range(1, 17), 24, 32, 48, 64, 96, attention.MAX_ROWS)
FIRST = 256  # shortest length, in cache rows
SHAPES = 512  # kept shapes of trees and branches
NUMBERS = 3  # of `bounds`


def row_step(rows: int) -> int:
    """The one of `ROW_STEPS` that holds `rows`, 1 to `attention.MAX_ROWS`."""
    return next(step for step in ROW_STEPS if step >= rows)


def bucket(end: int, total: int) -> int:
    """Cache rows that attention reads where a pass needs `end` of `total`.

    Four steps per doubling: at most a quarter more is read than needed, and a text of 8192 tokens
    passes 21 of them. All are multiples of 8, which the CUDA kernels want of a mask's rows.
    """
    size = FIRST
    while size < end:
        size += max(FIRST, 1 << (size.bit_length() - 1)) // 4
    return min(size, total // 8 * 8)


def _packed(depth: Sequence[int], tree_mask: Tensor) -> Tensor:
    """The bytes of `bounds`, of zeros, of `depth` and of `tree_mask`."""
    numbers = torch.tensor([*[0] * NUMBERS, *depth], dtype=torch.int64)
    return torch.cat((numbers.view(torch.uint8), tree_mask.flatten().view(torch.uint8)))


class GraphBuffers:
    """Buffers that all sub-layers of a row count share. R rows, D hidden, d head.

    Attributes:
        hidden: [R, D], the state; every sub-layer adds its output in place, so that any choice of
            sub-layers follows on.
        bounds: `start`, `context_len` and the first cache row written, on the device: captured
            work reads the length here. The third equals the first except during capture.
        target: [R] cache rows that are written.
        cos, sin: [R, 1, d], the sine with the sign of `rotate_half`.
        depth, tree_mask: position of each row after the context [R], and the rows that it sees
            [R, R]; views of the bytes behind `bounds`, so that one copy brings all three.
        paths: [R, 256] cache rows of each row's last positions, which kernels of Triton read.
    """

    def __init__(
        self, rows: int, hidden: int, head_dim: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.rows, self.dtype = rows, dtype
        with torch.inference_mode(False):  # else only code in inference mode could fill them
            self.hidden = torch.zeros(rows, hidden, dtype=dtype, device=device)
            self.target = torch.arange(rows, device=device)
            self.cos = torch.zeros(rows, 1, head_dim, dtype=dtype, device=device)
            self.sin = torch.zeros_like(self.cos)
            self._chain = _packed(range(rows), torch.ones(rows, rows, dtype=torch.bool).tril_())
            self._packed = upload(self._chain, device).clone()
            sizes = [8 * NUMBERS, 8 * rows, rows * rows]
            self.bounds, self.depth, tree_mask = torch.split(self._packed, sizes)
            self.bounds, self.depth = self.bounds.view(torch.int64), self.depth.view(torch.int64)
            self.tree_mask = tree_mask.view(torch.bool).view(rows, rows)
            self.paths = torch.zeros(rows, attention.PATH, dtype=torch.int32, device=device)
        self._views = {rows: self.hidden}
        self._shapes: dict[object, Tensor] = {}  # on the host
        self._shape: object = None  # of the rows that are loaded; None: a chain

    def view(self, rows: int) -> Tensor:
        """The first `rows` rows of the state: one and the same tensor object per count."""
        if rows not in self._views:
            self._views[rows] = self.hidden[:rows]
        return self._views[rows]

    def load(self, token_rows: TokenRows) -> None:
        """Uploads positions, without waiting for the device and in one copy; for a chain only a few
        numbers.
        """
        context_len, positions = token_rows.context_len, token_rows.positions
        start, parent, key = token_rows.start, token_rows.parent, None
        if parent is not None or not isinstance(positions, range) or positions.start != context_len:
            key = (parent, *(p - context_len for p in positions))
        numbers = torch.tensor([start, context_len, start])
        if key != self._shape:
            packed = (self._chain if key is None else self._made(key, token_rows)).clone()
            packed[: 8 * NUMBERS] = numbers.view(torch.uint8)
            upload_into(self._packed, packed)
        elif context_len != start:
            upload_into(self.bounds, numbers)
        else:
            self.bounds.fill_(context_len)
        self._shape = key
        if token_rows.rows < self.rows:  # else every pass would add to the state of the rows behind
            self.hidden[token_rows.rows :].zero_()

    def _made(self, key: object, token_rows: TokenRows) -> Tensor:
        if key not in self._shapes:
            if len(self._shapes) >= SHAPES:
                self._shapes.clear()
            rows = token_rows.rows
            depth = [p - token_rows.context_len for p in token_rows.positions]
            # the rows after them see themselves, and nobody sees them
            tree_mask = torch.eye(self.rows, dtype=torch.bool)
            tree_mask[:rows, :rows] = torch.from_numpy(token_rows.tree_mask())
            depth += depth[-1:] * (self.rows - rows)
            self._shapes[key] = _packed(depth, tree_mask)
        return self._shapes[key]

    def input_preparation(self, cos: Tensor, sin: Tensor) -> Work:
        """The work that turns `bounds`, `depth` and `tree_mask` into targets, rotary tables and
        `paths`; `cos`, `sin`: [P, 1, d] of all positions.
        """
        split = attention.split_size(self.dtype, cos.shape[2])

        def run() -> None:
            attention.place(
                self.bounds, self.depth, self.tree_mask, cos, sin,
                self.target, self.cos, self.sin, self.paths, split,
            )  # fmt: skip

        return run
