"""A probe of the claim behind `strict`: that a verified row has the bits that it has alone."""

import itertools
import random
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from skipbench.lm.rows import TokenRows

CONTEXTS = (24, 57, 250)
"""Committed tokens before the rows; rows after the last lie in two of the blocks of a kernel."""
MOST_NODES = 16


class RowBits(NamedTuple):
    """Rows that were verified together, compared with the same rows alone.

    Attributes:
        compared, differing: rows, and those of which a bit of the logits differs.
        first: the first row that differs, in words; empty without one.
        gap: the largest difference of a logit.
    """

    compared: int
    differing: int
    first: str
    gap: float


@torch.inference_mode()
def compare_rows(
    lm: Any, rows: int = 400, seed: int = 0, contexts: Sequence[int] = CONTEXTS
) -> RowBits:
    """Verifies chains and trees of 2 to 16 random tokens after contexts of random tokens, at least
    `rows` rows in all, and each of them in a pass of its own, as vanilla would.

    The model may be strict or not. Its cache is overwritten, and grows to the longest context.
    """
    draw, words = random.Random(seed), int(lm.config.vocab_size)
    compared, differing, first, gap = 0, 0, "", 0.0
    contexts = [n for n in contexts if n + MOST_NODES <= lm.max_positions]
    lm.allocate(max(contexts) + MOST_NODES)
    for context in itertools.cycle(contexts):
        if compared >= rows:
            break
        lm.prefill([draw.randrange(words) for _ in range(context)])
        for count in draw.sample(range(2, MOST_NODES + 1), 4):
            tokens = [draw.randrange(words) for _ in range(count)]
            tree = draw.random() < 0.5
            parent = tuple(draw.randrange(-1, n) if n else -1 for n in range(count))
            together = TokenRows.tree(context, parent) if tree else TokenRows.chain(context, count)
            found = lm.logits(tokens, together.verified()).clone()
            for row, path in enumerate(together.paths()):
                for at, node in enumerate(path, context):
                    if not tree and node != row:
                        continue  # of a chain it is in the cache
                    alone = lm.logits([tokens[node]], TokenRows.chain(at, 1).verified())[0]
                compared += 1
                if not torch.equal(found[row], alone):
                    differing += 1
                    gap = max(gap, float((found[row].float() - alone.float()).abs().max()))
                    kind = "a tree of " if tree else ""
                    first = first or f"row {row} of {kind}{count} rows after {context} tokens"
    return RowBits(compared, differing, first, gap)
