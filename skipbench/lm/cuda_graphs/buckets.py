"""Sizes that graphs are captured for: rows and lengths are rounded up to few steps, so that few
graphs serve every pass.
"""

ROW_STEPS: tuple[int, ...] = (*range(1, 17), 24, 32, 48, 64, 96, 128)
"""Chains and small trees run at their own size; a wide tree carries at most half as many rows
again, which read no more weights.
"""
MAX_ROWS = ROW_STEPS[-1]
"""Wider passes are bound by arithmetic, not by launches, and run without graphs."""
FIRST = 256
"""Shortest length, in cache rows."""


def padded_rows(rows: int) -> int:
    """The step that holds `rows`, 1 to MAX_ROWS."""
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
