"""The model families that the engines can drive: one row each, keyed by `model_type` of the Hugging
Face config.

Only this file knows Hugging Face's attribute paths; everything else gets `ModelParts`. All families
share the decoder layer `x + attention(norm(x))`, `x + mlp(norm(x))` with rotary positions and a
gated MLP. Llama's class covers Llama 1 to 3.2, Code Llama, Yi, DeepSeek-Coder and Vicuna.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from skipbench.errors import SkipbenchError


@dataclass(frozen=True)
class Family:
    """What differs between families."""

    qk_norm: bool
    """Whether queries and keys are normalised per head (Qwen3)."""
    window: Callable[[Any, int], int | None]
    """Sliding window in tokens of one layer of a config, `None` for full attention."""


def _no_window(config: Any, layer: int) -> int | None:
    return None


def _one_window(config: Any, layer: int) -> int | None:
    window: int | None = config.sliding_window
    return window


def _window_by_layer(config: Any, layer: int) -> int | None:
    return config.sliding_window if config.layer_types[layer] == "sliding_attention" else None


FAMILIES = {
    "llama": Family(qk_norm=False, window=_no_window),
    "mistral": Family(qk_norm=False, window=_one_window),
    "qwen2": Family(qk_norm=False, window=_window_by_layer),
    "qwen3": Family(qk_norm=True, window=_window_by_layer),
}


@dataclass(frozen=True)
class AttentionParts:
    """One attention sub-layer: its norm, its module, and the linear modules in it."""

    norm: Any
    module: Any
    qkv: tuple[Any, Any, Any]
    output: Any
    qk_norms: tuple[Any, Any] | None
    """Norms of queries and keys per head."""

    @property
    def head_dim(self) -> int:
        return int(self.module.head_dim)

    @property
    def scale(self) -> float:
        """Factor of the products of queries and keys."""
        return float(self.module.scaling)


@dataclass(frozen=True)
class MlpParts:
    """One gated MLP sub-layer."""

    norm: Any
    module: Any
    gate_up: tuple[Any, Any]
    down: Any


@dataclass(frozen=True)
class ModelParts:
    """The modules of a causal language model, by what they do."""

    embedding: Any
    layers: list[tuple[AttentionParts, MlpParts]]
    norm: Any
    head: Any
    rotary: Any


QKV, OUTPUT, GATE_UP, DOWN, HEAD = (
    ("q_proj", "k_proj", "v_proj"),
    ("o_proj",),
    ("gate_proj", "up_proj"),
    ("down_proj",),
    ("lm_head",),
)
"""Names of the linear modules inside an attention module, an MLP module, and the model."""


def parts_of(model: Any) -> ModelParts:
    """The parts of a Hugging Face model as they are now: an engine may put other modules in the
    place of linear ones.

    Raises:
        SkipbenchError: as `family_of`.
    """
    family, body = family_of(model.config), model.model

    def of(layer: Any) -> tuple[AttentionParts, MlpParts]:
        attention, mlp = layer.self_attn, layer.mlp
        norms = (attention.q_norm, attention.k_norm) if family.qk_norm else None
        q, k, v, gate, up = (
            getattr(m, n) for m, names in ((attention, QKV), (mlp, GATE_UP)) for n in names
        )
        return (
            AttentionParts(layer.input_layernorm, attention, (q, k, v), attention.o_proj, norms),
            MlpParts(layer.post_attention_layernorm, mlp, (gate, up), mlp.down_proj),
        )

    return ModelParts(
        body.embed_tokens, [of(y) for y in body.layers], body.norm, model.lm_head, body.rotary_emb
    )


# their cos/sin do not depend on the length decoded so far
ROPE_TYPES = ("default", "linear", "llama3", "yarn")


def family_of(config: Any) -> Family:
    """The row of a Hugging Face config.

    Raises:
        SkipbenchError: the family is unknown, or its rotary positions change with the length of the
            text.
    """
    if config.model_type not in FAMILIES:
        raise SkipbenchError(
            f"model family {config.model_type!r} is not supported; known: {', '.join(FAMILIES)}. A "
            "family with the same decoder layer is one row in skipbench/lm/families.py"
        )
    rope = config.rope_parameters["rope_type"]
    if rope not in ROPE_TYPES:
        raise SkipbenchError(
            f"rope_type {rope!r} is not supported (its angles depend on the current length, which "
            f"a shared K/V cache cannot follow); supported: {', '.join(ROPE_TYPES)}"
        )
    return FAMILIES[config.model_type]
