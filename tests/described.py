"""Tiny random models of the families whose layer is not Llama's, and of families without a row."""

import functools
from typing import Any

import torch
from conftest import LAYERS

from skipbench.lm.families import attention_kernel
from skipbench.lm.model import LM

SIZES = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": LAYERS}
SIZES |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
SIZES |= {"max_position_embeddings": 128, "tie_word_embeddings": False}
SIZES |= dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
WINDOW = {"sliding_window": 7}
EXPERTS = {"num_experts_per_tok": 2}
GRANITE = {"embedding_multiplier": 3.0, "residual_multiplier": 0.7, "logits_scaling": 0.5}
CAPS = {"attn_logit_softcapping": 5.0, "final_logit_softcapping": 9.0}
TURNS = ["sliding_attention", "full_attention"] * 2
DESCRIBED: dict[str, dict[str, Any]] = {
    "phi3": WINDOW,
    "granite": GRANITE | {"attention_multiplier": 0.3},
    "gemma2": WINDOW | CAPS | {"query_pre_attn_scalar": 8},
    "gemma3_text": WINDOW | {"layer_types": TURNS, "query_pre_attn_scalar": 8},
    "cohere": {"logit_scale": 2.0},
    "cohere2": WINDOW | {"logit_scale": 2.0},
}
"""Families with a row, and what beside the sizes makes the row matter."""
TRACED: dict[str, dict[str, Any]] = {
    "stablelm": {},  # layer norms
    "gpt_neox": {"use_parallel_residual": True},  # other names, attention and MLP side by side
    "exaone4": WINDOW,
    "gemma": {},
    "granitemoe": {"num_local_experts": 4},
    "smollm3": {"no_rope_layers": [1, 1, 0, 1]},  # a layer without rotary positions
    "olmo2": {},  # no norms before attention and MLP
    "glm4": {},
    "starcoder2": WINDOW,  # an MLP without a gate
    "mixtral": EXPERTS | {"num_local_experts": 4},
    "qwen3_moe": EXPERTS | {"num_experts": 4, "moe_intermediate_size": 24, "mlp_only_layers": [1]},
    "phi": {},
}
"""Families without a row."""


def made(family: str, **more: Any) -> Any:
    """A random model of `family` in float32, whose norms and biases are not 1 and 0 either."""
    import transformers

    sizes = SIZES | (DESCRIBED | TRACED).get(family, {}) | more
    config: Any = transformers.AutoConfig.for_model(family, **sizes)
    auto: Any = transformers.AutoModelForCausalLM  # its constructors are untyped
    model: Any = auto.from_config(config, attn_implementation=attention_kernel(config))
    model = model.eval().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.ndim == 1:
            parameter.add_(0.1 * noise)
        else:  # so wide that outputs vary and some drafts are accepted
            parameter.copy_((0.7 if "embed" in name else 0.2) * noise)
    return model


described_model = functools.cache(made)


@functools.cache
@torch.inference_mode(False)  # kept for tests outside of inference mode, whichever comes first
def described_lm(family: str, engine: str = "reference") -> LM:
    """The model under an engine, with room for every test."""
    lm = LM(described_model(family), engine)
    lm.allocate(480)
    return lm
