"""`planted`: a model of any shape with random weights and known redundant sub-layers, to measure
engines and check searches without a download; and a tiny one, to check methods. Their text is
nonsense.
"""

from typing import Any

import torch
from torch import Tensor

from skipbench.config.architecture import Shape
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.families import parts_of
from skipbench.models.checks import FIELDS

LEAK = 0.004  # output of a redundant sub-layer, against 1 of another: near bfloat16's rounding
FOCUS = 1.6  # size of queries and keys: attention looks at a few tokens of the text
LOGITS = 20.0  # standard deviation of the logits: drafts as confident as a trained model's
PLANTABLE = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose weights `planted_model` can fill."""
OFFSETS = 1 << 20  # places in the pool at which a weight may begin


def planted_model(
    shape: Shape, redundant: DraftPlan, seed: int, dtype: torch.dtype, device: str, words: int
) -> Any:
    """A causal language model of Hugging Face, made in the memory of `device` and nowhere else.

    Args:
        redundant: the sub-layers whose output projections are all but zero.
        words: ids that the tokenizer knows; the rows of all others are zero, so that greedy text
            keeps to these.

    Raises SkipbenchError for an unknown family, or a vocabulary smaller than the tokenizer's.
    """
    from transformers import AutoConfig

    if shape.vocab < words:
        raise SkipbenchError(
            f"planted: a vocabulary of {shape.vocab} is smaller than the tokenizer's {words} ids"
        )
    if shape.family not in PLANTABLE:
        raise SkipbenchError(
            f"planted: layers of family {shape.family} cannot be made; wanted one of "
            f"{', '.join(PLANTABLE)}"
        )
    hidden, inner, heads = shape.hidden, shape.intermediate, shape.heads * shape.width
    # Normal numbers drawn once, on the CPU whatever the device, so that a seed means one model;
    # every weight is a stretch of them from another place.
    generator, size = torch.Generator().manual_seed(seed), hidden * max(inner, heads, words)
    pool = torch.randn(size + OFFSETS, generator=generator).to(dtype).to(device)

    def fill(weight: Tensor, size: float) -> None:
        """Overwrites `weight`, contiguous, with numbers of standard deviation `size`."""
        start = int(torch.randint(OFFSETS, (1,), generator=generator))
        torch.mul(pool[start : start + weight.numel()], size, out=weight.view(-1))

    sizes = {name: getattr(shape, key) for key, name in FIELDS.items() if key != "family"}
    none = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    sizes |= {"head_dim": shape.width, "max_position_embeddings": shape.context} | none
    model = empty_model(AutoConfig.for_model(shape.family, **sizes), dtype, device)
    parts = parts_of(model)
    for index, (attention, mlp) in enumerate(parts.layers):
        at = 2 * index
        factors = [LEAK if s in redundant.skipped else 1.0 for s in (at, at + 1)]
        query, key, value = attention.qkv
        # Qwen3 sets the size of queries and keys in its norms
        for projection in (query, key):
            fill(projection.weight, hidden**-0.5 * (1.0 if attention.qk_norms else FOCUS))
        for norm in attention.qk_norms or ():
            norm.weight.fill_(FOCUS)
        fill(value.weight, hidden**-0.5)
        fill(attention.output.weight, heads**-0.5 * factors[0])
        for projection in mlp.gate_up:
            fill(projection.weight, hidden**-0.5)
        fill(mlp.down.weight, 1.7 * inner**-0.5 * factors[1])  # silu(a) b has size 0.6
        for norm in (attention.norm, mlp.norm):
            norm.weight.fill_(1.0)
    # A small embedding: the token itself must not outweigh what the layers add, else a tied head
    # repeats it for ever.
    small = 0.5 * (shape.layers / hidden) ** 0.5 if shape.tied else 1.0
    for table in {id(t): t for t in (parts.embedding.weight, parts.head.weight)}.values():
        table.zero_()
        fill(table[:words], small)
    parts.norm.weight.fill_(LOGITS / (small * hidden**0.5))
    return model


def empty_model(config: Any, dtype: torch.dtype, device: str) -> Any:
    """The modules of a Hugging Face configuration, in memory that nothing was written to yet; on
    the device `meta` without memory.
    """
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        auto: Any = AutoModelForCausalLM  # its constructors are untyped
        model: Any = auto.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.to_empty(device=device)
    model.tie_weights()
    # `to_empty` lost its frequencies
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    return model.eval().requires_grad_(False)


def random_model(family: str, vocab: int = 61) -> Any:
    """A random model of `family` in float32 with grouped-query attention, so peaked that drafts are
    neither always right nor always wrong; Mistral's window is shorter than the texts.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    sizes: dict[str, Any] = {"vocab_size": vocab, "hidden_size": 32, "intermediate_size": 48}
    sizes |= {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2}
    sizes |= {"head_dim": 8, "max_position_embeddings": 128}
    sizes |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    sizes |= {"sliding_window": 7} if family == "mistral" else {}
    auto: Any = AutoModelForCausalLM  # its constructors are untyped
    torch.manual_seed(0)
    model: Any = auto.from_config(AutoConfig.for_model(family, **sizes))
    for parameter in model.eval().requires_grad_(False).parameters():
        parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
    return model
