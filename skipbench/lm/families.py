"""The model families that the engines can drive: one row per `model_type` of the Hugging Face
config, with the differences from Llama's layer. Only this file knows Hugging Face's attribute
paths. A model of another family is traced at load (`lm/traced.py`).
"""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from torch.nn import Linear

from skipbench.errors import SkipbenchError
from skipbench.lm.layer import AttentionModules, Block, Family, MlpModules, Modules, text_config

GEMMA = Family(
    Block("self_attn", "input_layernorm", "post_attention_layernorm"),
    Block("mlp", "pre_feedforward_layernorm", "post_feedforward_layernorm"),
    windows="type",
    logit_cap="final_logit_softcapping",
)
COHERE = Family(mlp=Block("mlp", "input_layernorm"), parallel=True, logit_scale="logit_scale")

FAMILIES = {
    "llama": Family(),
    "mistral": Family(windows="all"),
    "qwen2": Family(windows="type"),
    "qwen3": Family(qk_norm=True, windows="type"),
    "phi3": Family(qkv=("qkv_proj",), gate_up=("gate_up_proj",), windows="all"),
    "granite": Family(
        embedding_scale="embedding_multiplier",
        residual_scale="residual_multiplier",
        logit_divisor="logits_scaling",
    ),
    "gemma2": replace(GEMMA, attention_kernel="eager"),
    "gemma3_text": replace(GEMMA, qk_norm=True, rotary="type"),
    "gemma3": replace(
        GEMMA,
        qk_norm=True,
        rotary="type",
        embedding_path="model.language_model.embed_tokens",
        layers_path="model.language_model.layers",
        norm_path="model.language_model.norm",
        rotary_path="model.language_model.rotary_emb",
    ),
    "cohere": COHERE,
    "cohere2": replace(COHERE, windows="type"),
}

HEAD = ("lm_head",)
# their cosines do not depend on the length decoded so far; the last two's not up to `angle_limit`
ROPE_TYPES = ("default", "linear", "llama3", "yarn", "longrope", "dynamic")

RECURRENT = {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"}

_traced: "WeakKeyDictionary[Any, Family]" = WeakKeyDictionary()


def describe(model: Any) -> Family:
    """The family of a Hugging Face model: its row, or a traced one. Raises SkipbenchError as
    `check_config` and `trace`.
    """
    check_config(text_config(model.config))
    if model.config.model_type in FAMILIES:
        return FAMILIES[model.config.model_type]
    if model not in _traced:
        from skipbench.lm.traced import trace

        _traced[model] = trace(model)
    return _traced[model]


def attention_kernel(config: Any) -> str | None:
    """`attn_implementation` with which a checkpoint is loaded; `None` for Hugging Face's choice."""
    row = FAMILIES.get(config.model_type)
    return None if row is None else row.attention_kernel


def check_config(config: Any) -> None:
    """Raises SkipbenchError for layers with a state that cannot go back to an earlier token, and
    for rotary positions of another type than `ROPE_TYPES`.
    """
    if state := sorted({*(getattr(config, "layer_types", None) or ())} & RECURRENT):
        raise SkipbenchError(
            f"model_type {config.model_type!r} has layers of the types {', '.join(state)}: their "
            "state cannot go back when drafted tokens are rejected; wanted attention in all layers"
        )
    for rope in _rope_parameters(config):
        if rope["rope_type"] not in ROPE_TYPES:
            raise SkipbenchError(
                f"rope_type {rope['rope_type']!r} is not known here; known: {', '.join(ROPE_TYPES)}"
            )


def angle_limit(config: Any) -> int | None:
    """The longest text under longrope or dynamic in tokens, after which all angles change; else
    `None`.
    """
    for rope in _rope_parameters(config):
        if rope["rope_type"] == "dynamic":
            return int(config.max_position_embeddings)
        if rope["rope_type"] == "longrope":
            short = rope.get("original_max_position_embeddings")
            return int(short or config.original_max_position_embeddings)
    return None


def kv_shape(model: Any) -> tuple[int, int]:
    """Key heads, and the size of a head."""
    if (traced := describe(model).kv_shape) is not None:
        return traced
    config = text_config(model.config)
    heads = int(config.num_attention_heads)
    kv = int(getattr(config, "num_key_value_heads", None) or heads)
    return kv, int(getattr(config, "head_dim", None) or config.hidden_size // heads)


def _rope_parameters(config: Any) -> list[dict[str, Any]]:
    """One dictionary, or one for each type of layer; none without rotary positions."""
    ropes = getattr(config, "rope_parameters", None) or {}
    return [ropes] if "rope_type" in ropes else [rope for rope in ropes.values() if rope]


def modules_of(model: Any) -> Modules:
    """The modules of a Hugging Face model as they are now: an engine may put others in the
    place of linear ones. Raises SkipbenchError as `describe`.
    """
    family, config = describe(model), text_config(model.config)

    def scalar(field: str) -> float:
        return float(getattr(config, field)) if field else 1.0

    def block(layer: Any, names: Block) -> tuple[Any, Any, Any]:
        norm = (lambda x: x) if names.before is None else getattr(layer, names.before)
        after = None if names.after is None else getattr(layer, names.after)
        return norm, getattr(layer, names.module), after

    def linears(module: Any, names: tuple[str, ...]) -> tuple[Any, ...]:
        found = tuple(getattr(module, name, None) for name in names)
        return () if None in found else found

    layers = []
    for i, layer in enumerate(model.get_submodule(family.layers_path)):
        norm, module, after = block(layer, family.attention)
        norms = (module.q_norm, module.k_norm) if family.qk_norm else None
        qkv, output = linears(module, family.qkv), getattr(module, "o_proj", None)
        kind, window = family.rotary_kind(config, i), family.window(config, i)
        attention = AttentionModules(norm, module, after, qkv, output, norms, kind, window)
        norm, module, after = block(layer, family.mlp)
        experts, inactive = getattr(module, "experts", None), 0
        held = [] if experts is None else list(experts.parameters())
        if held and held[0].ndim == 3:  # [experts, ...]: the weights of all in one tensor
            whole, count = sum(p.numel() * p.element_size() for p in held), len(held[0])
            inactive = whole - whole * getattr(config, "num_experts_per_tok", count) // count
        gate_up, down = linears(module, family.gate_up), getattr(module, "down_proj", None)
        layers.append((attention, MlpModules(norm, module, after, gate_up, down, inactive)))
    return Modules(
        model.get_submodule(family.embedding_path),
        layers,
        model.get_submodule(family.norm_path),
        model.get_submodule(family.head_path),
        None if family.rotary_path is None else model.get_submodule(family.rotary_path),
        scalar(family.embedding_scale),
        scalar(family.residual_scale),
        scalar(family.logit_scale) / scalar(family.logit_divisor),
        getattr(config, family.logit_cap) if family.logit_cap else None,
    )


def is_llama(model: Any) -> bool:
    """True if the fused engine computes this model's layer: Llama's, with biases, windows and norms
    of queries and keys per head. A linear module that does more, as with an adapter, is none.
    """
    family, modules, config = describe(model), modules_of(model), text_config(model.config)
    plain = replace(family, qk_norm=False, windows="", qkv=(), gate_up=()) == Family(
        qkv=(), gate_up=()
    )
    kinds = {attention.rotary_kind for attention, _ in modules.layers}
    turned = {rope.get("partial_rotary_factor", 1.0) for rope in _rope_parameters(config)}
    one_table = len(kinds) == 1 and None not in kinds and turned <= {1.0}
    silu = getattr(config, "hidden_act", "silu") == "silu"
    layers = ((*a.qkv, a.output, *mlp.gate_up, mlp.down) for a, mlp in modules.layers)
    linear = all(isinstance(module, Linear) for layer in layers for module in layer)
    return plain and one_table and silu and linear
