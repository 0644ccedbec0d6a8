"""Checkpoints, tokenizers, templates and prompts as strangers bring them: read as they were meant,
or refused in one error that names the folder or the row; no code of theirs runs.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import INDEX, Letters, edit, sharded, tiny_copy
from conftest import make_method, random_lm
from described import made
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import AutoTokenizer

from skipbench.bench.load import load_model
from skipbench.bench.prompts import encode, eos_ids
from skipbench.config.compose import compose
from skipbench.config.paths import PACKAGE
from skipbench.data.rows import Example
from skipbench.decode.loop import generate
from skipbench.errors import SkipbenchError
from skipbench.lm.families import _rope_parameters, check_config
from skipbench.lm.model import LM
from skipbench.models.checks import explained
from skipbench.models.load import load
from skipbench.models.outline import read_config

TINY = PACKAGE / "models" / "tiny"
TEXTS = ["Hello  world, it's  a day .", "  two spaces", "né 日本 🙂\n\tx", "a ? b ! c n't"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_copy(tmp_path / "model")


def test_weights_of_shards_are_read_and_lost_misshapen_or_torn_ones_refused(tmp_path: Path) -> None:
    whole, folder = TINY / "model.safetensors", sharded(tmp_path / "model")
    path, name, weights = folder / whole.name, "model.layers.3.mlp.up_proj.weight", load_file(whole)
    loaded = load(str(folder), engine="reference")[0].model.state_dict()
    assert all(torch.equal(loaded[key], weight.float()) for key, weight in weights.items())
    (folder / "model-1.safetensors").unlink()
    with pytest.raises(SkipbenchError, match=r"model-1\.safetensors"):
        load(str(folder))
    (folder / INDEX).unlink()
    lost = weights.pop(name)
    for there in (weights, weights | {name: lost[:7].clone()}):
        save_file(there, path, metadata={"format": "pt"})
        with pytest.raises(SkipbenchError, match=r"layers\.3\.mlp\.up_proj"):
            load(str(folder))
    path.write_bytes(whole.read_bytes()[:100_000])
    with pytest.raises(SkipbenchError, match="cannot load the model"):
        load(str(folder))


ROPE = {"rope_type": "mrope", "factor": 2.0, "rope_theta": 1e4}


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("config.json", {"model_type": "gpt2"}, "does not fit its config.json"),
        ("config.json", {"rope_parameters": ROPE}, "'mrope' is not known here; known: default"),
        *(("config.json", damage, "") for damage in (
            {"num_attention_heads": 0}, {"num_key_value_heads": 3}, {"hidden_size": "big"},
            {"vocab_size": 0}, {"rope_parameters": [1]}, "[1]",
            {"quantization_config": {"quant_method": "gptq", "bits": 4}}, {"hidden_act": "none"},
        )),
        *(("tokenizer.json", damage, "") for damage in ('{"version": "1.0"}', "{")),
        *((INDEX, f'{{"weight_map": {damage}}}', "") for damage in (
            '{"a": "../outside.safetensors"}', '{"a": "/etc/passwd"}', "7",
        )),
    ],
)  # fmt: skip
def test_a_damaged_checkpoint_is_one_error(folder: Path, name: str, damage: Any, says: str) -> None:
    """`says` is empty where the folder is named."""
    if isinstance(damage, str):
        (folder / name).write_text(damage)
    else:
        edit(folder / name, **damage)
    with pytest.raises(SkipbenchError, match=says or re.escape(str(folder)[-12:])):
        load(str(folder))


class Harm:
    """Pickled, it makes a file when it is read."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def __reduce__(self) -> Any:
        return Path.touch, (self.note,)


def test_no_code_of_a_checkpoint_runs(folder: Path, tmp_path: Path) -> None:
    code = f"from pathlib import Path\nPath({str(tmp_path / 'harmed')!r}).touch()\nclass C: pass\n"
    (folder / "mine.py").write_text(code)
    autos = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    for name in ("config.json", "tokenizer_config.json"):
        edit(folder / name, auto_map=dict.fromkeys(autos, "mine.C"))
    load(str(folder))
    (folder / "model.safetensors").unlink()
    torch.save({"a": Harm(tmp_path / "harmed")}, folder / "pytorch_model.bin")
    for allow in (False, True):
        with pytest.raises(SkipbenchError, match="cannot load"):
            load(str(folder), allow_pickle=allow)
    assert not (tmp_path / "harmed").exists()


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ messages.append({'role': 'user'}) }}",
    "{{ raise_exception.__globals__.items() }}",
    "{% for f in [].__class__.__base__.__subclasses__() %}{{ f }}{% endfor %}",
    "{{ ('{0.__class__.__init__.__globals__}').format(raise_exception) }}",
    "{{ (messages|attr('__class__')).__mro__ }}",
    "{% for a in range(10**9) %}x{% endfor %}",
    "{{ raise_exception('no such role') }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_stays_in_its_sandbox(template: str) -> None:
    own = AutoTokenizer.from_pretrained(TINY)
    own.chat_template = template + "{{ messages[0].content }}"
    with pytest.raises(SkipbenchError, match=r"prompt 'r'.*chat template refuses it"):
        encode([Example("r", "say", {}, {})], own, 128, 8, "refuse", chat="template")


TRAINED = {"original_max_position_embeddings": 64}


ROPES = {"linear": {}, "dynamic": {}, "yarn": TRAINED}
ROPES["llama3"] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **TRAINED}


@pytest.mark.parametrize("rope", ROPES)
def test_supported_rope_scalings_equal_hugging_face(rope: str) -> None:
    scaled = {"rope_type": rope, "factor": 4.0, "rope_theta": 1e4} | ROPES[rope]
    model, tokens = made("llama", rope_parameters=scaled), [7 * i % 61 for i in range(80)]
    check_config(model.config)
    for engine in ("reference", "fused"):
        lm = LM(model, engine)
        lm.allocate(128)
        with torch.inference_mode():
            wanted = model(torch.tensor([tokens])).logits[0, -1:]
            torch.testing.assert_close(lm.prefill(tokens), wanted, rtol=1e-3, atol=1e-3)


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


NAMED = [{"name": "default", "template": "A{{ messages[0].content }}"}]


TEMPLATES = {  # template, the text that it makes of a message
    "named ones": (NAMED, "AHi"),
    "generation": ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
    "break": ("{% for m in messages %}{{ m.content }}{% break %}{% endfor %}", "Hi"),
    "BOS once": ("<s>{{ messages[0].content }}", "<s>Hi"),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_chat_templates(tmp_path: Path, name: str) -> None:
    template, text = TEMPLATES[name]
    tokenizer, _ = byte_level(
        tmp_path, tokenizer_class="PreTrainedTokenizerFast", chat_template=template
    )
    rows = [Example("r", "Hi", {}, {})]
    (prompt,) = encode(rows, tokenizer, 64, 4, "refuse", chat="template")
    assert tokenizer.decode(prompt.ids) == text


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


def test_prompts_that_are_too_long_or_no_tokens_are_refused_or_cut() -> None:
    lm = random_lm("llama", "fused")  # a context of 128
    rows = [Example("short", "abc", {}, {}), Example("long", "x" * 200, {}, {})]
    with pytest.raises(SkipbenchError, match=r"'long' has 201 tokens.*at most 108.*truncate=left"):
        encode(rows, Letters(), lm.max_positions, 20, "refuse")
    short, long = encode(rows, Letters(), lm.max_positions, 20, "left")
    assert (short.cut, len(short.ids)) == (0, 4)
    assert (long.cut, len(long.ids), long.ids[0]) == (93, 108, 0)
    with pytest.raises(SkipbenchError, match="no tokens"):
        encode([Example("empty", "", {}, {})], Letters(), lm.max_positions, 20, "left")
    with pytest.raises(SkipbenchError, match=r"prompt 'odd'.* refuses it .*'.ud800'"):
        encode([Example("odd", "a \ud800 b", {}, {})], Letters(), lm.max_positions, 20, "left")
    for tokens in ([], [61], [-1, 3], [3, 10**9]):
        with pytest.raises(SkipbenchError, match="ids from 0 to 60"):
            generate(lm, make_method("uniform"), tokens, 4)


EOS: list[tuple[Any, set[int] | None]] = [
    *(([1, 2], {1, 2}), ([], set()), (-1, {-1}), (10**6, {10**6}), (None, {0}), (7, {7})),
    *(("2", None), ([[2]], None), (2.5, None), ({"a": 1}, None), (True, None)),
]
"""Of a generation config, and how they are read; None: refused."""


@pytest.mark.parametrize(("value", "ids"), EOS)
def test_eos_ids_of_a_generation_config(
    value: Any, ids: set[int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = random_lm("llama", "fused")
    monkeypatch.setattr(lm.model.generation_config, "eos_token_id", value)
    monkeypatch.setattr(lm.config, "eos_token_id", 0)
    if ids is not None:
        assert eos_ids(lm) == ids
        return
    with pytest.raises(SkipbenchError, match=re.escape(f"eos_token_id={value!r} in the model's")):
        eos_ids(lm)


def test_a_panic_of_the_tokenizers_library_is_one_line() -> None:
    says = pytest.raises(SkipbenchError, match=r"cannot load the model in .*PanicException")
    with says as refused, explained(str(TINY)):
        BPE(vocab={"a": 0, "b": 1}, merges=[("a", "b")])
    assert type(refused.value.__cause__).__name__ == "PanicException"


def test_a_gated_model_without_a_token_is_told_before_all_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config = compose(["model=llama3.2-1b"])
    assert config.model.gated and config.model.device == "cuda"
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(SkipbenchError, match=r"is gated: accept its licence.*has no token"):
        load_model(config.model, config.engine)
