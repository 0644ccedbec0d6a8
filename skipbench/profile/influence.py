"""Ranks sub-layers by how little they change their input: Block Influence of Men et al., ShortGPT
(2024, arXiv:2403.03853), 1 - cos(input, output), here per sub-layer and not per layer.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def squared_turns(hidden_states: Sequence[Tensor]) -> list[float]:
    """The turn of the state in each sub-layer, `2 (1 - cos)`, about the angle's square, in the
    mean over the rows of S + 1 states [rows, D], before the first and after every sub-layer.
    """
    x = torch.stack(list(hidden_states)).float()
    cosine = torch.cosine_similarity(x[:-1], x[1:], dim=-1).mean(-1)
    return (2 * (1 - cosine)).clamp_min(0).tolist()


def ranked(turned: Sequence[float]) -> list[int]:
    """Sub-layers sorted by their `squared_turns`, smallest first."""
    return sorted(range(len(turned)), key=turned.__getitem__)
