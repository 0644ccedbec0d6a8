"""`Family`: a decoder layer as data, and the modules of a model that it names.

Both sub-layers of a layer are `x + scale * after(module(before(x)))`. A family names the modules,
the norms before and after them, and all else that differs from Llama's layer.
"""

from dataclasses import dataclass
from typing import Any

Arguments = tuple[tuple[str, str], ...]
"""Parameters of an attention module's `forward`, and the value of each: `hidden` (the normed
state), `rotary` (cosine and sine), `mask` (additive), `positions`, or `cache`."""


def text_config(config: Any) -> Any:
    """The configuration of the decoder of text, which a model of text and images keeps apart."""
    return config.get_text_config(decoder=True)


@dataclass(frozen=True)
class Block:
    """Attribute names of one sub-layer within a decoder layer."""

    module: str
    before: str | None  # norm of the module's input; `None` for none
    after: str | None = None  # norm of the module's output, ahead of the residual sum, likewise


@dataclass(frozen=True)
class Family:
    """A decoder layer, embedding and head of a model family; the defaults are Llama's.

    Factors are given as names of a configuration's fields; an empty name means 1.
    """

    attention: Block = Block("self_attn", "input_layernorm")
    mlp: Block = Block("mlp", "post_attention_layernorm")
    parallel: bool = False  # the MLP reads the layer's input, not the output of attention
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")  # or one linear module that holds all
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")  # or one linear module that holds both
    qk_norm: bool = False  # norms of the queries and keys of each head
    windows: str = ""
    """Layers with a window of `sliding_window` tokens: none, `all`, or those of the `type`
    `sliding_attention` in `layer_types`."""
    rotary: str | tuple[str | None, ...] = ""
    """Rotary tables: the same in all layers; by layer `type` (Gemma 3: another base with a
    window); or the kind of every layer."""
    attention_kernel: str = "sdpa"
    """Hugging Face's `attn_implementation`: `eager` where scores are capped (`softcap`)."""
    embedding_scale: str = ""  # factor that the embedding's module does not apply itself
    residual_scale: str = ""  # factor of a sub-layer's output
    logit_scale: str = ""
    logit_divisor: str = ""
    logit_cap: str = ""  # `cap * tanh(logits / cap)`; none where the field is null
    embedding_path: str = "model.embed_tokens"
    layers_path: str = "model.layers"
    norm_path: str = "model.norm"
    rotary_path: str | None = "model.rotary_emb"
    head_path: str = "lm_head"
    arguments: Arguments = (
        ("hidden_states", "hidden"),
        ("position_embeddings", "rotary"),
        ("attention_mask", "mask"),
        ("past_key_values", "cache"),
    )
    kv_shape: tuple[int, int] | None = None
    """Key heads and size of a head, where the configuration does not have them."""
    traced: bool = False  # described by hooks at load (`lm/traced.py`), not by a row of `FAMILIES`

    def window(self, config: Any, layer: int) -> int | None:
        """Sliding window of one layer in tokens, `None` for full attention."""
        slides = self.windows == "all" or (
            self.windows == "type" and config.layer_types[layer] == "sliding_attention"
        )
        return config.sliding_window if slides else None

    def rotary_kind(self, config: Any, layer: int) -> str | None:
        """Kind of rotary tables of one layer, `None` for none."""
        if isinstance(self.rotary, tuple):
            return self.rotary[layer]
        return str(config.layer_types[layer]) if self.rotary == "type" else ""


@dataclass(frozen=True)
class SublayerModules:
    """The modules that attention and MLP have alike."""

    norm: Any  # before the module; the identity where there is none
    module: Any
    after: Any | None  # norm of the module's output, ahead of the residual sum

    @property
    def weighted(self) -> list[Any]:
        """Those with weights."""
        return [m for m in (self.norm, self.module, self.after) if hasattr(m, "parameters")]


@dataclass(frozen=True)
class AttentionModules(SublayerModules):
    """One attention sub-layer, and the linear modules in it."""

    qkv: tuple[Any, ...]  # empty where the family does not name them; `output` is then `None`
    output: Any
    qk_norms: tuple[Any, Any] | None  # norms of queries and keys
    rotary_kind: str | None  # key into the rotary tables; `None` without rotary positions
    window: int | None  # sliding window in tokens; `None` for full attention

    @property
    def scale(self) -> float:
        """Factor of the products of queries and keys."""
        return float(self.module.scaling)


@dataclass(frozen=True)
class MlpModules(SublayerModules):
    """One MLP sub-layer; its linear modules are named only where it has no experts."""

    gate_up: tuple[Any, ...]
    down: Any
    inactive_bytes: int  # bytes of the experts that one token does not pass


@dataclass(frozen=True)
class Modules:
    """The modules of a causal language model, by what they do."""

    embedding: Any
    layers: list[tuple[AttentionModules, MlpModules]]
    norm: Any
    head: Any
    rotary: Any | None
    embedding_scale: float
    residual_scale: float
    logit_scale: float
    logit_cap: float | None
