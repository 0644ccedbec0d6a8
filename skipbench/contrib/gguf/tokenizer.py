"""The tokenizer of a GGUF file, read as llama.cpp reads it."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skipbench.contrib.gguf.header import Header
from skipbench.errors import SkipbenchError, printable
from skipbench.models.checks import explained

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


def read_own(header: Header) -> Any:
    """The tokenizer, with the chat template where the file has one."""
    from tokenizers import pre_tokenizers, processors

    kind, split = _kind(header)
    with explained(str(header.path)):
        tokenizer = _of_transformers(header.path.resolve())
    if kind == "gpt2" and split in DIGITS:
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ])  # fmt: skip
    # llama.cpp puts BOS before a text by this default
    default = kind == "llama" or split in LLAMA3
    begins = header.fields.get("tokenizer.ggml.add_bos_token", default)
    bos, id = tokenizer.bos_token, tokenizer.bos_token_id
    if begins and bos is not None and tokenizer("a").input_ids[:1] != [id]:
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], pair=[bos, "$A", bos, "$B"], special_tokens=[(bos, id)]
        )
    return tokenizer


def _of_transformers(file: Path) -> Any:
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


def word(header: Header, key: str, default: str) -> str:
    """A text of the metadata, as it may be printed."""
    return printable(str(header.fields.get(key, default)))[:60]


def _kind(header: Header) -> tuple[str, str]:
    """The tokenizer's model, and how it splits a text into words."""
    kind = word(header, "tokenizer.ggml.model", "none")
    split = word(header, "tokenizer.ggml.pre", "gpt-2")
    if kind not in ("gpt2", "llama") or (kind == "gpt2" and split not in DIGITS + SPLITS):
        raise SkipbenchError(
            f"{header.path}: tokenizer {kind}, {split} cannot be read; wanted llama, or gpt2 with "
            f"one of {', '.join(DIGITS + SPLITS)}. Give the model's own folder"
        )
    return kind, split


def check_tokens(header: Header) -> None:
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


def text_ends(fields: Mapping[str, Any]) -> list[int]:
    """Ids that end a text: those that the file names, and those that llama.cpp knows by text."""
    given = [fields.get(f"tokenizer.ggml.{end}_token_id") for end in ("eos", "eot", "eom")]
    known = [i for i, text in enumerate(fields["tokenizer.ggml.tokens"]) if text in ENDS]
    kinds = fields.get("tokenizer.ggml.token_type")
    special = [i for i in known if kinds is None or kinds[i] in (CONTROL, USER_DEFINED)]
    return list(dict.fromkeys(i for i in (*given, *special) if i is not None))
