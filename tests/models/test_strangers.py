"""Files as strangers bring them: checkpoints, tokenizers and rows of the kinds that public reports
tell of, each read as their authors meant them or refused in a line.
"""

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import tiny_copy
from conftest import random_lm
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer

from skipbench.bench.load import load_model
from skipbench.bench.prompts import encode, eos_ids
from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.config.derived import quoted
from skipbench.config.model import check_path
from skipbench.config.paths import PACKAGE
from skipbench.data.rows import Example, read_file
from skipbench.decode.answer import Detokenizer
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.lm.families import _rope_parameters
from skipbench.models.load import load
from skipbench.models.outline import layer_count, read_config
from skipbench.report.values import MISSING

TINY = PACKAGE / "models" / "tiny"
TEXTS = ["Hello  world, it's  a day .", "  two spaces", "né 日本 🙂\n\tx", "a ? b ! c n't"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_copy(tmp_path / "model")


def byte_level(folder: Path, **settings: Any) -> tuple[Any, Tokenizer]:
    """A byte-level tokenizer in a folder, as Hugging Face reads it, and as it is."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=["<s>"], show_progress=False
    )
    raw.train_from_iterator(TEXTS * 4, trainer)
    raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"} | settings))
    return AutoTokenizer.from_pretrained(folder), raw


@pytest.mark.parametrize(
    "kind", ["LlamaTokenizerFast", "LlamaTokenizer", "PreTrainedTokenizerFast"]
)
def test_byte_level_files_keep_their_spaces(tmp_path: Path, kind: str) -> None:
    """transformers 5.3 to 5.15 dropped all of them under Llama's class."""
    read, raw = byte_level(tmp_path, tokenizer_class=kind, model_max_length=64)
    for text in TEXTS:
        assert read.encode(text, add_special_tokens=False) == raw.encode(text).ids
        assert read.decode(raw.encode(text).ids) == text


@pytest.mark.parametrize("clean", [True, False])
def test_pieces_are_the_text_that_is_decoded_at_once(tmp_path: Path, clean: bool) -> None:
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": clean}
    tokenizer, raw = byte_level(tmp_path, **kind)
    lots = random.Random(0)
    drawn = [[lots.randrange(1, raw.get_vocab_size()) for _ in range(12)] for _ in range(200)]
    for ids in [*(raw.encode(text).ids for text in TEXTS), *drawn]:
        pieces = Detokenizer(lambda ids: str(tokenizer.decode(ids, skip_special_tokens=True)))
        assert "".join(map(pieces.add, ids)) + pieces.rest() == tokenizer.decode(ids)


NAMED = [{"name": "default", "template": "A{{ messages[0].content }}"}]
TEMPLATES = {  # template, the text that it makes of a message; None: refused
    "named ones": (NAMED, "AHi"),
    "generation": ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
    "break": ("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", "Hi"),
    "BOS once": ("<s>{{ messages[0].content }}", "<s>Hi"),
    "refusing": ("{{ raise_exception('no such role') }}", None),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates(tmp_path: Path, name: str) -> None:
    template, text = TEMPLATES[name]
    tokenizer, _ = byte_level(
        tmp_path, tokenizer_class="PreTrainedTokenizerFast", chat_template=template
    )
    given: Any = ([Example("r", "Hi", {}, {})], tokenizer, 64, 4, "refuse")
    if text is None:
        with pytest.raises(SkipbenchError, match="no such role"):
            encode(*given, chat="template")
    else:
        (prompt,) = encode(*given, chat="template")
        assert tokenizer.decode(prompt.ids) == text


def test_lines_of_jsonl_end_at_line_feeds_alone(tmp_path: Path) -> None:
    texts = ["a\u2028b", "a\u0085b", "a\u000cb", "a\rb", "a\u2029b", "last"]
    lines = [json.dumps({"text": t}, ensure_ascii=False) for t in texts]
    for mark, end, tail in (("", "\n", ""), ("", "\r\n", "\r\n"), ("\ufeff", "\n", "\n\n")):
        path = tmp_path / "rows.jsonl"
        path.write_bytes((mark + end.join(lines) + tail).encode())
        assert [row["text"] for row in read_file(path, {"text": str})] == texts


@pytest.mark.parametrize(
    ("value", "ids"),
    [([1, 2], {1, 2}), ([], set()), (-1, {-1}), (10**6, {10**6}), (None, {0}), (7, {7})],
)
def test_eos_ids_of_a_generation_config(
    value: Any, ids: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = random_lm("llama", "fused")
    monkeypatch.setattr(tiny.model.generation_config, "eos_token_id", value)
    monkeypatch.setattr(tiny.config, "eos_token_id", 0)
    assert eos_ids(tiny) == ids


def _split(folder: Path, keep: int = 2) -> None:
    """The weights in two files with an index."""
    weights = load_file(folder / "model.safetensors")
    names, place = sorted(weights), dict[str, str]()
    for n in range(2):
        part = {name: weights[name] for name in names[n::2]}
        place |= dict.fromkeys(part, f"model-{n}.safetensors")
        if n < keep:
            save_file(part, folder / f"model-{n}.safetensors", {"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": place})
    )
    (folder / "model.safetensors").unlink()


def _pointer(folder: Path) -> None:
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
    )


def _half(folder: Path) -> None:
    _split(folder)
    path = folder / "model-1.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


WEIGHTS: dict[str, tuple[Callable[[Path], None], str | None]] = {
    "two shards": (_split, None),
    "a missing shard": (lambda folder: _split(folder, 1), "model-1.safetensors"),
    "half a shard": (_half, "cannot load the model"),
    "a pointer of LFS": (_pointer, "cannot load the model"),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_are_read_or_refused(folder: Path, name: str) -> None:
    spoil, says = WEIGHTS[name]
    spoil(folder)
    if says is not None:
        with pytest.raises(SkipbenchError, match=says):
            load(str(folder))
        return
    loaded = load(str(folder), engine="reference")[0].model.state_dict()
    for key, weight in load_file(TINY / "model.safetensors").items():
        assert torch.equal(loaded[key], weight.float()), key


@pytest.mark.parametrize(
    ("change", "kind", "factor"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4}}, "linear", 4),
        ({"rope_scaling": {"rope_type": "linear", "type": "linear", "factor": 4.0}}, "linear", 4),
        ({"rope_scaling": {"rope_type": "linear", "type": "dynamic", "factor": 2}}, "linear", 2),
        ({"rope_scaling": None, "rope_theta": 10000}, "default", None),
        ({"torch_dtype": "float16", "pretraining_tp": 1, "architectures": ["X"]}, "default", None),
    ],
)
def test_keys_of_old_configurations(
    folder: Path, change: dict[str, Any], kind: str, factor: float | None
) -> None:
    config = json.loads((folder / "config.json").read_text())
    config.pop("rope_parameters", None)
    (folder / "config.json").write_text(json.dumps(config | change))
    (rope,) = _rope_parameters(read_config(str(folder), None))
    assert (rope["rope_type"], rope.get("factor")) == (kind, factor)


@pytest.mark.parametrize("name", ["50% @home", "a$b c", "${x}", "it's, [a=b]", "a\\${x}", "~ü"])
def test_names_of_folders(tmp_path: Path, name: str) -> None:
    place = tmp_path / name
    assert compose([f"results={quoted(str(place))}"]).results == place
    model = shutil.copytree(TINY, place)
    assert compose(["model=path", f"model.path={quoted(str(model))}"]).model.name == name


@pytest.mark.parametrize("name", ["a,b", "a;b", "[a]"])
def test_a_name_that_is_no_single_value_is_told_how_to_be_quoted(name: str) -> None:
    with pytest.raises(
        SkipbenchError, match=rf"quoted twice, as in 'model.path=\".*{re.escape(name)}"
    ):
        dispatch(["generate", f"model.path=/models/{name}", "prompt=hi"])


def test_outputs_of_one_eos(folder: Path, tmp_path: Path) -> None:
    everything = list(range(json.loads((folder / "config.json").read_text())["vocab_size"]))
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": everything}))
    words = ["model=path", f"model.path={quoted(str(folder))}", "method=uniform", "limit=2"]
    words += ["dataset=mini-stories", f"results={quoted(str(tmp_path / 'results'))}"]
    metrics = run_cell(compose(words), print_table=False)
    assert metrics is not None and metrics.lossless.identical == 2 and metrics.rounds == 0
    assert metrics.speedup.paired is None and metrics.M is None

    def refused(constant: str) -> None:
        raise AssertionError(constant)

    for path in (tmp_path / "results").rglob("*.json"):
        json.loads(path.read_text(), parse_constant=refused)
    (table,) = (tmp_path / "results").rglob("table.md")
    assert f"| {MISSING}" in table.read_text()


def test_an_empty_folder_and_one_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match=r"it is empty.*save_pretrained"):
        check_path(str(tmp_path))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(SkipbenchError, match=r"it holds notes\.txt"):
        check_path(str(tmp_path))


def test_the_folder_above_checkpoints_names_them(folder: Path) -> None:
    (folder.parent / "model-q8.gguf").write_text("")
    for call in (load, layer_count, check_path):
        with pytest.raises(SkipbenchError, match=r"holds model, model-q8\.gguf; give one of them"):
            call(str(folder.parent))


@pytest.mark.parametrize("path", ["~/model", "gpt2", "/nope", "./nope", "a/b/c"])
def test_what_is_no_path_and_no_id(path: str) -> None:
    with pytest.raises(SkipbenchError, match="nor a hub id like 'owner/name'"):
        load(path)


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SkipbenchError, match=r"no tokenizer: copy tokenizer\.json"):
        load(str(folder))


def test_a_gated_model_without_a_token_is_told_before_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    config = compose(["model=llama3.2-1b"])
    assert config.model.gated and config.model.device == "cuda"
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(SkipbenchError, match=r"is gated: accept its licence.*has no token"):
        load_model(config.model, config.engine)
    with pytest.raises(SkipbenchError, match=r"is gated: accept its licence"):  # not its skip set
        run_cell(compose(["model=llama3.2-1b", "method=self-sd", f"results={tmp_path}"]))
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_x")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SkipbenchError, match="no CUDA device"):
        load_model(config.model, config.engine)
