"""Verification: which proposed tokens the target accepts, and its next token.

p is the target's distribution, q the draft's (Leviathan et al., arXiv:2211.17192); the bonus token
is drawn from p after the last accepted token, or from the residual of p after a rejection.
"""

from itertools import pairwise

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
    path, at = list[int](), -1
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
    # the first child of every node in one transfer, its later siblings only where it is rejected
    pairs = [(p_all[at + 1], draft.q.get(at), nodes[0]) for at, nodes in children.items()]
    first = dict(zip(children, _chances(draft, pairs), strict=True))
    path: list[int] = []
    at, p = -1, p_all[0]
    while nodes := children.get(at):
        target, proposed = first[at]
        accepted: int | None = nodes[0]
        if not sampler.uniform() * proposed < target:
            accepted, p = _siblings(draft, nodes, p, draft.q.get(at), sampler)
        if accepted is None:
            break
        path.append(accepted)
        at, p = accepted, p_all[accepted + 1]
    return path, sampler.draw(p)


def _chances(
    draft: Draft, nodes: list[tuple[Tensor, Tensor | None, int]]
) -> list[tuple[float, float]]:
    """p and q of nodes, given with both distributions, in one transfer; q is 1 for a guess."""
    if not nodes:
        return []
    one, token = nodes[0][0].new_ones(()), draft.tokens
    chances = [(p[token[n]], one if q is None else q[token[n]]) for p, q, n in nodes]
    values = torch.stack([x for pair in chances for x in pair]).tolist()
    return list(zip(values[::2], values[1::2], strict=True))


def _siblings(
    draft: Draft, nodes: list[int], p: Tensor, q: Tensor | None, sampler: Sampler
) -> tuple[int | None, Tensor]:
    """The accepted one of the children after the first, if any, and the residual of p before it."""
    tried = list[tuple[Tensor, Tensor | None, int]]()
    for rejected, node in pairwise(nodes):
        p, q = _after_rejection(p, q, draft.tokens[rejected])
        tried.append((p, q, node))
    for (p, _, node), (target, proposed) in zip(tried, _chances(draft, tried), strict=True):
        if sampler.uniform() * proposed < target:
            return node, p
    return None, _after_rejection(p, q, draft.tokens[nodes[-1]])[0]


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
