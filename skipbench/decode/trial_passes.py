"""Passes over scratch rows of the cache: what a method runs beside drafting and verification,
without touching what is committed.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from skipbench.decode.state import State
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.skipset import SkipSet

# rows per pass of branches: in one of all, attention would spend most of its time on masked pairs
PASS_ROWS = 128


def forward_committed(
    state: State,
    at: int,
    rows: int,
    skip: SkipSet | None = None,
    hidden_states: list[Tensor] | None = None,
    last: int | None = None,
) -> Tensor:
    """Runs `rows` committed tokens from position `at` on once more, without `skip`, up to sub-layer
    `last`.

    They see the cached rows before `at` and one another; `hidden_states` as in `LM.run`.

    Returns:
        States [rows, D].
    """
    lm = state.lm
    token_rows = TokenRows.chain(lm.cache.length, rows, context_len=at)
    return lm.run(
        lm.embed(state.tokens[at : at + rows]),
        token_rows,
        skip,
        last=last,
        hidden_states=hidden_states,
    )


def parallel_branches(
    lm: LM, tokens: int, branches: int, size: int = 1
) -> Callable[[int, Tensor], Tensor]:
    """Runs unit after unit (`size` sub-layers each) on alternatives for the last `tokens` tokens in
    the cache.

    All alternatives see the cached rows before those tokens and themselves; their K/V goes to
    scratch rows, and none is copied (CLaSp section 3.6). At most `branches` alternatives are given
    at once.

    Returns:
        A function of the unit's index and states [n, tokens, D] that returns [n, tokens, D].
    """
    length = lm.cache.length
    scratch = min(PASS_ROWS, lm.cache.capacity - length)
    count = max(1, min(branches, scratch // tokens))
    metadata = lm.metadata(TokenRows.branches(length, length - tokens, count, tokens))

    def run(unit: int, states: Tensor) -> Tensor:
        if size == 1 and unit % 2:  # an MLP: its rows see nothing of one another, and take one pass
            found = lm.run(states.flatten(0, 1), metadata, first=unit, last=unit + 1)
            return found.clone().view(states.shape).to(states.device)
        parts = []
        for part in torch.split(states, count):
            rows = metadata if len(part) == count else metadata.first(len(part) * tokens)
            found = lm.run(part.flatten(0, 1), rows, first=size * unit, last=size * (unit + 1))
            parts.append(found.clone())  # the next pass may overwrite it
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.view(states.shape).to(states.device)

    return run
