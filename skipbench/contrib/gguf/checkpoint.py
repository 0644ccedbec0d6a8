"""GGUF files of the Llama family, read by transformers and kept in Hugging Face's form; what it
reads otherwise than llama.cpp is mended or refused here.
"""

import importlib.util
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import torch

from skipbench.config.model import Model
from skipbench.config.paths import cache_folder
from skipbench.errors import SkipbenchError, printable
from skipbench.models.checks import explained
from skipbench.runs.fingerprint import weights_sha256

FAMILIES = ("llama", "qwen2", "qwen3")
"""Readable values of `general.architecture`; `llama` is also Mistral's and SmolLM2's."""
DIGITS = ("smollm", "starcoder", "refact", "command-r")
"""Byte-level tokenizers (`tokenizer.ggml.pre`) that take every digit by itself."""
SPLITS = ("gpt-2", "llama-bpe", "llama3", "llama-v3", "smaug-bpe", "qwen2", "deepseek-r1-qwen")
"""Byte-level tokenizers that transformers splits as their models were trained."""
BEGIN = ("llama-bpe", "llama3", "llama-v3")
"""Byte-level tokenizers that begin a text with BOS where the file says nothing of it."""
ENDS = {
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>",
    "_<EOT>", "<|end_of_text|>", "<end_of_utterance>",
}  # fmt: skip
"""Special tokens that end a text by their name (llama.cpp, `llama_vocab::impl::load`)."""


def folder_of(path: str) -> Path:
    """The folder in the cache that a file is converted to, once for the same contents. Raises
    SkipbenchError as `convert`.
    """
    file = Path(path)
    digest = weights_sha256(Model("", path)) if file.is_file() else None
    if digest is None:
        raise SkipbenchError(f"model.path={path!r}: no such file")
    folder = cache_folder() / f"{file.stem}-{digest[:16]}"
    if not (folder / "config.json").is_file():
        convert(file, folder)
    return folder


def convert(file: Path, folder: Path) -> None:
    """Writes a file as a checkpoint of Hugging Face, weights in float32, for dequantised ones are
    no numbers of a half precision. Raises SkipbenchError for what is no such file, another
    architecture or tokenizer, a part of a split file, scaled rotary positions, weights that do not
    fit, and a cache that cannot be written.
    """
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise SkipbenchError(f"{file} needs {package}: pip install 'skipbench[gguf]'")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # beside the target, so that the last step is a rename: others see a whole folder or none
        with tempfile.TemporaryDirectory(dir=folder.parent) as place, explained(str(file)):
            alone = Path(place) / "file"  # a tokenizer beside the file is another model's
            alone.mkdir()
            (alone / "model.gguf").symlink_to(file.resolve())
            _write(file, alone, made := Path(place) / "checkpoint")
            try:
                os.replace(made, folder)
            except OSError:  # another process was faster, or an incomplete folder is there
                if not (folder / "config.json").is_file():
                    shutil.rmtree(folder, ignore_errors=True)
                    os.replace(made, folder)
    except OSError as error:
        raise SkipbenchError(
            f"cannot write {folder} ({error}); set XDG_CACHE_HOME to a folder with space"
        ) from error


def _write(file: Path, alone: Path, made: Path) -> None:
    """`convert` for the only file in the folder `alone`."""
    from gguf import GGUFReader
    from transformers import AutoConfig, AutoModelForCausalLM

    reader = GGUFReader(alone / "model.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    tensors = {tensor.name: tensor.shape for tensor in reader.tensors}
    family = str(fields.get("general.architecture"))
    _check(file, fields, tensors, family)
    config = AutoConfig.from_pretrained(alone, gguf_file="model.gguf")
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields.get("tokenizer.ggml.token_type")
    ends = [fields.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    ends += [i for i, t in enumerate(tokens) if t in ENDS and (kinds is None or kinds[i] in (3, 4))]
    known = list(dict.fromkeys(i for i in ends if i is not None))
    config.eos_token_id = known if len(known) > 1 else known[0] if known else None
    config.vocab_size = int(tensors["token_embd.weight"][-1])
    config.head_dim = _head_dim(fields, family)  # transformers forgets Qwen3's
    config.attention_bias = "blk.0.attn_q.bias" in tensors  # and the biases of a llama
    config.mlp_bias = "blk.0.ffn_down.bias" in tensors
    auto: Any = AutoModelForCausalLM  # its constructors are untyped
    model, info = auto.from_pretrained(
        alone, gguf_file="model.gguf", config=config, dtype=torch.float32, output_loading_info=True
    )
    if info["missing_keys"] or len(list(model.parameters())) != len(tensors):
        raise SkipbenchError(f"{file} has not the tensors of a {family} model; fetch it again")
    model.hf_quantizer = None  # nothing is left in blocks, so it can be saved
    del model.config.quantization_config
    model.save_pretrained(made)
    _tokenizer(alone, fields).save_pretrained(made)


def _check(file: Path, fields: dict[str, Any], tensors: dict[str, Any], family: str) -> None:
    """Raises SkipbenchError for a file that transformers would read otherwise than llama.cpp."""
    kind, split = _kind(fields)
    scaling = [v for k, v in fields.items() if k.startswith(f"{family}.rope.scal")]
    rotary = fields.get(f"{family}.rope.dimension_count")
    faults = {
        f"of architecture {family}; wanted {', '.join(FAMILIES)}": family not in FAMILIES,
        "of experts": fields.get(f"{family}.expert_count"),
        "of several files: join them with llama-gguf-split --merge": "split.count" in fields
        and fields["split.count"] > 1,
        "of scaled rotary positions": "rope_freqs.weight" in tensors
        or any(value not in ("none", "linear", 0, 1) for value in scaling),
        f"of a tokenizer that cannot be read ({kind}, {split})": kind not in ("gpt2", "llama")
        or (kind == "gpt2" and split not in DIGITS + SPLITS),
    }
    if not any(faults.values()):
        size = _head_dim(fields, family)
        faults[f"of {rotary} rotary dimensions in heads of {size}"] = rotary not in (None, size)
    if told := [what for what, holds in faults.items() if holds]:
        raise SkipbenchError(printable(f"{file} is {'; '.join(told)}"))


def _head_dim(fields: dict[str, Any], family: str) -> int:
    shared = fields[f"{family}.embedding_length"] // fields[f"{family}.attention.head_count"]
    return int(fields.get(f"{family}.attention.key_length", shared))


def _kind(fields: dict[str, Any]) -> tuple[str, str]:
    """The tokenizer's model, and how it splits a text into words."""
    kind = str(fields.get("tokenizer.ggml.model", "none"))
    return kind, str(fields.get("tokenizer.ggml.pre", "gpt-2"))


def _tokenizer(alone: Path, fields: dict[str, Any]) -> Any:
    """The tokenizer as llama.cpp reads it, with the chat template where the file has one."""
    from tokenizers import pre_tokenizers, processors
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    kind, split = _kind(fields)
    made = AutoTokenizer.from_pretrained(alone, gguf_file="model.gguf", trust_remote_code=False)
    if kind == "gpt2" and split in DIGITS:
        made.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])  # fmt: skip
    begins = fields.get("tokenizer.ggml.add_bos_token", kind == "llama" or split in BEGIN)
    bos, id = made.bos_token, made.bos_token_id
    if begins and bos is not None and made("a").input_ids[:1] != [id]:
        made.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, id)]
        )
    # a family's own class would make its own steps again when the folder is read
    generic: Any = PreTrainedTokenizerFast  # its constructor is untyped
    return generic(
        tokenizer_object=made.backend_tokenizer,
        chat_template=made.chat_template,
        **made.special_tokens_map,
    )
