"""Verification row by row, where a row that is not finite would reach the others."""

import torch
from torch import Tensor

from skipbench.lm.bit_probe import Proven
from skipbench.lm.rows import TokenRows


def score_alone(
    lm: Proven, tokens: list[int], token_rows: TokenRows, hidden_states: list[Tensor] | None = None
) -> Tensor:
    """The result of `score` with each row in a pass of its own after its ancestors: torch's
    attention multiplies masked rows by 0, and 0 * NaN is NaN. The cache keeps none.
    """
    start, layers = token_rows.start, lm.cache.rows
    lm.cache.clear(start)
    logits, states, made = list[Tensor](), list[list[Tensor]](), list[list[Tensor]]()
    for token, (*above, row) in zip(tokens, token_rows.paths(), strict=True):
        for at, node in enumerate(above, start):
            for layer, cached in zip(layers, made[node], strict=True):
                layer[at] = cached
        at = start + len(above)
        states.append([])
        alone = TokenRows.chain(at, 1).verified()
        logits.append(lm.logits([token], alone, hidden_states=states[row]))
        made.append([layer[at].clone() for layer in layers])
        lm.cache.clear(start, at + 1)  # graphs read and mask whole buckets
    finite = torch.cat(logits).isfinite().any(-1)[:, None, None]
    for layer, kept in zip(layers, zip(*made, strict=True), strict=True):
        rows = torch.stack(kept)
        layer[start : token_rows.end] = torch.where(finite.to(rows.device), rows, 0.0)
    if hidden_states is not None:
        hidden_states += [torch.cat(state) for state in zip(*states, strict=True)]
    return torch.cat(logits)
