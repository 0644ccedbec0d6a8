"""Extra passes of a method over scratch rows of the cache, besides drafting and verification."""

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from skipbench.decode.draft import State
from skipbench.decode.sampling import best_tokens
from skipbench.draft_plan import DraftPlan
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

PASS_ROWS = 128  # in a pass of more, attention would spend most of its time on masked pairs


def recent_states(state: State, rows: int) -> list[Tensor]:
    """The target's S + 1 hidden states [rows, D], before the first and after every sub-layer, of
    the last `rows` cached tokens, or of all if these are fewer.
    """
    lm, states = state.lm, list[Tensor]()
    end, at = lm.cache.length, max(0, lm.cache.length - rows)
    token_rows = TokenRows.chain(end, end - at, context_len=at)
    lm.run(lm.embed(state.tokens[at:end]), token_rows, hidden_states=states)
    return states


def predicts(state: State, at: int, rows: int, skip: DraftPlan) -> list[bool]:
    """For each of `rows` tokens after `at`, whether the draft predicts it (SWIFT Eqs. 3, 4)."""
    token_rows = TokenRows.chain(state.lm.cache.length, rows, context_len=at)
    logits = state.lm.logits(state.tokens[at : at + rows], token_rows, skip)
    wanted = state.tokens[at + 1 : at + rows + 1]
    return [a == b for a, b in zip(best_tokens(logits).tolist(), wanted, strict=True)]


def parallel_branches(
    lm: LM, tokens: int, branches: int, size: int = 1, plan: DraftPlan | None = None
) -> Callable[[int, Tensor], Tensor]:
    """Runs alternatives for the last `tokens` cached tokens, unit after unit.

    All alternatives, `branches` per call at most, see the cached rows before those tokens and
    themselves; their K/V goes to scratch rows, and none is copied (CLaSp section 3.6). `plan`: how
    drafts compute a unit that they do not leave out; `None` for as the full model does.

    Returns:
        A function of the index of a unit, `size` sub-layers, and states [n, tokens, D] -> the same.
    """
    length = lm.cache.length
    scratch = min(PASS_ROWS, lm.cache.capacity - length)
    count = max(1, min(branches, scratch // tokens))

    @functools.cache
    def rows_of(alternatives: int) -> AttentionMetadata:
        return lm.metadata(TokenRows.branches(length, length - tokens, alternatives, tokens))

    def run(unit: int, states: Tensor) -> Tensor:
        # an MLP's rows are independent: one pass takes all
        mlp = size == 1 and unit % 2 and branches > 1
        parts = []
        for part in torch.split(states, len(states) if mlp else count):
            rows = rows_of(count if mlp else len(part))
            flat = part.flatten(0, 1)
            out = lm.run(flat, rows, plan, first=size * unit, last=size * (unit + 1))
            parts.append(out.clone())  # the next pass may overwrite it
        whole = parts[0] if len(parts) == 1 else torch.cat(parts)
        return whole.view(states.shape).to(states.device)

    return run
