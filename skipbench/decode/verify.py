"""Verification: which proposed tokens the target accepts, and its next token.

Words (Leviathan et al., arXiv:2211.17192): p is the target's distribution, q the one a proposed
token was drawn from; the bonus token is drawn from p after the last accepted one, or from the
residual of p where a token was rejected.
"""

import torch
from torch import Tensor

from skipbench.decode.draft import Draft
from skipbench.decode.sampling import Sampler


def verify_greedy(draft: Draft, choice: list[int]) -> tuple[list[int], int]:
    """Accepts a node when it is the target's choice after its parent; chains and trees.

    >>> draft = Draft([7, 8, 9], parent=[-1, -1, 1])  # 7 or 8, then 9 after 8
    >>> verify_greedy(draft, choice=[8, 0, 9, 3])
    ([1, 2], 3)

    Args:
        choice: the target's argmax after the pending token and after every node, [n + 1].

    Returns:
        The accepted nodes in order, and the bonus token.
    """
    path: list[int] = []
    at = -1
    for node, parent in enumerate(draft.parents()[: draft.num_verifiable]):
        # Parents come first, so a node whose parent is the last accepted one continues the path;
        # the parent of an accepted node's later siblings is no longer the last.
        if parent == at and draft.tokens[node] == choice[at + 1]:
            path.append(node)
            at = node
    return path, choice[at + 1]


def verify_sampling(draft: Draft, logits: Tensor, sampler: Sampler) -> tuple[list[int], int]:
    """Speculative sampling over a chain or a tree; the emitted tokens are distributed as the
    target's.

    Children of one node are tried in order (Leviathan et al. Algorithm 1; SpecInfer,
    arXiv:2305.09781, Algorithm 2 for several): child x is accepted with probability min(1, p(x) /
    q(x)); otherwise p becomes norm(max(0, p - q)), and q loses x, since siblings are drawn without
    replacement. A guess has q = 1 at its token.

    Args:
        logits: the target's [n + 1, V], row 0 after the pending token, row n + 1 after node n.
    """
    p_all = sampler.probs(logits)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(draft.parents()[: draft.num_verifiable]):
        children.setdefault(parent, []).append(node)
    first = _first_children(draft, p_all, children)
    path: list[int] = []
    at, p = -1, p_all[0]
    while at in children:
        q, nodes = draft.q.get(at), children[at]
        target, proposed = first[at]
        if sampler.uniform() * proposed < target:
            path.append(nodes[0])
            at, p = nodes[0], p_all[nodes[0] + 1]
            continue
        accepted, p = _siblings(draft, nodes, p, q, sampler)
        if accepted is None:
            break
        path.append(accepted)
        at, p = accepted, p_all[accepted + 1]
    return path, sampler.draw(p)


def _first_children(
    draft: Draft, p_all: Tensor, children: dict[int, list[int]]
) -> dict[int, tuple[float, float]]:
    """By node, p and q of its first child, in one transfer; q is 1 for a guess."""
    if not children:
        return {}
    token = {at: draft.tokens[nodes[0]] for at, nodes in children.items()}
    p = torch.stack([p_all[at + 1, token[at]] for at in children])
    one = torch.ones((), dtype=p.dtype, device=p.device)
    q = torch.stack([draft.q[at][token[at]] if at in draft.q else one for at in children])
    pairs = torch.stack((p, q), 1).tolist()
    return {at: (target, proposed) for at, (target, proposed) in zip(children, pairs, strict=True)}


def _siblings(
    draft: Draft, nodes: list[int], p: Tensor, q: Tensor | None, sampler: Sampler
) -> tuple[int | None, Tensor]:
    """Tries the children after the first, which was rejected; their chances come in one transfer.

    Returns:
        The accepted one, if any, and the residual of p after those that were rejected.
    """
    left: list[Tensor] = []
    chances: list[Tensor] = []
    for node, sibling in zip(nodes, [*nodes[1:], None], strict=True):
        p, q = _after_rejection(p, q, draft.tokens[node])
        left.append(p)
        if sibling is not None:
            token = draft.tokens[sibling]
            chances += [p[token], torch.ones_like(p[token]) if q is None else q[token]]
    values = torch.stack(chances).tolist() if chances else []
    for node, target, proposed in zip(nodes[1:], values[::2], values[1::2], strict=True):
        if sampler.uniform() * proposed < target:
            return node, p
    return None, left[-1]


def _after_rejection(p: Tensor, q: Tensor | None, token: int) -> tuple[Tensor, Tensor | None]:
    """The target's residual distribution [V], and the draft's without the rejected token."""
    if q is None:
        residual = p.clone()
        residual[token].zero_()  # `= 0.0` would wait for the copy of one number
    else:
        residual = torch.clamp(p - q, min=0.0)
        q = q.clone()
        q[token].zero_()
        left = q.sum()
        q = torch.where(left > 0, q / left, q)
    total = residual.sum()
    # p == q leaves nothing but rounding: the rejection itself had probability zero, so keep p
    return torch.where(total > 0, residual / total, p), q
