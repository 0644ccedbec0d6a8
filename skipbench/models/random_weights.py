"""`planted`: a model of any shape with random weights and known redundant sub-layers.

It measures engines and checks searches at the shapes of real models without a download. Its text is
nonsense, and no number made with it says anything about a paper.
"""

from typing import Any

import torch
from torch import Tensor

from skipbench.config.architecture import Shape
from skipbench.errors import SkipbenchError
from skipbench.lm.families import family_of, parts_of
from skipbench.skipset import SkipSet

# output of a redundant sub-layer, against 1 of another: near a rounding error in bfloat16
LEAK = 0.004
# size of queries and keys: attention looks at a few tokens, so that the text depends on what was
# said
FOCUS = 1.6
# standard deviation of the logits: drafts are as confident as those of a trained model
LOGITS = 20.0
PLANTABLE = ("llama", "mistral", "qwen2", "qwen3")
"""Families whose weights `planted_model` can fill."""
OFFSETS = 1 << 20  # places in the pool at which a weight may begin


def planted_model(
    shape: Shape, redundant: SkipSet, seed: int, dtype: torch.dtype, device: str, words: int
) -> Any:
    """A causal language model of Hugging Face, made in the memory of `device` and nowhere else.

    Args:
        redundant: the sub-layers whose output projections are all but zero.
        words: ids that the tokenizer knows; the rows of all others are zero, so that greedy text
            keeps to these.

    Raises:
        SkipbenchError: unknown family, or a vocabulary smaller than the tokenizer's.
    """
    if shape.vocab < words:
        raise SkipbenchError(
            f"planted: a vocabulary of {shape.vocab} is smaller than the tokenizer's {words} ids"
        )
    if shape.family not in PLANTABLE:
        raise SkipbenchError(
            f"planted: layers of family {shape.family} cannot be made; wanted one of "
            f"{', '.join(PLANTABLE)}"
        )
    model = _empty(shape, dtype, device)
    pool = _Pool(shape, words, seed, dtype, device)
    hidden, inner, heads = shape.hidden, shape.intermediate, shape.heads * shape.width
    parts = parts_of(model)
    for index, (attention, mlp) in enumerate(parts.layers):
        sizes = {2 * index: 1.0, 2 * index + 1: 1.0} | {
            s: LEAK for s in redundant.skipped if s // 2 == index
        }
        query, key, value = attention.qkv
        for projection in (query, key):  # Qwen3 sets the size of queries and keys in its norms
            pool.fill(projection.weight, hidden**-0.5 * (1.0 if attention.qk_norms else FOCUS))
        for norm in attention.qk_norms or ():
            norm.weight.fill_(FOCUS)
        pool.fill(value.weight, hidden**-0.5)
        pool.fill(attention.output.weight, heads**-0.5 * sizes[2 * index])
        for projection in mlp.gate_up:
            pool.fill(projection.weight, hidden**-0.5)
        # silu(a) b has size 0.6
        pool.fill(mlp.down.weight, 1.7 * inner**-0.5 * sizes[2 * index + 1])
        attention.norm.weight.fill_(1.0)
        mlp.norm.weight.fill_(1.0)
    # A small embedding: the token itself must not outweigh what the layers add, else a tied head
    # repeats it for ever.
    small = 0.5 * (shape.layers / hidden) ** 0.5 if shape.tied else 1.0
    for table in {id(t): t for t in (parts.embedding.weight, parts.head.weight)}.values():
        table.zero_()
        pool.fill(table[:words], small)
    parts.norm.weight.fill_(LOGITS / (small * hidden**0.5))
    return model


class _Pool:
    """Normal numbers drawn once; every weight is a stretch of them from a place of its own, copied
    at the speed of memory.
    """

    def __init__(
        self, shape: Shape, words: int, seed: int, dtype: torch.dtype, device: str
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        largest = shape.hidden * max(shape.intermediate, shape.heads * shape.width, words)
        # On the CPU whatever the device, so that a seed means one model.
        self.numbers = torch.randn(largest + OFFSETS, generator=self.generator).to(dtype).to(device)

    def fill(self, weight: Tensor, size: float) -> None:
        """Overwrites `weight`, contiguous, with numbers of standard deviation `size`."""
        start = int(torch.randint(OFFSETS, (1,), generator=self.generator))
        flat = weight.view(-1)
        torch.mul(self.numbers[start : start + flat.numel()], size, out=flat)


def _empty(shape: Shape, dtype: torch.dtype, device: str) -> Any:
    """The modules of a shape with memory that nothing was written to yet."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config: Any = AutoConfig.for_model(
        shape.family,
        vocab_size=shape.vocab,
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        head_dim=shape.width,
        max_position_embeddings=shape.context,
        tie_word_embeddings=shape.tied,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    family_of(config)
    with torch.device("meta"):
        auto: Any = AutoModelForCausalLM  # its constructors are untyped
        model: Any = auto.from_config(config, dtype=dtype, attn_implementation="sdpa")
    model.to_empty(device=device)
    model.tie_weights()
    # `to_empty` lost its frequencies
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config).to(device)
    return model.eval().requires_grad_(False)
