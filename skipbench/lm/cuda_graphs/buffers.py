"""`GraphBuffers`: the static buffers of one row count on one device, and the work that fills them
for a pass. Rows and lengths are rounded up to few steps, so that few graphs serve every pass.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from skipbench.lm.cuda_graphs import ops, parts
from skipbench.lm.cuda_graphs.capture import Work
from skipbench.lm.rows import TokenRows
from skipbench.lm.upload import upload, upload_into

# Chains and small trees run at their own size; a wide tree carries at most half as many rows
# again, which read no more weights.
ROW_STEPS: tuple[int, ...] = (*range(1, 17), 24, 32, 48, 64, 96, parts.MAX_ROWS)
FIRST = 256  # shortest length, in cache rows
SHAPES = 512  # kept shapes of trees and branches
NUMBERS = 4  # of `bounds`


def padded_rows(rows: int) -> int:
    """The step that holds `rows`, 1 to `parts.MAX_ROWS`."""
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
    """Buffers that all sub-layers of a row count share. R rows, D hidden, d head, G query heads a
    key head, B bucket.

    Attributes:
        hidden: [R, D], the state; every sub-layer adds its output in place, so that any choice of
            sub-layers follows on.
        bounds: `start`, `context_len`, the first cache row written, and how many rows behind the
            first `SINKS` a draft's window hides, on the device: captured work reads the length
            here. The third equals the first except during capture.
        target: [R] cache rows that are written.
        cos, sin: [R, 1, d], the sine with the sign of `rotate_half`.
        depth, tree_mask: position of each row after the context [R], and the rows that it sees
            [R, R]; views of the bytes behind `bounds`, so that one copy brings all three.
        paths: [R, 256] cache rows of each row's last positions, which kernels of Triton read.
        masks: additive, [G * R, B] for every bucket and window in use, rows of one query head after
            the other.
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
            self.ramp = torch.arange(rows, device=device)
            self.target = self.ramp.clone()
            self.cos = torch.zeros(rows, 1, head_dim, dtype=dtype, device=device)
            self.sin = torch.zeros_like(self.cos)
            self._chain = _packed(range(rows), torch.ones(rows, rows, dtype=torch.bool).tril_())
            self._packed = upload(self._chain, device).clone()
            self.bounds, self.depth, tree_mask = torch.split(
                self._packed, [8 * NUMBERS, 8 * rows, rows * rows]
            )
            self.bounds, self.depth = self.bounds.view(torch.int64), self.depth.view(torch.int64)
            self.tree_mask = tree_mask.view(torch.bool).view(rows, rows)
            self.paths = torch.zeros(rows, parts.PATH, dtype=torch.int32, device=device)
        self._stacked: dict[tuple[int, tuple[int | None, ...]], Tensor] = {}
        self.masks: dict[tuple[int, int | None], Tensor] = {}  # views of those
        self._place, self._hidden = self.bounds[:3], 0
        self._views = {rows: self.hidden}
        self._shapes: dict[object, Tensor] = {}  # on the host
        self._shape: object = None  # of the rows that are loaded; None: a chain

    def view(self, rows: int) -> Tensor:
        """The first `rows` rows of the state: one and the same tensor object per count."""
        if rows not in self._views:
            self._views[rows] = self.hidden[:rows]
        return self._views[rows]

    def load(self, token_rows: TokenRows, hidden: int = 0) -> None:
        """Uploads positions, without waiting for the device and in one copy; for a chain only a few
        numbers.

        `hidden`: rows that a draft's window hides, for kernels of Triton.
        """
        context_len, positions = token_rows.context_len, token_rows.positions
        start, parent, key = token_rows.start, token_rows.parent, None
        if parent is not None or not isinstance(positions, range) or positions.start != context_len:
            key = (parent, *(p - context_len for p in positions))
        numbers = torch.tensor([start, context_len, start, hidden])
        if key != self._shape:
            packed = (self._chain if key is None else self._made(key, token_rows)).clone()
            packed[: 8 * NUMBERS] = numbers.view(torch.uint8)
            upload_into(self._packed, packed)
        elif context_len != start or hidden != self._hidden:
            upload_into(self.bounds, numbers)
        elif token_rows.place is None:
            self._place.fill_(context_len)
        if token_rows.place is not None:
            self._place.copy_(token_rows.place)
        self._shape, self._hidden = key, hidden
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

    def _masks_of(self, bucket: int, windows: tuple[int | None, ...]) -> Tensor:
        """Room for the masks [W, G * R, B] of a bucket: made once, since graphs of several keys,
        and sets that are captured later, hold its address. `masks` has the last ones asked for.
        """
        key = bucket, windows
        if key not in self._stacked:
            shape = (len(windows), self.group * self.rows, bucket)
            with torch.inference_mode(False):
                self._stacked[key] = torch.zeros(shape, dtype=self.dtype, device=self.device)
        self.masks.update(zip([(bucket, w) for w in windows], self._stacked[key], strict=True))
        return self._stacked[key]

    def input_preparation(
        self,
        bucket: int,
        windows: tuple[int | None, ...],
        columns: Tensor,
        cos: Tensor,
        sin: Tensor,
        backend: str,
    ) -> Work:
        """The work that turns `bounds`, `depth` and `tree_mask` into targets, rotary tables, and
        `paths` or the masks of a bucket.

        Args:
            columns: [N] numbers of all cache rows.
            cos, sin: [P, 1, d] of all positions.
        """
        if backend == ops.TRITON:
            part = parts.part_size(self.dtype, cos.shape[2])

            def place_in_one() -> None:
                parts.place(
                    self.bounds, self.depth, self.tree_mask, cos, sin,
                    self.target, self.cos, self.sin, self.paths, part,
                )  # fmt: skip

            return place_in_one
        # Not minus infinity: a part of the cache that is masked altogether stays finite.
        low = torch.finfo(self.dtype).min / 2
        masks = self._masks_of(bucket, windows)

        def place_by_torch() -> None:
            start, context_len, target, _ = self.bounds.chunk(4)
            torch.add(self.ramp, target, out=self.target)
            positions = (self.depth + context_len).clamp(max=len(cos) - 1)
            self.cos.copy_(cos.index_select(0, positions))
            self.sin.copy_(sin.index_select(0, positions))
            column = columns[:bucket]
            row = column - start  # of the token_rows
            inside = (row >= 0) & (row < self.rows)
            row = row.clamp(0, self.rows - 1)
            sees = (column < context_len) | (self.tree_mask.index_select(1, row) & inside)
            at = torch.where(inside, positions.index_select(0, row), column)
            for window, made in zip(windows, masks, strict=True):
                near = sees if window is None else sees & (positions[:, None] - at < window)
                mask = torch.zeros((), dtype=self.dtype, device=self.device).masked_fill(~near, low)
                made.view(self.group, self.rows, bucket).copy_(mask)

        return place_by_torch
