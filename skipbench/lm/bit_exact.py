"""`engine.strict`: a verified row gets the bits that decoding it alone would give.

On the CPUs seen, products do not depend on the rows of a call up to `MOST` of them, and our own
attention (`attention.c`) never does; torch's does. So products take `MOST` rows at once, and where
attention is torch's, each row passes it in the call of a one-row pass, a row of a tree with its
ancestors' keys and values laid after the committed ones. `self_test` (`lm/proof.py`) checks on the
loaded model that nothing else depends on the rows either.

On a GPU a library takes another kernel for one row than for several, so no pass runs at its own
size: chains of up to `MOST` rows run at `MOST`, vanilla's single rows among them. Weights are read
once per pass whatever its rows. All other rows that are verified pass attention one by one, each in
the call of a padded one-row pass.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from skipbench.lm.cache import upload
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.rows import TokenRows

MOST = 16
"""Rows that a product of a verification takes at once, as many as `self_test` proves: from 33 on a
CPU with AMX adds in another order."""


class Step(NamedTuple):
    """One row in a pass of its own, and the cache rows to overwrite before it."""

    row: int
    alone: AttentionMetadata
    at: int  # first cache row that is overwritten
    source: Tensor | None  # rows of the pass that go there; `None` where everything is in its place


def steps(metadata: AttentionMetadata, rows: int = 1) -> list[Step]:
    """The rows of a pass that follows the committed rows, one by one, each in a pass of `rows`."""
    start, made, laid = metadata.start, list[Step](), list(range(metadata.rows))
    real = metadata.rows - metadata.token_rows.padding
    for row, path in enumerate(metadata.token_rows.paths()[:real]):
        first = next((i for i, node in enumerate(path) if laid[i] != node), None)
        source = None
        if first is not None:
            laid[first : len(path)] = path[first:]
            source = upload(torch.tensor(path[first:]), metadata.tables.device)
        alone = AttentionMetadata(TokenRows.chain(start + len(path) - 1, rows), metadata.tables)
        made.append(Step(row, alone, start + (first or 0), source))
    return made


def rows_one_by_one(metadata: AttentionMetadata, rows: Tensor, together: int = 1) -> Iterator[Step]:
    """Yields the steps, each in a pass of `together` rows, with `rows` (a layer's cache) laid out
    for each and restored at the end.
    """
    if metadata.steps is None:
        metadata.steps = steps(metadata, together)
    if all(step.source is None for step in metadata.steps):
        yield from metadata.steps
        return
    kept = rows[metadata.start : metadata.end].clone()
    for step in metadata.steps:
        if step.source is not None:
            rows[step.at : step.at + len(step.source)] = kept[step.source]
        yield step
    rows[metadata.start : metadata.end] = kept
