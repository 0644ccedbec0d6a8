"""KnapSpec's Algorithm 1: the 0/1 knapsack over sub-layers, solved for every skipped weight in one forward sweep.

| paper | here | |
|---|---|---|
| f^(i) | `run_sublayer(i - 1, ...)` | |
| X^(i) | `x[i]` [r, D] | target's states of the r tokens |
| g[i, j], j | `g[j]` [J, r, D] | best states behind sub-layer i with skipped weight j |
| K, tau | `budget`, `tau` | |
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad


def knapsack(
    x: Tensor,
    run_sublayer: Callable[[int, Tensor], Tensor],
    weights: Sequence[int],
    budget: int,
    tau: float,
    free: Sequence[bool],
) -> tuple[list[int], list[frozenset[int]], list[float], Tensor]:
    """Algorithm 1, the forward search and the backtracking.

    Args:
        x: [S + 1, r, D] the target's states of r tokens, before the first and behind every sub-layer.
        run_sublayer: index, states [n, r, D] -> [n, r, D]; n alternatives for the same tokens.
        weights, free: of every sub-layer its weight, and whether it may be skipped.
        budget: largest skipped weight.
        tau: branches whose mean cosine to the target's states is below it are dropped.

    Returns:
        One candidate a surviving skipped weight, lightest first: weight, skipped sub-layers, cosine, last states [n, r, D].
    """
    count, unit = len(weights), normalize(x.float(), dim=-1)

    # g[0, 0] = X^(0), and no other branch; sigma of each branch, minus infinity if dead; lengths of the states [J, r]
    g, best, length = x[:1], unit.new_ones(1), x[:1].float().norm(dim=-1)
    lengths = x.float().norm(dim=-1)  # of what skips nothing
    executed = torch.zeros(count, budget + 1, dtype=torch.bool, device=x.device)
    indices = torch.arange(budget + 1, device=x.device)
    for i, w in enumerate(weights, 1):
        reach = len(g) - 1  # heaviest branch that is alive
        h = [x[i : i + 1], run_sublayer(i - 1, g[1:])] if reach else [x[i : i + 1]]
        both = torch.cat([*h, g])  # h_e, and h_s of Eq. 7
        wide = both.float()
        length = torch.cat((lengths[i : i + 1], wide[1 : reach + 1].norm(dim=-1), length))
        sigma = ((wide * unit[i]).sum(-1) / length).mean(
            -1
        )  # mean over the tokens of the cosine to the target's states
        sigma.masked_fill_((sigma < tau) | (torch.cat((best, best)) == -torch.inf), -torch.inf)
        top = max(reach, min(reach + w, budget)) if free[i - 1] else reach
        run, skip = torch.split(sigma, reach + 1)
        run = pad(run, (0, top - reach), value=-torch.inf)
        fits = free[i - 1] and w <= top
        skip = pad(skip, (w, top - reach - w), value=-torch.inf) if fits else torch.full_like(run, -torch.inf)
        executed[i - 1, : top + 1] = keep = run >= skip  # Eq. 8
        best = torch.maximum(run, skip)
        alive = (best > -torch.inf).nonzero()[:, 0]
        if not len(alive):
            return [], [], [], g[:0]
        best, j = best[: int(alive[-1]) + 1], indices[: int(alive[-1]) + 1]
        # Of a dead branch any state will do.
        chosen = torch.where(keep[: len(best)], j, j + (reach + 1 - w)).clamp_(0, len(both) - 1)
        g, length = both.index_select(0, chosen), length.index_select(0, chosen)
    rows = backtrack(executed, weights, alive).tolist()
    sets = [frozenset(s for s in range(count) if row[s]) for row in rows]
    return alive.tolist(), sets, best[alive].tolist(), g[alive]


def backtrack(executed: Tensor, weights: Sequence[int], j: Tensor) -> Tensor:
    """[n, S], true where the branch that ends with skipped weight j [n] skips; `executed` [S, budget + 1] holds the decisions."""
    skipped = []
    for i in range(len(weights) - 1, -1, -1):
        skips = ~executed[i, j]
        skipped.append(skips)
        j = j - weights[i] * skips
    return torch.stack(skipped[::-1], 1)
