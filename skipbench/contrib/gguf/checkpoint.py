"""GGUF files of the Llama family, read into the classes of Hugging Face.

Weights are dequantised to float32 and rounded to the model's dtype. llama.cpp
(convert_hf_to_gguf.py) defines the names, and the order of the rows of queries and keys of `llama`.
"""

import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from skipbench.contrib.gguf.header import Header, read_header
from skipbench.errors import SkipbenchError, printable
from skipbench.lm.families import check_config
from skipbench.models.checks import check_sizes, explained
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
DIGITS = ("smollm", "starcoder", "refact", "command-r")
"""Byte-level tokenizers (`tokenizer.ggml.pre`) that take every digit by itself."""
SPLITS = ("gpt-2", "llama-bpe", "llama3", "llama-v3", "smaug-bpe", "qwen2", "deepseek-r1-qwen")
"""Byte-level tokenizers that transformers splits as their models were trained."""
LLAMA3 = ("llama-bpe", "llama3", "llama-v3")
"""Byte-level tokenizers that begin a text with BOS where the file says nothing of it."""
ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>",
    "_<EOT>", "<|end_of_text|>", "<end_of_utterance>",
}  # fmt: skip
"""Special tokens that end a text by their name (llama.cpp, `llama_vocab::impl::load`)."""
CONTROL, USER_DEFINED = 3, 4  # of `tokenizer.ggml.token_type`


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
        from tokenizers import pre_tokenizers, processors

        kind, split = _kind(self.header)
        with explained(str(self.header.path)):
            tokenizer = _own_tokenizer(self.header.path.resolve())
        if kind == "gpt2" and split in DIGITS:
            tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
            ])  # fmt: skip
        begins = _begins(self.header) and tokenizer.bos_token is not None
        if begins and tokenizer("a").input_ids[:1] != [tokenizer.bos_token_id]:
            bos, id = tokenizer.bos_token, tokenizer.bos_token_id
            tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
                single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, id)]
            )
        return tokenizer

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


def _own_tokenizer(file: Path) -> Any:
    """The file's tokenizer as transformers reads it, through a link in an empty folder: one that
    lies beside the file is another model's.
    """
    from transformers import AutoTokenizer

    with tempfile.TemporaryDirectory(prefix="skipbench-gguf-") as alone:
        (Path(alone) / file.name).symlink_to(file)
        tokenizer = AutoTokenizer.from_pretrained(
            alone, gguf_file=file.name, trust_remote_code=False
        )
    tokenizer.name_or_path = str(file)
    return tokenizer


def _word(header: Header, key: str, default: str) -> str:
    return printable(str(header.fields.get(key, default)))[:60]


def _kind(header: Header) -> tuple[str, str]:
    """The tokenizer's model, and how it splits a text into words."""
    kind = _word(header, "tokenizer.ggml.model", "none")
    split = _word(header, "tokenizer.ggml.pre", "gpt-2")
    if kind not in ("gpt2", "llama") or (kind == "gpt2" and split not in DIGITS + SPLITS):
        raise SkipbenchError(
            f"{header.path}: tokenizer {kind}, {split} cannot be read; wanted llama, or gpt2 with "
            f"one of {', '.join(DIGITS + SPLITS)}. Give the model's own folder"
        )
    return kind, split


def _check_tokens(header: Header) -> None:
    """Raises SkipbenchError for a tokenizer that cannot be read or whose parts do not fit."""
    kind, _ = _kind(header)
    rows = header.entries["token_embd.weight"].shape[0]

    def field(key: str, default: Any = None) -> Any:
        return header.fields.get(f"tokenizer.ggml.{key}", default)

    def texts(key: str) -> list[str]:
        found = field(key)
        sound = isinstance(found, list) and all(isinstance(item, str) for item in found)
        return found if sound else []

    def require(key: str, sound: bool, wanted: str) -> None:
        if not sound:
            raise SkipbenchError(
                f"{header.path}: tokenizer.ggml.{key} is {field(key)!r:.60}, wanted {wanted}; "
                "fetch the file again"
            )

    tokens, merges = texts("tokens"), [merge.split(" ") for merge in texts("merges")]
    known, count = set(tokens), len(tokens)
    require("tokens", 0 < count <= rows, f"1 to {rows} texts")
    joined = all(len(pair) == 2 and {*pair, "".join(pair)} <= known for pair in merges)
    given = kind == "llama" or field("merges") is not None
    require("merges", given and joined, "pairs of tokens that make a token")
    for key in ("token_type", "scores"):
        found = field(key, tokens)
        require(key, isinstance(found, list) and len(found) == count, f"{count} numbers")
    for key in ("bos", "eos", "eot", "eom", "padding", "unknown"):
        found = field(f"{key}_token_id", 0)
        sound = type(found) is int and 0 <= found < count
        require(f"{key}_token_id", sound, f"the id of one of {count} tokens")


def _rotary(header: Header, family: str, theta: float) -> dict[str, Any]:
    """The rotary positions as llama.cpp reads them: a factor without a type scales linearly, also
    under the name that files of 2023 give it. Raises SkipbenchError for what cannot be kept.
    """
    kind = _word(header, f"{family}.rope.scaling.type", "linear")
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


def _ends(fields: Mapping[str, Any]) -> list[int]:
    """Ids that end a text: those that the file names, and those that llama.cpp knows by text."""
    given = [fields.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    known = [i for i, text in enumerate(fields["tokenizer.ggml.tokens"]) if text in ENDS]
    kinds = fields.get("tokenizer.ggml.token_type")
    special = [i for i in known if kinds is None or kinds[i] in (CONTROL, USER_DEFINED)]
    return list(dict.fromkeys(i for i in (*given, *special) if i is not None))


def _begins(header: Header) -> bool:
    """Whether llama.cpp puts BOS before a text."""
    kind, split = _kind(header)
    default = kind == "llama" or split in LLAMA3
    return bool(header.fields.get("tokenizer.ggml.add_bos_token", default))


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
    family = _word(header, "general.architecture", "none")
    experts = " with experts" if fields.get(f"{family}.expert_count") else ""
    if family not in FAMILIES or experts:
        raise SkipbenchError(
            f"model.path={path} holds a model of architecture {family}{experts}; wanted "
            f"{', '.join(FAMILIES)}"
        )

    def get(key: str, *default: Any, kinds: tuple[type, ...] = (int,)) -> Any:
        key = f"{family}.{key}"
        found = fields.get(key, *default)
        if found is None:
            fault = f" lacks {key}; fetch it again"
        elif isinstance(found, list):
            fault = f" has another {key} in every layer, which is not read"
        elif type(found) not in kinds or not 0 < found < math.inf:
            kind = "number" if float in kinds else "whole number"
            fault = f": {key} is {found!r:.60}, wanted a {kind} above 0; fetch the file again"
        else:
            return found
        raise SkipbenchError(f"model.path={path}{fault}")

    _check_whole(header)
    theta = float(get("rope.freq_base", 10000.0, kinds=(int, float)))
    rotary = _rotary(header, family, theta)
    if "token_embd.weight" not in tensors:
        raise SkipbenchError(f"model.path={path} lacks token_embd.weight; fetch it again")
    _check_tokens(header)
    shape, numbers = tensors["token_embd.weight"].shape, (int, float)
    blocks = {name.split(".")[1] for name in tensors if name.startswith("blk.")}
    heads, hidden, layers = get("attention.head_count"), get("embedding_length"), get("block_count")
    if (layers, hidden) != (len(blocks), shape[-1]):
        raise SkipbenchError(
            f"model.path={path}: {family}.block_count is {layers} and embedding_length {hidden}, "
            f"but its tensors have {len(blocks)} and {shape[-1]}; fetch the file again"
        )
    ends = _ends(fields)
    settings = dict(
        vocab_size=int(shape[0]),
        hidden_size=hidden,
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=get("attention.head_count_kv", heads),
        head_dim=get("attention.key_length", max(1, hidden // heads)),
        max_position_embeddings=get("context_length"),
        rms_norm_eps=float(get("attention.layer_norm_rms_epsilon", kinds=numbers)),
        rope_parameters=rotary,
        tie_word_embeddings="output.weight" not in tensors,
        attention_bias="blk.0.attn_q.bias" in tensors,
        mlp_bias="blk.0.ffn_down.bias" in tensors,
        bos_token_id=fields.get("tokenizer.ggml.bos_token_id"),
        eos_token_id=ends if len(ends) > 1 else ends[0] if ends else None,
        pad_token_id=fields.get("tokenizer.ggml.padding_token_id"),
    )
    with explained(str(path)):
        config = AutoConfig.for_model(family, **settings)
    check_sizes(str(path), config)
    check_config(config)
    return GGUF(header, config)
