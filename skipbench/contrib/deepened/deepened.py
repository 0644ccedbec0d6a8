"""`model.deepened`: a checkpoint with redundant sub-layers put in, whose places are known: the
positive control of a search on real text, whose right answer is `deepened_set`. A redundant
sub-layer is a copy of another one at the same cost, whose output projection is scaled to near or
exactly nothing. The deepened model's own output is the reference.
"""

import copy
from typing import Any

import torch

from skipbench.errors import SkipbenchError
from skipbench.lm.families import parts_of, unlike_llama
from skipbench.skipset import deepened_layers


@torch.no_grad()
def deepen(model: Any, share: float, seed: int) -> None:
    """Puts layers into a causal language model of Hugging Face, in place; no two share weights.

    Args:
        share, seed: as `deepened_layers`, which raises SkipbenchError for a share out of range; so
            does a layer that is not Llama's.
    """
    if (differs := unlike_llama(model)) is not None:
        raise SkipbenchError(
            f"model.deepened={share} puts layers of Llama's form in; {model.config.model_type} has "
            f"{differs}. Leave it out"
        )
    body, config = model.model, model.config
    plan = deepened_layers(config.num_hidden_layers, share, seed)
    used, layers = set[int](), []
    for index, place in enumerate(plan):
        layer = body.layers[place.own]
        layers.append(copy.deepcopy(layer) if place.own in used else layer)
        used.add(place.own)
        layers[-1].self_attn.layer_idx = index
    if getattr(config, "layer_types", None) is not None:
        config.layer_types = [config.layer_types[place.own] for place in plan]
    config.num_hidden_layers = len(plan)
    body.layers = torch.nn.ModuleList(layers)
    for place, (attention, mlp) in zip(plan, parts_of(model).layers, strict=True):
        for linear, size in ((attention.output, place.attention), (mlp.down, place.mlp)):
            if size != 1.0:
                linear.weight.mul_(size)
                if linear.bias is not None:
                    linear.bias.mul_(size)
