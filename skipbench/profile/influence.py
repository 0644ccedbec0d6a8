"""Which sub-layers change their input least: Block Influence of Men et al., ShortGPT (2024,
arXiv:2403.03853), here per sub-layer and not per layer.
"""

from itertools import pairwise

import torch
from torch.nn.functional import cosine_similarity

from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows


@torch.inference_mode()
def block_influence(lm: LM, ids: list[int]) -> list[float]:
    """1 - cos(input, output) of every sub-layer, residual included, mean over the tokens.

    Args:
        lm: the model; what its cache holds is overwritten.
        ids: token ids of one prompt.

    Returns:
        2L numbers, 0 for a sub-layer that changes nothing; those of attention at even places.
    """
    lm.allocate(len(ids))
    states: list[torch.Tensor] = []
    lm.run(lm.embed(ids), TokenRows.chain(0, len(ids)), hidden_states=states)
    return [
        1 - float(cosine_similarity(before.double(), after.double(), dim=-1).mean())
        for before, after in pairwise(states)
    ]
