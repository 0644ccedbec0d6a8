"""Verification: which proposed tokens the target accepts, and its own token behind them. Three
functions.

Words (Leviathan et al., arXiv:2211.17192): p is the target's distribution, q the one a proposed
token was drawn from; the bonus token is drawn from p behind the last accepted one, or from what p
has left over where a token was rejected.
"""

import torch
from torch import Tensor

from skipbench.decode.method import Draft
from skipbench.decode.sampling import Sampler


def verify_greedy(draft: Draft, choice: list[int]) -> tuple[list[int], int]:
    """Accepts a node when it is the target's choice behind its parent; chains and trees.

    Args:
        choice: the target's argmax behind the pending token and behind every node, [n + 1].

    Returns:
        The accepted nodes in order, and the bonus token.
    """
    path: list[int] = []
    at = -1
    for node, parent in enumerate(draft.parents()[: draft.num_verifiable]):
        # Parents come first, so a node whose parent is the last accepted one continues the path.
        # Siblings behind an accepted node cannot match, because their parent is no longer the last.
        if parent == at and draft.tokens[node] == choice[at + 1]:
            path.append(node)
            at = node
    return path, choice[at + 1]


def verify_sampling(draft: Draft, logits: Tensor, sampler: Sampler) -> tuple[list[int], int]:
    """Speculative sampling over a chain or a tree; the emitted tokens are distributed as the
    target's own.

    Children of one node are tried in order (Leviathan et al. Algorithm 1; SpecInfer,
    arXiv:2305.09781, Algorithm 2 for several): child x is accepted with probability min(1, p(x) /
    q(x)); otherwise p becomes norm(max(0, p - q)), and q loses x, since siblings are drawn without
    replacement. A guess has q = 1 at its token.

    Args:
        logits: the target's [n + 1, V], row 0 behind the pending token, row n + 1 behind node n.
    """
    p_all = sampler.probs(logits)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents()[: draft.num_verifiable]):
        children.setdefault(parent, []).append(node)
    path: list[int] = []
    at, p = -1, p_all[0]
    while True:
        q = draft.q.get(at)
        accepted = None
        for node in children.get(at, []):
            token = draft.tokens[node]
            proposed = float(q[token]) if q is not None else 1.0
            if sampler.uniform() * proposed < float(p[token]):
                accepted = node
                break
            p, q = _after_rejection(p, q, token)
        if accepted is None:
            return path, sampler.draw(p)
        path.append(accepted)
        at, p = accepted, p_all[accepted + 1]


def _after_rejection(p: Tensor, q: Tensor | None, token: int) -> tuple[Tensor, Tensor | None]:
    """The target's residual distribution [V], and the draft's without the rejected token."""
    if q is None:
        residual = p.clone()
        residual[token] = 0.0
    else:
        residual = torch.clamp(p - q, min=0.0)
        q = q.clone()
        q[token] = 0.0
        left = q.sum()
        q = q / left if float(left) > 0 else q
    total = residual.sum()
    # p == q leaves nothing but rounding: then the rejection itself had probability zero, and p
    # stands.
    return (residual / total if float(total) > 0 else p), q
