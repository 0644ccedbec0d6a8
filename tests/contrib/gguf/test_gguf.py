"""GGUF files: tiny random models written with the `gguf` package and read back, and what is said of
files that cannot be read.
"""

import json
import re
import shutil
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from conftest import random_model
from gguf.constants import GGMLQuantizationType as Kind
from gguf.gguf_writer import GGUFValue, GGUFValueType
from transformers import AutoModelForCausalLM

from skipbench.config.compose import compose
from skipbench.config.paths import PACKAGE
from skipbench.contrib.gguf.checkpoint import INNER, OUTER, _check_whole, read_gguf
from skipbench.contrib.gguf.header import read_header
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.models.load import load
from skipbench.models.outline import layer_count
from skipbench.runs.fingerprint import weights_sha256

TINY = PACKAGE / "models" / "tiny"
SIZES = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads", "head_count_kv": "num_key_value_heads",
    "key_length": "head_dim", "layer_norm_rms_eps": "rms_norm_eps",
}  # fmt: skip
MODULES = {module: name for name, module in {**OUTER, **INNER}.items()}


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in llama.cpp's order, as convert_hf_to_gguf.py writes them."""
    parts = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return parts.swapaxes(1, 2).reshape(weight.shape)


def written(path: Path, model: Any, kind: Kind = Kind.F32, **changed: Any) -> Path:
    """A file of a Hugging Face model with a byte-level tokenizer of single bytes.

    Args:
        kind: type of the matrices; norms are in float32, as llama.cpp has them.
        changed: metadata that differs, and `architecture`.
    """
    config, family = model.config, model.config.model_type
    family = changed.pop("architecture", family)
    writer = gguf.GGUFWriter(path, family)
    for key, name in SIZES.items():
        getattr(writer, f"add_{key}")(getattr(config, name))
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    words = ["<end>", *"ĊĠabcdefghijklmnopqrstuvwxyz0123456789.,", "ab", "ĠĠ"]
    words += [f"<{n}>" for n in range(config.vocab_size - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3, *[1] * (len(words) - 1)])
    writer.add_token_merges(["a b", "Ġ Ġ"])
    writer.add_eos_token_id(0)
    for key, value in changed.items():
        field = key.replace("__", ".")
        field = field if field.startswith("tokenizer.") else f"{family}.{field}"
        writer.kv_data[0][field] = GGUFValue(value, GGUFValueType.get_type(value))
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        module, _, part = name.rpartition(".")
        layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module)
        own = f"blk.{layer[1]}.{MODULES[layer[2]]}" if layer else MODULES[module]
        values = tensor.float().numpy()
        if family == "llama" and "attn_q" in own:
            values = permuted(values, config.num_attention_heads)
        if family == "llama" and "attn_k" in own:
            values = permuted(values, config.num_key_value_heads)
        type_ = kind if values.ndim > 1 and values.shape[-1] % 32 == 0 else Kind.F32
        writer.add_tensor(f"{own}.{part}", gguf.quants.quantize(values, type_), raw_dtype=type_)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def unlike(family: str, **changed: Any) -> Any:
    """A random model with other settings than transformers' defaults, and vectors that are neither
    ones nor zeros.
    """
    config = random_model(family).config
    config.rope_parameters = {"rope_type": "default", "rope_theta": 3e5}
    config.rms_norm_eps = 0.02
    for key, value in changed.items():
        setattr(config, key, value)
    torch.manual_seed(2)
    model = AutoModelForCausalLM.from_config(config).eval().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
        else:
            parameter.mul_(4.0)
    return model


@pytest.mark.parametrize(
    ("family", "changed"),
    [
        ("llama", {"tie_word_embeddings": True, "head_dim": 16}),
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", {"tie_word_embeddings": True}),  # it has biases of queries, keys and values
        ("qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
    ],
)
def test_a_model_is_read_back(family: str, changed: dict[str, Any], tmp_path: Path) -> None:
    model = unlike(family, **changed)
    path = written(tmp_path / "m.gguf", model)
    lm, tokenizer = load(str(path))
    ids = torch.arange(12)[None] * 5 % 61
    assert torch.equal(lm.model(ids).logits, model(ids).logits)
    assert layer_count(str(path)) == model.config.num_hidden_layers == lm.layers
    assert lm.model.generation_config.eos_token_id == 0
    assert tokenizer.decode(tokenizer.encode("ab 12")) == "ab 12"
    assert tokenizer.tokenize("ab  12<end>") == ["ab", "ĠĠ", "1", "2", "<end>"]
    tied = bool(changed.get("tie_word_embeddings"))
    head, embedding = lm.model.lm_head.weight, lm.model.model.embed_tokens.weight
    assert (head.data_ptr() == embedding.data_ptr()) == tied
    for key in ("rope_parameters", "head_dim", "tie_word_embeddings"):
        assert getattr(lm.config, key) == getattr(model.config, key), key
    assert lm.config.rms_norm_eps == pytest.approx(0.02)


# half of a type's step beside the largest value of a block of 32
STEPS = {
    Kind.F16: 2**-11,
    Kind.BF16: 2**-8,
    Kind.Q8_0: 1 / 254,
    Kind.Q4_1: 1 / 15,  # of a range of two largest values in 15 steps
    Kind.Q4_0: 1 / 8,  # from -8 to 7: the other end is cut off by a whole step
}


@pytest.mark.parametrize("kind", STEPS)
def test_quantised_weights_are_near(kind: Kind, tmp_path: Path) -> None:
    model = random_model("llama", vocab=64)
    found = read_gguf(str(written(tmp_path / "m.gguf", model, kind))).model(torch.float32)
    for name, weight in model.state_dict().items():
        off = (found.state_dict()[name] - weight).abs()
        if weight.ndim == 1 or weight.shape[-1] % 32:  # norms, and what fills no block
            assert off.max() == 0, name
            continue
        block = weight.reshape(-1, 32).abs().amax(-1)
        error = off.reshape(-1, 32).amax(-1) / block
        # the step itself is rounded to half precision
        assert 0 < error.max() < STEPS[kind] + 2**-11, name


def test_a_cell_runs_from_a_file(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", random_model("llama"))
    (tmp_path / "p.txt").write_text("abc def\nghi 12, jkl\n")
    words = [
        *("model=path", f"model.path={path}", "method=uniform", "dataset=prompts"),
        *(f"dataset.path={tmp_path / 'p.txt'}", "dataset.max_new_tokens=12", "engine.warmup=0"),
        f"results={tmp_path / 'results'}",
    ]
    config = compose(words)
    metrics = run_cell(config, print_table=False)
    assert metrics is not None and metrics.lossless.identical == 2
    (folder,) = (tmp_path / "results" / "runs").iterdir()
    origin = json.loads((folder / "provenance.json").read_text())
    assert origin["weights_sha256"] == weights_sha256(config.model) is not None
    shutil.copy(path, tmp_path / "n.gguf")
    with path.open("r+b") as file:  # another weight, in a file of the same size
        file.seek(-4, 2)
        file.write(struct.pack("<f", 9.0))
    assert weights_sha256(config.model) != origin["weights_sha256"]


def test_a_cut_file_is_refused_wherever_it_ends(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", random_model("llama"))
    whole, entries = path.read_bytes(), read_header(path).entries.values()
    head = min(entry.start for entry in entries)
    last = max(entry.start + entry.size for entry in entries)
    ends = {*range(24), *range(24, head, head // 97), head, *range(head, last, (last - head) // 23)}
    for end in sorted(ends | {last - 1}):
        (tmp_path / "cut.gguf").write_bytes(whole[:end])
        with pytest.raises(SkipbenchError, match="is cut") as refused:
            load(str(tmp_path / "cut.gguf"))
        assert "\n" not in str(refused.value)


TOKENS = [f"t{n}" for n in range(62)]
NO_NUMBERS = (0, -1, "x", True)
NO_IDS = (2**31 - 1, -5, "x", 1.5)


@pytest.mark.parametrize(
    ("key", "values", "says"),
    [
        ("block_count", (*NO_NUMBERS, 2.5), "wanted a whole number above 0"),
        ("block_count", (10**7,), "block_count is 10000000 .* but its tensors have 4"),
        ("embedding_length", NO_NUMBERS, "wanted a whole number above 0"),
        ("feed_forward_length", NO_NUMBERS, "wanted a whole number above 0"),
        ("feed_forward_length", (2**31 - 1,), "does not fit its header"),
        ("context_length", NO_NUMBERS, "wanted a whole number above 0"),
        ("attention.head_count", NO_NUMBERS, "wanted a whole number above 0"),
        ("attention.head_count", (3, 2**31 - 1), "hidden size .32. is not a multiple"),
        ("attention.head_count_kv", NO_NUMBERS, "wanted a whole number above 0"),
        ("attention.key_length", NO_NUMBERS, "wanted a whole number above 0"),
        ("attention.key_length", (7,), "even rotary dim"),
        ("attention.layer_norm_rms_epsilon", (*NO_NUMBERS, np.nan), "wanted a number above 0"),
        ("rope.freq_base", (*NO_NUMBERS, np.nan, np.inf), "wanted a number above 0"),
        ("rope.scaling.factor", (-2.0, np.inf, "2"), "scaled rotary positions"),
        ("rope.scaling.type", ("yarn",), "scaled rotary positions .yarn."),
        ("tokenizer.ggml.pre", ("unheard-of",), "tokenizer gpt2, unheard-of cannot be read"),
        ("tokenizer.ggml.model", ("bert",), "tokenizer bert"),
        ("tokenizer.ggml.eos_token_id", NO_IDS, "wanted the id of one of 61 tokens"),
        ("tokenizer.ggml.bos_token_id", NO_IDS, "wanted the id of one of 61 tokens"),
        ("tokenizer.ggml.tokens", ([1, 2], "abc", TOKENS), "wanted 1 to 61 texts"),
        ("tokenizer.ggml.tokens", ([""], ["a"] * 61), "wanted pairs of tokens"),
        ("tokenizer.ggml.merges", (["ab"], ["zz qq"], ["a c"]), "wanted pairs of tokens"),
        ("tokenizer.ggml.token_type", ([1], 1), "wanted 61 numbers"),
    ],
)
def test_values_that_no_model_has_are_refused(
    key: str, values: tuple[Any, ...], says: str, tmp_path: Path
) -> None:
    model = random_model("llama")
    for value in values:
        path = written(tmp_path / "m.gguf", model, **{key: value})
        with pytest.raises(SkipbenchError, match=says) as refused:
            read_gguf(str(path)).model(torch.float32)
        assert "\n" not in str(refused.value) and str(path) in str(refused.value)


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


@pytest.mark.parametrize(
    ("tensors", "pairs", "rest", "says"),
    [
        (0, 2**63, b"", "a count of 9223372036854775808 .* at most 65536"),
        (2**63, 0, b"", "a count of 9223372036854775808 .* at most 65536"),
        (0, 1, text(b"x") + struct.pack("<IQ", 8, 2**40), "a count of 1099511627776"),
        (0, 1, text(b"x") + struct.pack("<IIQ", 9, 7, 2**27), "at most 2097152"),
        (0, 1, text(b"x") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000, "list of type"),
        (1, 0, text(b"x") + struct.pack("<I", 300_000) + bytes(2_400_000), "300000 .* at most 4"),
        (1, 0, text(b"x") + struct.pack("<IIQ", 0, 0, 0), "shape .., wanted rows"),
        (1, 0, text(b"x") + struct.pack("<IQQIQ", 2, 32, 0, 0, 0), "shape .0, 32., wanted rows"),
        (1, 0, text(b"x") + struct.pack("<IQIQ", 1, 33, 8, 0), "whole blocks of 32"),
    ],
    ids=["pairs", "tensors", "text", "list", "deep", "dimensions", "none", "no rows", "blocks"],
)
def test_headers_without_bounds_are_refused(
    tensors: int, pairs: int, rest: bytes, says: str, tmp_path: Path
) -> None:
    (tmp_path / "m.gguf").write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, tensors, pairs) + rest)
    with pytest.raises(SkipbenchError, match=says) as refused:
        read_gguf(str(tmp_path / "m.gguf"))
    assert "\n" not in str(refused.value)


def test_an_unknown_type_of_weights_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", random_model("llama"))
    data = bytearray(path.read_bytes())
    name = b"blk.0.attn_q.weight"
    at = data.index(name) + len(name) + 4 + 2 * 8
    data[at : at + 4] = struct.pack("<I", 99)
    path.write_bytes(data)
    with pytest.raises(SkipbenchError, match="is of type 99, which gguf does not know"):
        read_header(path)


def test_what_is_no_such_file(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(SkipbenchError, match="no GGUF file of version 2 or 3"):
        load(str(tmp_path / "m.gguf"))
    with pytest.raises(SkipbenchError, match="no such file"):
        load(str(tmp_path / "n.gguf"))
    path = written(tmp_path / "o.gguf", random_model("llama"))
    with pytest.raises(SkipbenchError, match="one device"):
        load(str(path), device="auto")
    path = written(tmp_path / "p.gguf", random_model("llama"), architecture="gemma")
    with pytest.raises(SkipbenchError, match="architecture gemma; wanted llama, qwen2, qwen3"):
        load(str(path))


@pytest.mark.parametrize(
    ("changed", "factor"),
    [
        ({"rope__scale_linear": 2.0}, 2.0),  # as files of 2023 have it
        ({"rope__scaling__factor": 4.0}, 4.0),  # llama.cpp's default type is linear
        ({"rope__scaling__type": "linear", "rope__scaling__factor": 4.0}, 4.0),
        ({"rope__scaling__type": "none", "rope__scaling__factor": 4.0}, None),
        ({"rope__scaling__factor": 1.0}, None),
        ({"rope__scaling__factor": 0.0, "rope__scale_linear": 2.0}, None),
    ],
)
def test_linear_scaling_is_read_as_llama_cpp_reads_it(
    changed: dict[str, Any], factor: float | None, tmp_path: Path
) -> None:
    config = read_gguf(str(written(tmp_path / "m.gguf", random_model("llama"), **changed))).config
    assert config.rope_parameters.get("factor") == factor
    assert config.rope_parameters["rope_type"] == ("default" if factor is None else "linear")


@pytest.mark.parametrize(
    ("pre", "flag", "begins"),
    [
        ("llama-bpe", None, True), ("llama3", None, True), ("llama-bpe", False, False),
        ("qwen2", None, False), ("qwen2", True, True), ("smollm", None, False),
    ],
)  # fmt: skip
def test_a_text_begins_as_llama_cpp_begins_it(
    pre: str, flag: bool | None, begins: bool, tmp_path: Path
) -> None:
    changed: dict[str, Any] = {"tokenizer__ggml__pre": pre, "tokenizer__ggml__bos_token_id": 1}
    if flag is not None:
        changed["tokenizer__ggml__add_bos_token"] = flag
    file = read_gguf(str(written(tmp_path / "m.gguf", random_model("llama"), **changed)))
    ids = file.tokenizer().encode("ab")
    assert ids == [*[1] * begins, *file.tokenizer().encode("ab", add_special_tokens=False)]


def test_a_text_ends_where_llama_cpp_ends_it(tmp_path: Path) -> None:
    """At the tokens that the file names, and at special ones whose text says so."""
    words = ["a", "b", "ab", *(f"<{n}>" for n in range(55))]
    words += ["<|im_end|>", "<|endoftext|>", "<end_of_turn>"]
    changed = {
        "tokenizer__ggml__tokens": words, "tokenizer__ggml__merges": ["a b"],
        "tokenizer__ggml__token_type": [3, *[1] * 57, 3, 4, 1], "tokenizer__ggml__eot_token_id": 7,
    }  # fmt: skip
    path = written(tmp_path / "m.gguf", random_model("llama"), **changed)
    assert read_gguf(str(path)).config.eos_token_id == [0, 7, 58, 59]


def test_a_part_of_a_split_file_says_how_to_join_it(tmp_path: Path) -> None:
    path = written(tmp_path / "m-00002-of-00003.gguf", random_model("llama"))
    header = read_header(path)
    part = header._replace(fields={**header.fields, "split.count": 3, "split.no": 1})
    with pytest.raises(SkipbenchError, match=r"part 2 of 3 .*llama-gguf-split --merge"):
        _check_whole(part)


def test_a_tokenizer_beside_a_file_is_another_models(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", random_model("llama"))
    wanted = read_gguf(str(path)).tokenizer().encode("ab 12")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, tmp_path)
    tokenizer = read_gguf(str(path)).tokenizer()
    assert tokenizer.encode("ab 12") == wanted and tokenizer.name_or_path == str(path)
