"""`GraphBuffers`: the static buffers of one row count on one device, and the work that fills them
for a pass.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from skipbench.lm.rows import TokenRows
from skipbench.lm.upload import upload

SHAPES = 512  # kept shapes of trees and branches
Shape = tuple[Tensor, Tensor]
"""Depth of each row behind the committed context [R], and the tree mask [R, R]."""


class GraphBuffers:
    """Buffers that all sub-layers of a row count share. R rows, D hidden, d head, G query heads a
    key head, B bucket.

    Attributes:
        hidden: [R, D], the state; every sub-layer adds its output in place, so that any choice of
            sub-layers follows on.
        bounds: `start`, `context_len` and the first cache row written, on the device: captured work
            reads the length here. The third equals the first except during capture.
        target: [R] cache rows that are written.
        cos, sin: [R, 1, d], the sine with the sign of `rotate_half`.
        masks: additive, [G * R, B] for every bucket and window in use, rows of one query head after
            the other.
        ends: `[0, R]`, whole: `[0, B]` a bucket, used: `[end]`: what kernels for sequences of any
            length take.
    """

    def __init__(
        self,
        rows: int,
        hidden: int,
        head_dim: int,
        group: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.rows, self.group, self.dtype, self.device = rows, group, dtype, device
        with torch.inference_mode(False):  # else only code in inference mode could fill them
            self.hidden = torch.zeros(rows, hidden, dtype=dtype, device=device)
            self.bounds = torch.zeros(3, dtype=torch.int64, device=device)
            self.ramp = torch.arange(rows, device=device)
            self.target = self.ramp.clone()
            self.cos = torch.zeros(rows, 1, head_dim, dtype=dtype, device=device)
            self.sin = torch.zeros_like(self.cos)
            self.depth = self.ramp.clone()
            self.tree_mask = torch.ones(rows, rows, dtype=torch.bool, device=device).tril_()
            self.ends = upload(torch.tensor([0, rows], dtype=torch.int32), device)
            self.used = torch.zeros(1, dtype=torch.int32, device=device)
            self.masks: dict[tuple[int, int | None], Tensor] = {}
            self.whole: dict[int, Tensor] = {}
        self._views = {rows: self.hidden}
        self._chain: Shape = (self.depth.clone(), self.tree_mask.clone())
        self._shapes: dict[object, Shape] = {}
        self._shape: object = None  # of the rows that `depth` and `tree_mask` hold; None: a chain

    def view(self, rows: int) -> Tensor:
        """The first `rows` rows of the state: one and the same tensor object per count."""
        if rows not in self._views:
            self._views[rows] = self.hidden[:rows]
        return self._views[rows]

    def load(self, token_rows: TokenRows, rows: int) -> None:
        """Uploads the positions of the first `rows` rows without waiting for the device; for a
        chain only two numbers.
        """
        self.bounds.fill_(token_rows.start)
        if token_rows.context_len != token_rows.start:
            self.bounds[1].fill_(token_rows.context_len)
        chain = (
            token_rows.parent is None
            and isinstance(token_rows.positions, range)
            and token_rows.positions.start == token_rows.context_len
        )
        key = (
            None
            if chain
            else (
                token_rows.parent and token_rows.parent[:rows],
                *(p - token_rows.context_len for p in token_rows.positions[:rows]),
            )
        )
        if key != self._shape:
            depth, tree_mask = self._chain if key is None else self._made(key, token_rows, rows)
            self.depth.copy_(depth)
            self.tree_mask.copy_(tree_mask)
            self._shape = key

    def _made(self, key: object, token_rows: TokenRows, rows: int) -> Shape:
        if key not in self._shapes:
            if len(self._shapes) >= SHAPES:
                self._shapes.clear()
            depth = torch.tensor([p - token_rows.context_len for p in token_rows.positions[:rows]])
            # the rows behind see themselves, and nobody sees them
            tree_mask = torch.eye(self.rows, dtype=torch.bool)
            tree_mask[:rows, :rows] = torch.from_numpy(token_rows.tree_mask())[:rows, :rows]
            depth = torch.cat((depth, depth[-1:].expand(self.rows - rows)))
            self._shapes[key] = upload(depth, self.device), upload(tree_mask, self.device)
        return self._shapes[key]

    def input_preparation(
        self,
        bucket: int,
        windows: tuple[int | None, ...],
        columns: Tensor,
        cos: Tensor,
        sin: Tensor,
    ) -> Callable[[], None]:
        """The work that turns `bounds`, `depth` and `tree_mask` into targets, rotary tables
        and the masks of a bucket.

        Args:
            columns: [N] numbers of all cache rows.
            cos, sin: [P, 1, d] of all positions.
        """
        # Not minus infinity: a part of the cache that is masked altogether stays finite.
        low = torch.finfo(self.dtype).min / 2
        with torch.inference_mode(False):
            self.whole[bucket] = upload(torch.tensor([0, bucket], dtype=torch.int32), self.device)
            for window in windows:
                shape = (self.group * self.rows, bucket)
                self.masks[bucket, window] = torch.zeros(
                    shape, dtype=self.dtype, device=self.device
                )

        def place() -> None:
            start, context_len, target = self.bounds.chunk(3)
            torch.add(self.ramp, target, out=self.target)
            self.used.copy_(start + self.rows)
            positions = (self.depth + context_len).clamp(max=len(cos) - 1)
            self.cos.copy_(cos.index_select(0, positions))
            self.sin.copy_(sin.index_select(0, positions))
            column = columns[:bucket]
            row = column - start  # of the token_rows
            inside = (row >= 0) & (row < self.rows)
            row = row.clamp(0, self.rows - 1)
            sees = (column < context_len) | (self.tree_mask.index_select(1, row) & inside)
            at = torch.where(inside, positions.index_select(0, row), column)
            for window in windows:
                near = sees if window is None else sees & (positions[:, None] - at < window)
                mask = torch.zeros((), dtype=self.dtype, device=self.device).masked_fill(~near, low)
                self.masks[bucket, window].view(self.group, self.rows, bucket).copy_(mask)

        return place
