"""GGUF files of the Llama family, read into the classes of Hugging Face.

Weights are dequantised to float32 and rounded to the model's dtype. llama.cpp
(convert_hf_to_gguf.py) defines the names, and the order of the rows of queries and keys of `llama`.
"""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skipbench.contrib.gguf.header import Header, read_header
from skipbench.contrib.gguf.tokenizer import check_tokens, read_own, text_ends, word
from skipbench.errors import SkipbenchError
from skipbench.lm.families import check_config
from skipbench.models.checks import explained
from skipbench.models.random_weights import empty_model

FAMILIES = ("llama", "qwen2", "qwen3")
"""Readable values of `general.architecture`; `llama` is also Mistral's and SmolLM2's."""
OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
INNER = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
INNER |= {f"attn_{name}": f"self_attn.{name}_proj" for name in "qkv"}
INNER |= {f"attn_{name}_norm": f"self_attn.{name}_norm" for name in "qk"}
INNER |= {f"ffn_{name}": f"mlp.{name}_proj" for name in ("gate", "up", "down")}
INNER["attn_output"] = "self_attn.o_proj"
"""Tensors of a file, and the modules of Hugging Face that hold them."""


class GGUF(NamedTuple):
    """A GGUF file whose header is read, and its configuration in Hugging Face's class."""

    header: Header
    config: Any

    def model(self, dtype: torch.dtype) -> Any:
        """The causal language model on the CPU, with its weights in `dtype`. Raises SkipbenchError
        for a type that cannot be read, and weights that are missing or of another shape.
        """
        with explained(str(self.header.path)):
            model = empty_model(self.config, dtype, "meta")
        names = {self._name(name): name for name in self.header.entries}
        if self.config.tie_word_embeddings:
            names["lm_head.weight"] = names["model.embed_tokens.weight"]
        wanted = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        found = {name: self.header.entries[own].shape for name, own in names.items()}
        for name in sorted(wanted.keys() | found.keys()):
            if wanted.get(name) != found.get(name):
                raise SkipbenchError(
                    f"{self.header.path} does not fit its header: {name!r} is {found.get(name)}, "
                    f"wanted {wanted.get(name)}; fetch the file again"
                )
        weights = {own: self._weight(own).to(dtype) for own in self.header.entries}
        model.load_state_dict({name: weights[own] for name, own in names.items()}, assign=True)
        model.tie_weights()
        # made on no device, they have no numbers
        model.model.rotary_emb = type(model.model.rotary_emb)(config=self.config)
        return model

    def tokenizer(self) -> Any:
        """The tokenizer, with the chat template where the file has one. Raises SkipbenchError for
        one that cannot be read.
        """
        return read_own(self.header)

    def _name(self, name: str) -> str:
        """Name of a tensor in the Hugging Face model."""
        first, *rest = name.split(".")
        if first == "blk" and len(rest) == 3 and rest[1] in INNER:
            return f"model.layers.{rest[0]}.{INNER[rest[1]]}.{rest[2]}"
        if first in OUTER and len(rest) == 1:
            return f"{OUTER[first]}.{rest[0]}"
        raise SkipbenchError(
            f"{self.header.path}: tensor {name!r} is no part of a {self.config.model_type} model"
        )

    def _weight(self, name: str) -> Tensor:
        weight = torch.from_numpy(np.array(self.header.dequantized(name), dtype=np.float32))
        config, permuted = self.config, (".attn_q." in name or ".attn_k." in name)
        if config.model_type != "llama" or not permuted:
            return weight
        heads = config.num_attention_heads if ".attn_q." in name else config.num_key_value_heads
        # Hugging Face has the halves of a head that are rotated together one after the other, not
        # interleaved.
        pairs = weight.view(heads, weight.shape[0] // heads // 2, 2, *weight.shape[1:])
        return pairs.transpose(1, 2).reshape(weight.shape)


def _rotary(header: Header, family: str, theta: float) -> dict[str, Any]:
    """The rotary positions as llama.cpp reads them: a factor without a type scales linearly, also
    under the name that files of 2023 give it. Raises SkipbenchError for what cannot be kept.
    """
    kind = word(header, f"{family}.rope.scaling.type", "linear")
    factor = header.fields.get(f"{family}.rope.scaling.factor")
    factor = header.fields.get(f"{family}.rope.scale_linear", 0) if factor is None else factor
    sound = type(factor) in (int, float) and 0 <= factor < math.inf
    if kind not in ("linear", "none") or not sound or "rope_freqs.weight" in header.entries:
        raise SkipbenchError(
            f"model.path={header.path} has scaled rotary positions ({kind}, factor {factor!r:.20})"
            ", which are not read from GGUF; give the model's own folder instead"
        )
    if kind == "none" or factor in (0, 1):
        return {"rope_type": "default", "rope_theta": theta}
    return {"rope_type": "linear", "rope_theta": theta, "factor": float(factor)}


def _check_whole(header: Header) -> None:
    """Raises SkipbenchError for a part of a split file."""
    count, number = (header.fields.get(f"split.{name}") for name in ("count", "no"))
    if isinstance(count, int) and count > 1:
        part = number + 1 if isinstance(number, int) else "?"
        raise SkipbenchError(
            f"model.path={header.path} is part {part} of {count} of a split model; join them with "
            "`llama-gguf-split --merge FIRST_PART OUT.gguf`, and give that file"
        )


def read_gguf(file: str) -> GGUF:
    """Reads the header of a file. Raises SkipbenchError as `read_header`, and for another
    architecture or tokenizer, rotary positions that cannot be kept, or values that no model can
    have.
    """
    from transformers import AutoConfig

    path, fields, tensors = header = read_header(Path(file))
    family = word(header, "general.architecture", "none")
    experts = " with experts" if fields.get(f"{family}.expert_count") else ""
    if family not in FAMILIES or experts:
        raise SkipbenchError(
            f"model.path={path} holds a model of architecture {family}{experts}; wanted "
            f"{', '.join(FAMILIES)}"
        )
    _check_whole(header)
    theta = float(_number(header, f"{family}.rope.freq_base", 10000.0, kinds=(int, float)))
    rotary = _rotary(header, family, theta)
    if "token_embd.weight" not in tensors:
        raise SkipbenchError(f"model.path={path} lacks token_embd.weight; fetch it again")
    check_tokens(header)
    ends = text_ends(fields)
    settings = _sizes(header, family) | {
        "rope_parameters": rotary,
        "tie_word_embeddings": "output.weight" not in tensors,
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_down.bias" in tensors,
        "bos_token_id": fields.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends if len(ends) > 1 else ends[0] if ends else None,
        "pad_token_id": fields.get("tokenizer.ggml.padding_token_id"),
    }
    with explained(str(path)):
        config = AutoConfig.for_model(family, **settings)
        check_config(config)
    return GGUF(header, config)


def _sizes(header: Header, family: str) -> dict[str, Any]:
    """The sizes of a model by Hugging Face's names. Raises SkipbenchError for one that is missing,
    that no model can have, or that is not that of the tensors.
    """

    def get(key: str, *default: int) -> Any:
        return _number(header, f"{family}.{key}", *default)

    shape = header.entries["token_embd.weight"].shape
    blocks = {name.split(".")[1] for name in header.entries if name.startswith("blk.")}
    heads, hidden, layers = get("attention.head_count"), get("embedding_length"), get("block_count")
    if (layers, hidden) != (len(blocks), shape[-1]):
        raise SkipbenchError(
            f"model.path={header.path}: {family}.block_count is {layers} and embedding_length "
            f"{hidden}, but its tensors have {len(blocks)} and {shape[-1]}; fetch the file again"
        )
    epsilon = f"{family}.attention.layer_norm_rms_epsilon"
    return {
        "vocab_size": int(shape[0]),
        "hidden_size": hidden,
        "intermediate_size": get("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": get("attention.head_count_kv", heads),
        "head_dim": get("attention.key_length", max(1, hidden // heads)),
        "max_position_embeddings": get("context_length"),
        "rms_norm_eps": float(_number(header, epsilon, kinds=(int, float))),
    }


def _number(header: Header, key: str, *default: Any, kinds: tuple[type, ...] = (int,)) -> Any:
    """A number above 0 of the metadata. Raises SkipbenchError for another value, or none."""
    found = header.fields.get(key, *default)
    if found is None:
        fault = f" lacks {key}; fetch it again"
    elif isinstance(found, list):
        fault = f" has another {key} in every layer, which is not read"
    elif type(found) not in kinds or not 0 < found < math.inf:
        kind = "number" if float in kinds else "whole number"
        fault = f": {key} is {found!r:.60}, wanted a {kind} above 0; fetch the file again"
    else:
        return found
    raise SkipbenchError(f"model.path={header.path}{fault}")
