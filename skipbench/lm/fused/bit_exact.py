"""`engine.strict`: a verified row gets the bits that decoding it alone would give.

On the CPUs seen, norms and rotations of a low precision do not depend on how many rows share a
call, products do not up to `MOST` rows, and our own attention (`attention.c`) never does; torch's
does. So products take `MOST` rows at once, and where attention is torch's (no C compiler, a window
that hides rows), the rows of a verification pass it one by one, each with the very call of a
one-row pass; a row of a tree first has its ancestors' keys and values laid behind the committed
ones, in the order of the text. `self_test` (`lm/proof.py`) checks on the loaded model that nothing
else depends on the rows either.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.rows import TokenRows
from skipbench.lm.upload import upload

MOST = 16
"""Rows that a product of a verification takes at once: as many as `self_test` proves. From 33 on
the kernels of a CPU with AMX add in another order.
"""


class NotStrictError(SkipbenchError):
    """Bits that depend on which rows share a pass."""


@dataclass(frozen=True)
class Step:
    """One row of a token_rows in a pass of its own, and the cache rows to overwrite before it."""

    row: int
    alone: AttentionMetadata
    at: int
    """First cache row that is overwritten."""
    source: Tensor | None
    """Rows of the token_rows that go there; `None` where everything is in its place."""


def steps(metadata: AttentionMetadata) -> list[Step]:
    """The rows of a token_rows that follows the committed rows, one by one."""
    start, made, laid = metadata.start, list[Step](), list(range(metadata.rows))
    for row, path in enumerate(metadata.token_rows.paths()):
        first = next((i for i, node in enumerate(path) if laid[i] != node), None)
        source = None
        if first is not None:
            laid[first : len(path)] = path[first:]
            source = upload(torch.tensor(path[first:]), metadata.tables.device)
        alone = AttentionMetadata(TokenRows.chain(start + len(path) - 1, 1), metadata.tables)
        made.append(Step(row, alone, start + (first or 0), source))
    return made


def rows_one_by_one(metadata: AttentionMetadata, rows: Tensor) -> Iterator[Step]:
    """Yields the steps of a metadata, with `rows` (a layer's cache) laid out for each of them, and
    restores `rows` at the end.
    """
    if metadata.steps is None:
        metadata.steps = steps(metadata)
    if all(step.source is None for step in metadata.steps):
        yield from metadata.steps
        return
    kept = rows[metadata.start : metadata.end].clone()
    for step in metadata.steps:
        if step.source is not None:
            rows[step.at : step.at + len(step.source)] = kept[step.source]
        yield step
    rows[metadata.start : metadata.end] = kept
