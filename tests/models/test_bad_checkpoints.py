"""Checkpoints, tokenizers, templates and prompts that are damaged, or made to do harm: one error
that names the folder or the row, and no code of theirs runs.
"""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from builders import edit, tiny_copy
from conftest import make_method, random_lm
from safetensors.torch import load_file, save_file
from tokenizers.models import BPE
from transformers import AutoTokenizer

from skipbench.bench.arm import ArmRunner
from skipbench.bench.prompts import encode, eos_ids
from skipbench.bench.turns import decode_missing
from skipbench.config.compose import compose
from skipbench.config.paths import PACKAGE
from skipbench.data.rows import Example
from skipbench.decode.loop import generate
from skipbench.errors import SkipbenchError
from skipbench.lm.families import check_config
from skipbench.models.checks import explained
from skipbench.models.load import load
from skipbench.runs.provenance import Provenance
from skipbench.runs.store import RunStore

TINY = PACKAGE / "models" / "tiny"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    return tiny_copy(tmp_path / "model")


def test_missing_misshapen_and_torn_weights(broken: Path) -> None:
    path, name = broken / "model.safetensors", "model.layers.3.mlp.up_proj.weight"
    weights = load_file(path)
    lost = weights.pop(name)
    for there in (weights, weights | {name: lost[:7].clone()}):
        save_file(there, path, metadata={"format": "pt"})
        with pytest.raises(SkipbenchError, match=r"layers\.3\.mlp\.up_proj"):
            load(str(broken))
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(SkipbenchError, match="cannot load the model"):
        load(str(broken))


ROPE = {"rope_type": "mrope", "factor": 2.0, "rope_theta": 1e4}
INDEX = "model.safetensors.index.json"


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
def test_a_damaged_checkpoint_is_one_error(broken: Path, name: str, damage: Any, says: str) -> None:
    """`says` is empty where the folder is named."""
    if isinstance(damage, str):
        (broken / name).write_text(damage)
    else:
        edit(broken / name, **damage)
    with pytest.raises(SkipbenchError, match=says or re.escape(str(broken)[-12:])):
        load(str(broken))


class Harm:
    """Pickled, it makes a file when it is read."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def __reduce__(self) -> Any:
        return Path.touch, (self.note,)


def test_no_code_of_a_checkpoint_runs(broken: Path, tmp_path: Path) -> None:
    code = f"from pathlib import Path\nPath({str(tmp_path / 'harmed')!r}).touch()\nclass C: pass\n"
    (broken / "mine.py").write_text(code)
    autos = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
    for name in ("config.json", "tokenizer_config.json"):
        edit(broken / name, auto_map=dict.fromkeys(autos, "mine.C"))
    load(str(broken))
    (broken / "model.safetensors").unlink()
    torch.save({"a": Harm(tmp_path / "harmed")}, broken / "pytorch_model.bin")
    for allow in (False, True):
        with pytest.raises(SkipbenchError, match="cannot load"):
            load(str(broken), allow_pickle=allow)
    assert not (tmp_path / "harmed").exists()


@pytest.mark.parametrize("tokens", [[], [61], [-1, 3], [3, 10**9]])
def test_prompts_that_the_model_has_no_embedding_for(tokens: list[int]) -> None:
    with pytest.raises(SkipbenchError, match="ids from 0 to 60"):
        generate(random_lm("llama", "fused"), make_method("uniform"), tokens, 4)


ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('true') }}",
    "{{ messages.append({'role': 'user'}) }}",
    "{{ raise_exception.__globals__.items() }}",
    "{% for f in [].__class__.__base__.__subclasses__() %}{{ f }}{% endfor %}",
    "{{ ('{0.__class__.__init__.__globals__}').format(raise_exception) }}",
    "{{ (messages|attr('__class__')).__mro__ }}",
    "{% for a in range(10**9) %}x{% endfor %}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_stays_in_its_sandbox(template: str) -> None:
    own = AutoTokenizer.from_pretrained(TINY)
    own.chat_template = template + "{{ messages[0].content }}"
    with pytest.raises(SkipbenchError, match=r"prompt 'r'.*chat template refuses it"):
        encode([Example("r", "say", {}, {})], own, 128, 8, "refuse", chat="template")


def test_another_activation_is_left_to_the_reference_engine(broken: Path) -> None:
    edit(broken / "config.json", hidden_act="gelu")
    lm, _ = load(str(broken))
    assert lm.engine.name == "reference" and "Llama's layer only" in lm.notes()[0]


TRAINED = {"original_max_position_embeddings": 64}
ROPES = {"linear": {}, "dynamic": {}, "yarn": TRAINED}
ROPES["llama3"] = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, **TRAINED}


@pytest.mark.parametrize("rope", ROPES)
def test_supported_rope_scalings_equal_hugging_face(broken: Path, rope: str) -> None:
    scaled = {"rope_type": rope, "factor": 4.0, "rope_theta": 1e4} | ROPES[rope]
    edit(broken / "config.json", rope_parameters=scaled)
    tokens = list(range(100, 180))
    for engine in ("reference", "fused"):
        lm, _ = load(str(broken), engine=engine)
        lm.allocate(128)
        check_config(lm.config)
        with torch.inference_mode():
            wanted = lm.model(torch.tensor([tokens])).logits[0, -1:]
            torch.testing.assert_close(lm.prefill(tokens), wanted, rtol=1e-3, atol=1e-3)


class Letters:
    """A tokenizer of the smallest kind."""

    all_special_ids = (0,)

    def encode(self, text: str) -> list[int]:
        return [0, *(ord(c) % 61 for c in text)] if text else []

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        return " ".join(map(str, ids))


def test_long_prompts_are_refused_or_cut() -> None:
    lm = random_lm("llama", "fused")  # a context of 128
    rows = [Example("short", "abc", {}, {}), Example("long", "x" * 200, {}, {})]
    with pytest.raises(SkipbenchError, match=r"'long' has 201 tokens.*at most 108.*truncate=left"):
        encode(rows, Letters(), lm.max_positions, 20, "refuse")
    short, long = encode(rows, Letters(), lm.max_positions, 20, "left")
    assert (short.cut, len(short.ids)) == (0, 4)
    assert (long.cut, len(long.ids), long.ids[0]) == (93, 108, 0)
    with pytest.raises(SkipbenchError, match="no tokens"):
        encode([Example("empty", "", {}, {})], Letters(), lm.max_positions, 20, "left")


def test_a_prompt_with_half_of_a_surrogate_pair_is_refused() -> None:
    lm, row = random_lm("llama", "fused"), Example("odd", "a \ud800 b", {}, {})
    with pytest.raises(SkipbenchError, match=r"prompt 'odd'.* refuses it .*'.ud800'"):
        encode([row], Letters(), lm.max_positions, 20, "left")


@pytest.mark.parametrize("value", ["2", [[2]], 2.5, {"a": 1}, True])
def test_an_eos_that_is_no_id_is_refused(value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lm = random_lm("llama", "fused")
    monkeypatch.setattr(lm.model.generation_config, "eos_token_id", value)
    with pytest.raises(SkipbenchError, match=re.escape(f"eos_token_id={value!r} in the model's")):
        eos_ids(lm)


def test_nan_stops_the_sample_and_keeps_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = random_lm("llama", "fused")
    rows = [Example(str(i), text, {}, {}) for i, text in enumerate(("abc", "poison", "xyz"))]
    prompts = encode(rows, Letters(), lm.max_positions, 8, "refuse")
    embed = lm.embed

    def poisoned(tokens: list[int]) -> torch.Tensor:
        hidden = embed(tokens)
        return hidden * float("nan") if tokens == prompts[1].ids else hidden

    monkeypatch.setattr(lm, "embed", poisoned)
    store = RunStore(tmp_path / "run", {}, Provenance())
    config = compose(["dataset.max_new_tokens=8", "dataset.scorer=none", "engine.warmup=0"])
    method = make_method("uniform")
    runner = ArmRunner(config, lm, Letters(), method, prompts, frozenset(), store)
    decode_missing(runner)
    arms = [turn.arms["run"] for turn in runner.turns]
    assert [arm.lossless for arm in arms] == ["identical", "failed", "identical"]
    assert "not finite" in str(runner.turns[1].arms["vanilla"].error)
    store.close()


def test_a_panic_of_the_tokenizers_library_is_one_line() -> None:
    says = pytest.raises(SkipbenchError, match=r"cannot load the model in .*PanicException")
    with says as refused, explained(str(TINY)):
        BPE(vocab={"a": 0, "b": 1}, merges=[("a", "b")])
    assert type(refused.value.__cause__).__name__ == "PanicException"
