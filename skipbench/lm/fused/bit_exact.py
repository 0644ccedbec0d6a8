"""`engine.strict`: a verified row gets the bits that decoding it alone would give.

On the CPUs seen, norms and rotations of a low precision do not depend on how many rows share a
call, products do not up to `MOST` rows, and our own attention (`attention.c`) never does; torch's
does. So products take `MOST` rows at once, and where attention is torch's (no C compiler, a window
that hides rows), the rows of a verification pass it one by one, each with the very call of a
one-row pass; a row of a tree first has its ancestors' keys and values laid behind the committed
ones, in the order of the text. `self_test` checks on the model at hand that nothing else depends
on the rows either.
"""

import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.cache import KVCache
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.rows import TokenRows
from skipbench.lm.upload import upload

PROMPT = 24  # committed tokens of the probe
MOST = 16
"""Rows that a product of a verification takes at once: as many as the probe proves. From 33 on the
kernels of a CPU with AMX add in another order.
"""
COSTED = 9  # rows of the verification whose cost is told
TREE = (-1, 0, 0, 1, 1, 1, 3, 3, 2, 8)  # parents; branches that go on, and leaves between them


@dataclass(frozen=True)
class Step:
    """One row of a token_rows: the metadata of a pass of it alone, and what must be laid into the
    cache before.
    """

    row: int
    alone: AttentionMetadata
    at: int
    """First cache row that is overwritten."""
    source: Tensor | None
    """Rows of the token_rows that go there; `None` where everything is in its place."""


def steps(metadata: AttentionMetadata) -> list[Step]:
    """The rows of a token_rows that follows the committed rows, one by one."""
    start, found, laid = metadata.start, list[Step](), list(range(metadata.rows))
    for row, path in enumerate(metadata.token_rows.paths()):
        first = next((i for i, node in enumerate(path) if laid[i] != node), None)
        source = None
        if first is not None:
            laid[first : len(path)] = path[first:]
            source = upload(torch.tensor(path[first:]), metadata.tables.device)
        alone = AttentionMetadata(TokenRows.chain(start + len(path) - 1, 1), metadata.tables)
        found.append(Step(row, alone, start + (first or 0), source))
    return found


def rows_one_by_one(metadata: AttentionMetadata, rows: Tensor) -> Iterator[Step]:
    """The steps of a metadata, with `rows` (a layer's cache) as each wants it meanwhile, and as
    they were afterwards.
    """
    if metadata.steps is None:
        metadata.steps = steps(metadata)
    kept = (
        rows[metadata.start : metadata.end].clone()
        if any(s.source is not None for s in metadata.steps)
        else None
    )
    for step in metadata.steps:
        if step.source is not None and kept is not None:
            rows[step.at : step.at + len(step.source)] = kept[step.source]
        yield step
    if kept is not None:
        rows[metadata.start : metadata.end] = kept


class NotStrictError(SkipbenchError):
    """The probe found bits that depend on the rows."""


class Verified(Protocol):
    """What the probe needs of `LM`."""

    config: Any
    cache: KVCache

    def allocate(self, capacity: int) -> None: ...
    def prefill(self, tokens: list[int]) -> Tensor: ...
    def logits(self, tokens: list[int], token_rows: TokenRows) -> Tensor: ...


@torch.inference_mode()
def self_test(lm: Verified) -> float:
    """Runs random tokens one by one and together, as chains of 2 to 16 rows and as a tree; every
    bit must be the same.

    Returns:
        Time of verifying 9 rows so, over that without; the median of a few turns.

    Raises:
        NotStrictError: a logit or a cached key or value differs, with the rows and the size of it.
    """
    lm.allocate(PROMPT + MOST)
    vocabulary = int(lm.config.vocab_size)
    tokens = torch.randint(
        vocabulary, (PROMPT + MOST,), generator=torch.Generator().manual_seed(0)
    ).tolist()
    prompt, rest = tokens[:PROMPT], tokens[PROMPT:]
    lm.prefill(prompt)
    alone, cached = _one_by_one(lm, rest)
    for count in range(2, MOST + 1):
        logits = lm.logits(rest[:count], TokenRows.chain(PROMPT, count).verified())
        _compare(f"{count} rows", logits, alone[:count])
        for layer, rows in enumerate(lm.cache.rows):
            _compare(
                f"keys and values of {count} rows",
                rows[PROMPT : PROMPT + count],
                cached[layer][:count],
            )
    together = lm.logits(rest[: len(TREE)], TokenRows.tree(PROMPT, TREE).verified())
    for row, path in enumerate(TokenRows.tree(PROMPT, TREE).paths()):
        _compare(
            f"a tree of {len(TREE)} rows",
            together[row : row + 1],
            _one_by_one(lm, [rest[n] for n in path])[0][-1:],
        )
    chain, times = TokenRows.chain(PROMPT, COSTED), []
    for _ in range(5):
        began = time.perf_counter()
        lm.logits(rest[:COSTED], chain).argmax(-1).tolist()
        between = time.perf_counter()
        lm.logits(rest[:COSTED], chain.verified()).argmax(-1).tolist()
        times.append((time.perf_counter() - between) / (between - began))
    return statistics.median(times)


def _one_by_one(lm: Verified, tokens: list[int]) -> tuple[Tensor, list[Tensor]]:
    """Logits [n, V] and the cache rows of a chain behind the prompt, decoded as vanilla would."""
    logits = [lm.logits([token], TokenRows.chain(PROMPT + n, 1)) for n, token in enumerate(tokens)]
    return torch.cat(logits), [
        rows[PROMPT : PROMPT + len(tokens)].clone() for rows in lm.cache.rows
    ]


def _compare(what: str, found: Tensor, alone: Tensor) -> None:
    if torch.equal(found, alone):
        return
    gap = float((found.float() - alone.float()).abs().max())
    where = f"{found.device} in {str(found.dtype).removeprefix('torch.')}"
    instead = (
        "the products of float32 add in another order for one row and for several, and its tokens "
        "have to be vanilla's without strict: use engine.strict=false, or model.dtype=bfloat16"
        if found.dtype == torch.float32
        else "the kernels of this machine add in another order when rows share a call: use "
        "engine.strict=false, which classifies every divergence by its logit gap"
    )
    raise NotStrictError(
        f"engine.strict=true cannot be kept on {where}: {what} at once differ from the same "
        f"rows one by one by up to {gap:.3g}; {instead}"
    )
