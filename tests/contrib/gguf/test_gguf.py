"""GGUF files: tiny random models written with the `gguf` package and read back, and what is said of
files that cannot be read.
"""

import hashlib
import json
import re
import shutil
import struct
import zipfile
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from conftest import random_model, shallow
from gguf.constants import GGMLQuantizationType as Kind
from gguf.gguf_writer import GGUFValue, GGUFValueType
from malformed import Reader, faults
from msgspec.structs import replace
from transformers import AutoModelForCausalLM

from skipbench.bench.load import load_model
from skipbench.config.compose import compose
from skipbench.contrib.gguf import checkpoint
from skipbench.contrib.gguf.checkpoint import folder_of
from skipbench.contrib.gguf.package import fetch_wheel
from skipbench.contrib.gguf.settings import Wheel
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.models.load import load
from skipbench.models.outline import read_config, read_tokenizer
from skipbench.runs.fingerprint import weights_sha256
from skipbench.runs.reading import run_folders

SIZES = {
    "block_count": "num_hidden_layers", "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size", "feed_forward_length": "intermediate_size",
    "head_count": "num_attention_heads", "head_count_kv": "num_key_value_heads",
    "key_length": "head_dim", "layer_norm_rms_eps": "rms_norm_eps",
}  # fmt: skip
MODULES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
MODULES |= {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
MODULES |= {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"}
MODULES |= {f"self_attn.{name}_norm": f"attn_{name}_norm" for name in "qk"}
MODULES |= {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
MODULES["self_attn.o_proj"] = "attn_output"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of converted files."""
    monkeypatch.setattr(checkpoint, "cache_folder", lambda: tmp_path / "cache")
    return tmp_path / "cache"


def permuted(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows in llama.cpp's order, as convert_hf_to_gguf.py writes them."""
    parts = weight.reshape(heads, 2, weight.shape[0] // heads // 2, *weight.shape[1:])
    return parts.swapaxes(1, 2).reshape(weight.shape)


def kind_of(values: np.ndarray, kind: Kind) -> Kind:
    return kind if values.ndim > 1 and values.shape[-1] % 32 == 0 else Kind.F32


def written(path: Path, model: Any, kind: Kind = Kind.F32, **changed: Any) -> Path:
    """A file of a Hugging Face model with a byte-level tokenizer of single bytes.

    Args:
        kind: type of the matrices; norms are in float32, as llama.cpp has them.
        changed: metadata that differs, and `architecture`.
    """
    config, family = model.config, model.config.model_type.replace("mistral", "llama")
    family = changed.pop("architecture", family)
    writer = gguf.GGUFWriter(path, family)
    for key, name in SIZES.items():
        getattr(writer, f"add_{key}")(getattr(config, name))
    writer.add_rope_dimension_count(config.head_dim)
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
        field = field if field.startswith(("tokenizer.", "split.")) else f"{family}.{field}"
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
        type_ = kind_of(values, kind)
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
    ("family", "kind", "changed"),
    [
        ("llama", Kind.F32, {"tie_word_embeddings": True, "head_dim": 16}),
        ("mistral", Kind.Q8_0, {}),
        ("llama", Kind.F32, {"attention_bias": True, "mlp_bias": True}),
        ("qwen2", Kind.Q4_1, {"tie_word_embeddings": True}),  # biases of queries, keys and values
        ("qwen3", Kind.F32, {"tie_word_embeddings": True, "head_dim": 16}),
    ],
)
def test_a_model_is_read_back(
    family: str, kind: Kind, changed: dict[str, Any], tmp_path: Path
) -> None:
    model = unlike(family, **changed)
    path = written(tmp_path / "m.gguf", model, kind)
    lm, tokenizer = load(str(path))
    found = lm.model.state_dict()
    assert found.keys() == model.state_dict().keys()
    for name, weight in model.state_dict().items():
        values = weight.numpy()
        of = kind_of(values, kind)
        wanted = gguf.quants.dequantize(gguf.quants.quantize(values, of), of)
        assert np.array_equal(found[name].numpy(), wanted.reshape(values.shape)), name
    ids = torch.arange(12)[None] * 5 % 61
    assert kind != Kind.F32 or torch.equal(lm.model(ids).logits, model(ids).logits)
    assert model.config.num_hidden_layers == lm.layers
    assert lm.model.generation_config.eos_token_id == 0
    assert tokenizer.decode(tokenizer.encode("ab 12")) == "ab 12"
    assert tokenizer.tokenize("ab  12<end>") == ["ab", "ĠĠ", "1", "2", "<end>"]
    head, embedding = lm.model.lm_head.weight, lm.model.model.embed_tokens.weight
    assert (head.data_ptr() == embedding.data_ptr()) == bool(changed.get("tie_word_embeddings"))
    for key in ("rope_parameters", "head_dim", "tie_word_embeddings"):
        assert getattr(lm.config, key) == getattr(model.config, key), key
    assert lm.config.rms_norm_eps == pytest.approx(0.02)


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
    (folder,) = run_folders(tmp_path / "results")
    origin = json.loads((folder / "provenance.json").read_text())
    assert origin["weights_sha256"] == weights_sha256(config.model) is not None
    shutil.copy(path, tmp_path / "n.gguf")
    with path.open("r+b") as file:  # another weight, in a file of the same size
        file.seek(-4, 2)
        file.write(struct.pack("<f", 9.0))
    assert weights_sha256(config.model) != origin["weights_sha256"]


def test_a_file_is_converted_once(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "m.gguf", random_model("llama"))
    folder = folder_of(str(path))
    monkeypatch.setattr(checkpoint, "convert", None)
    shutil.copy(path, tmp_path / "copy.gguf")
    assert load(str(path))[0].layers == 4 and folder_of(str(path)) == folder
    assert [*cache.iterdir()] == [folder]


def test_a_cut_file_is_refused_wherever_it_ends(tmp_path: Path, cache: Path) -> None:
    whole = written(tmp_path / "m.gguf", shallow("llama", 1)).read_bytes()
    short = [whole[:end] for end in (0, 3, 300, len(whole) // 2, len(whole) - 64)]
    for contents in (*short, b"PK\x03\x04" + bytes(100)):
        (tmp_path / "cut.gguf").write_bytes(contents)
        with pytest.raises(SkipbenchError, match=r"cut\.gguf") as refused:
            load(str(tmp_path / "cut.gguf"))
        assert "\n" not in str(refused.value)
    assert not [*cache.iterdir()]  # nothing half done is left


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"architecture": "gemma"}, "of architecture gemma; wanted llama, qwen2, qwen3"),
        ({"expert_count": 8}, "of experts"),
        ({"split__count": 3}, "llama-gguf-split --merge"),
        ({"rope__scaling__type": "yarn"}, "of scaled rotary positions"),
        ({"rope__dimension_count": 4}, "of 4 rotary dimensions in heads of"),
        ({"tokenizer__ggml__pre": "unheard-of"}, "cannot be read .gpt2, unheard-of."),
        ({"block_count": 3}, "has not the tensors of a llama model"),
    ],
)
def test_what_would_be_read_otherwise_is_refused(
    changed: dict[str, Any], says: str, tmp_path: Path, cache: Path
) -> None:
    path = written(tmp_path / "m.gguf", shallow("llama", 1), **changed)
    with pytest.raises(SkipbenchError, match=says) as refused:
        read_config(str(path), None)
    assert "\n" not in str(refused.value) and str(path) in str(refused.value)
    assert not [*cache.iterdir()]


def test_a_text_begins_as_llama_cpp_begins_it(tmp_path: Path) -> None:
    for pre, flag, begins in (
        ("llama-bpe", {}, True), ("llama-bpe", {"tokenizer__ggml__add_bos_token": False}, False),
        ("qwen2", {}, False), ("qwen2", {"tokenizer__ggml__add_bos_token": True}, True),
    ):  # fmt: skip
        changed = {"tokenizer__ggml__pre": pre, "tokenizer__ggml__bos_token_id": 1, **flag}
        made = read_tokenizer(str(written(tmp_path / "m.gguf", shallow("llama", 1), **changed)))
        assert made.encode("ab") == [*[1] * begins, *made.encode("ab", add_special_tokens=False)]


def test_a_text_ends_where_llama_cpp_ends_it(tmp_path: Path) -> None:
    """At the tokens that the file names, and at special ones whose text says so."""
    words = ["a", "b", "ab", *(f"<{n}>" for n in range(55))]
    words += ["<|im_end|>", "<|endoftext|>", "<end_of_turn>"]
    changed = {
        "tokenizer__ggml__tokens": words, "tokenizer__ggml__merges": ["a b"],
        "tokenizer__ggml__token_type": [3, *[1] * 57, 3, 4, 1], "tokenizer__ggml__eot_token_id": 7,
    }  # fmt: skip
    path = written(tmp_path / "m.gguf", shallow("llama", 1), **changed)
    assert read_config(str(path), None).eos_token_id == [0, 7, 58, 59]


@pytest.mark.filterwarnings("ignore")  # of a library that reads nonsense
@pytest.mark.parametrize("each", [4, pytest.param(3450, marks=pytest.mark.slow)])
def test_a_damaged_file_is_read_or_refused_in_one_line(each: int, tmp_path: Path) -> None:
    file = written(tmp_path / "m.gguf", shallow("llama", 1))
    read_tokenizer(str(file))
    assert not faults({file.name: Reader(file, lambda: read_tokenizer(str(file)))}, each)


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel of a tiny random model, in a folder that stands for the package index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    gguf = written(tmp_path / "m.gguf", random_model("llama"))
    path = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    meta = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, "tiny_model/m.gguf")
        about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr(f"{meta}/METADATA", about)
        archive.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{meta}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel("tiny-model==1.0", digest, "tiny_model/m.gguf")


def test_a_package_is_converted_once(
    packed: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch_wheel(packed, tmp_path / "made" / "tiny")
    assert first.size_bytes > 0 and len(first.seconds) == 2
    lm, tokenizer = load(str(first.folder))
    ids = torch.arange(9)[None]
    assert torch.equal(lm.model(ids).logits, random_model("llama")(ids).logits)
    assert tokenizer.tokenize("ab  12") == ["ab", "ĠĠ", "1", "2"]
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    again = fetch_wheel(packed, tmp_path / "made" / "tiny")
    assert again.folder == first.folder and not again.seconds
    assert [*first.folder.parent.iterdir()] == [first.folder]


def test_a_package_that_cannot_be_used(packed: Wheel, tmp_path: Path) -> None:
    with pytest.raises(
        SkipbenchError, match=r"has changed: the SHA-256 of tiny_model-1\.0"
    ) as refused:
        fetch_wheel(replace(packed, sha256="0" * 64), tmp_path / "made" / "tiny")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "made").exists()  # nothing half done is left


def test_weights_of_the_package_are_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    hub, package = (compose([f"model={name}"]) for name in ("smollm2-135m", "smollm2-135m-q4_1"))
    assert package.model.revision is None and package.model.wheel is not None
    assert package.model.architecture == hub.model.architecture
    assert hub.record()["model"] != package.record()["model"]
    assert not {"wheel", "strict"} & package.record()["model"].keys()
    with pytest.raises(SkipbenchError, match="data MODEL` fetches it"):
        load_model(package.model, package.engine)
