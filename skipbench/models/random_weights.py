"""`planted`: a model of any shape, made without a download, of which it is known what it says and
which sub-layers that needs, to measure engines and check searches; and a tiny random one, to check
methods.
"""

from typing import Any

import torch
from torch import Tensor

from skipbench.config.architecture import Shape
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.families import modules_of
from skipbench.lm.layer import Modules
from skipbench.models.checks import FIELDS
from skipbench.models.planted_text import PlantedText, planted_text, strengths
from skipbench.models.planted_weights import StateParts, width, write_text

# What a sub-layer adds to a state whose words have size 1.
NOISE = 0.4  # at strength 1; it grows with the root of the strength
LEAK = 0.004  # redundant ones, and the first layer: near bfloat16's rounding
FAINT = 1 / 32  # of that, where the head or a sub-layer reads something
FOCUS = 1.6  # size of queries and keys: attention looks at a few tokens of the text
ROPE_THETA = 5e5  # Llama 3's
NO_SPECIAL = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
PLANTABLE = ("llama", "mistral", "qwen2", "qwen3")  # families that `planted_model` can fill
OFFSETS = 1 << 20  # places in the pool at which a weight may begin


def planted_model(
    shape: Shape, redundant: DraftPlan, seed: int, dtype: torch.dtype, device: str, words: int
) -> Any:
    """A causal language model of Hugging Face, made in the memory of `device` and nowhere else.

    It says `text_of` these arguments. All sub-layers add random numbers to the state besides, each
    of a size that grows with its strength, where the head does not read; those of `redundant`,
    which no token needs, add next to nothing. `words`: ids that the tokenizer knows; the rows of
    all others are zero: no greedy text.

    Raises SkipbenchError for another family or a smaller vocabulary, and as `text_of`.
    """
    from transformers import AutoConfig

    if shape.vocab < words or shape.family not in PLANTABLE:
        raise SkipbenchError(
            f"planted: family {shape.family}, {shape.vocab} ids; wanted one of "
            f"{', '.join(PLANTABLE)}, and the tokenizer's {words} ids or more"
        )
    text = text_of(shape.hidden, redundant, seed, words)
    sizes = {name: getattr(shape, key) for key, name in FIELDS.items() if key != "family"}
    sizes |= {"head_dim": shape.width, "max_position_embeddings": shape.context} | NO_SPECIAL
    sizes["rope_parameters"] = {"rope_type": "default", "rope_theta": ROPE_THETA}
    model = empty_model(AutoConfig.for_model(shape.family, **sizes), dtype, device)
    modules, generator = modules_of(model), torch.Generator().manual_seed(seed)
    _fill(modules, shape, redundant, seed, generator)
    write_text(modules, shape.hidden, text, generator)
    return model


def text_of(hidden: int, redundant: DraftPlan, seed: int, words: int) -> PlantedText:
    """What a planted model of this hidden size says, and which sub-layers that needs. Raises
    SkipbenchError where the size, or the tokens, are too few for a text.
    """
    parts = StateParts.of(hidden)
    return planted_text(redundant, seed, words, width(parts.word), width(parts.needs) - 1)


def _fill(
    modules: Modules, shape: Shape, redundant: DraftPlan, seed: int, generator: torch.Generator
) -> None:
    """Random numbers in all layers."""
    hidden, inner, heads = shape.hidden, shape.intermediate, shape.heads * shape.width
    # Normal numbers drawn once, on the CPU whatever the device, so that a seed means one model;
    # every weight is a stretch of them from another place.
    weight = modules.embedding.weight
    pool = torch.randn(hidden * max(inner, heads) + OFFSETS, generator=generator).to(weight)

    def fill(weight: Tensor, size: float) -> None:
        """Overwrites `weight`, contiguous, with numbers of standard deviation `size`."""
        start = int(torch.randint(OFFSETS, (1,), generator=generator))
        torch.mul(pool[start : start + weight.numel()], size, out=weight.view(-1))

    sizes = {s: NOISE * strength**0.5 for s, strength in strengths(redundant, seed).items()}
    sizes = {0: LEAK, 1: LEAK} | sizes | dict.fromkeys(redundant.skipped, LEAK)
    read = StateParts.of(hidden).word.stop
    for index, (attention, mlp) in enumerate(modules.layers):
        # Qwen3 sets the size of queries and keys in its norms
        focus = 1.0 if attention.qk_norms else FOCUS
        for norm in attention.qk_norms or ():
            norm.weight.fill_(FOCUS)
        inputs = zip((*attention.qkv, *mlp.gate_up), (focus, focus, 1.0, 1.0, 1.0), strict=True)
        for projection, size in inputs:
            fill(projection.weight, hidden**-0.5 * size)
            if projection.bias is not None:  # Qwen2's
                projection.bias.zero_()
        fill(attention.output.weight, heads**-0.5 * sizes[2 * index])
        # silu(a) b has size 0.6
        fill(mlp.down.weight, 1.7 * inner**-0.5 * sizes[2 * index + 1])
        for projection in (attention.output, mlp.down):
            projection.weight[read:].mul_(FAINT)
        for norm in (attention.norm, mlp.norm):
            norm.weight.fill_(1.0)


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
    sizes |= {"head_dim": 8, "max_position_embeddings": 128} | NO_SPECIAL
    sizes |= {"sliding_window": 7} if family == "mistral" else {}
    auto: Any = AutoModelForCausalLM  # its constructors are untyped
    torch.manual_seed(0)
    model: Any = auto.from_config(AutoConfig.for_model(family, **sizes))
    for parameter in model.eval().requires_grad_(False).parameters():
        parameter.mul_(4.0 if parameter.ndim > 1 else 1.0)
    return model
