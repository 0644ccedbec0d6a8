"""Bad input gets an error that names the value and what to do, before anything is lost."""

import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_method, random_lm
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer

from skipbench.bench.cell import Bench
from skipbench.bench.prompts import encode, eos_ids
from skipbench.bench.turns import decode_missing
from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.config.paths import PACKAGE
from skipbench.data.rows import Row
from skipbench.decode.loop import generate
from skipbench.decode.sampling import Sampler
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.lm.families import check_config
from skipbench.models import tokenizer
from skipbench.models.load import load
from skipbench.models.tokenizer import read_tokenizer
from skipbench.runs.provenance import Provenance
from skipbench.runs.store import RunStore

TINY = PACKAGE / "models" / "tiny"


def cell(*overrides: str, results: Path) -> None:
    run_cell(
        compose(["method=uniform", "limit=1", "engine.warmup=0", f"results={results}", *overrides])
    )


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["methdo=swift"], "Did you mean method"),
        (["method=uniform", "method.ratoi=0.5"], "method.ratio"),
        (["method=uniform", "method.ratio=half"], "half"),
        (["engine.name=fast"], r"reference, fused"),
        (["model.dtype=float8"], r"float32, bfloat16, float16"),
        (["model=path"], r"model\.path"),
        (["method=fixed"], r"method\.skip"),
        (["dataset.truncate=right"], r"refuse, left"),
        (["decoding.temperature=nan"], "temperature=nan.*wanted a finite temperature >= 0"),
        (["decoding.top_p=1.5"], "top_p=1.5.*wanted .*0 < top_p <= 1"),
    ],
)
def test_configuration(overrides: list[str], says: str) -> None:
    with pytest.raises(SkipbenchError, match=says):
        compose(overrides)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["method.ratio=0.01"], "ratio=0.01"),
        (["method.ratio=1.0"], "ratio=1.0"),
        (["method=fixed", 'method.skip="attn:12"'], r"12 layers has 0 to 23"),
        (["method=fixed", "method.skip=everything"], "attn:1,3-5;mlp:2,4"),
        (["method.stop.max_steps=0"], "max_steps of 1 or more"),
        (["method.tree=[3,2]"], "4 positive numbers"),
        (["limit=0"], "1 or more"),
        (["dataset.max_new_tokens=5000"], "context of 1024"),
        (["engine.threads=0"], "1 or more"),
        (["model.device=cuda"], "model.device=cpu"),
        (["model=path", "model.path=/no/such/folder"], "neither a folder, nor a .gguf file"),
        (["dataset=tinystories", "dataset.prompt=clasp"], "tinystories has: swift, plain"),
        (["dataset=tinystories", "dataset.path=/no/such.jsonl"], "no/such.jsonl"),
    ],
)
def test_cell(overrides: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match=says):
        cell(*overrides, results=tmp_path)


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["method=swift", "method.ratio=0"], r"choose from 0\.050 to 0\.950"),
        (["method=swift", "method.ratio=1"], r"choose from 0\.050 to 0\.950"),
        (["method=swift", "method.context=last"], "first or recent"),
        (["method=swift", "method.beta=-1"], "beta of 0 or more"),
        (["method=swift", "method.window=0"], "window"),
        (["method=swift", "method.tree=[10]"], "4 positive numbers"),
        (["method=clasp", "method.interval=0"], "interval"),
        (["method=clasp", "method.ratio=0"], "ratio=0"),
        (["method=clasp", "method.ratio=1.0"], "ratio=1"),
        (["method=clasp", "method.unit=head"], "layer or sublayer"),
        (["method=knapspec", "method.interval=0"], "interval"),
        (["method=knapspec", "method.lengths=[5,2]"], "lengths"),
        (["method=knapspec", "method.start=none"], "start"),
        (["method=knapspec", "method.budget=0"], "above 0 to 1"),
        (["method=layerskip", "method.exit_layer=12"], "1 to 11"),
        (["method=layerskip", "method.exit_layer=0"], "1 to 11"),
        (["method=layerskip", "method.tree=[4,3,2,1]"], r"method\.share=false"),
        (["method=del", "method.max_length=0"], "max_length"),
        (["method=del", "method.omega=2"], "omega"),
        (["method=asd", "method.keep_first=13"], "keep_first"),
        (["method=asd", "method.threshold=2"], "threshold"),
        (["method=parallel", "method.block_size=0"], "block_size"),
        (["method=parallel", "method.init=zeros"], "init"),
        (["method=lookahead", "method.level=1"], "level"),
        (["method=lookahead", "method.guesses=0"], "guesses"),
        (["method=prompt-lookup", "method.ngram=0"], "ngram"),
        (["method=prompt-lookup", "method.occurrence=all"], "first or last"),
        (["method=self-sd", "method.stop.target=2"], "target"),
    ],
)
def test_methods(overrides: list[str], says: str) -> None:
    """Refused when the method is made, which a dry run does as well, with what is allowed."""
    with pytest.raises(SkipbenchError, match=says):
        compose(overrides).method.factory()(layers=12)


@pytest.mark.parametrize("method", ["del", "parallel", "lookahead", "prompt-lookup", "vanilla"])
@pytest.mark.slow
def test_a_tree_where_there_can_be_none(method: str) -> None:
    with pytest.raises(SkipbenchError, match=r"unknown key 'method\.tree'\..* Allowed here: "):
        compose([f"method={method}", "method.tree=[10,5,3,1]"])


@pytest.mark.parametrize("method", ["vanilla", "lookahead", "clasp"])
def test_a_search_for_a_method_without_a_stored_set(method: str) -> None:
    with pytest.raises(SkipbenchError, match="use method=self-sd"):
        dispatch(["search", f"method={method}"])


@pytest.mark.parametrize("prompts", [0, -1])
def test_a_search_without_development_prompts(prompts: int) -> None:
    with pytest.raises(SkipbenchError, match=r"search\.prompts"):
        dispatch(["search", f"search.prompts={prompts}"])


def test_results_folder_not_writable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SkipbenchError, match="results="):
        cell("method=uniform", results=tmp_path / "file")


def test_unknown_command_and_kind() -> None:
    for call in (
        lambda: dispatch(["tabel"]),
        lambda: dispatch(["list", "things"]),
        lambda: dispatch(["table"]),
    ):
        with pytest.raises(SkipbenchError, match=r"table|models|tiny"):
            call()


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    shutil.copytree(TINY, folder)
    return folder


def test_missing_and_misshapen_weights(broken: Path) -> None:
    path = broken / "model.safetensors"
    weights = load_file(path)
    lost = weights.pop("model.layers.3.mlp.up_proj.weight")
    save_file(weights, path, metadata={"format": "pt"})
    with pytest.raises(SkipbenchError, match=r"layers\.3\.mlp\.up_proj"):
        load(str(broken))
    save_file(
        weights | {"model.layers.3.mlp.up_proj.weight": lost[:7].clone()},
        path,
        metadata={"format": "pt"},
    )
    with pytest.raises(SkipbenchError, match=r"layers\.3\.mlp\.up_proj|mismatch"):
        load(str(broken))


def test_a_truncated_checkpoint(broken: Path) -> None:
    path = broken / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100_000])
    with pytest.raises(SkipbenchError, match="cannot load the model"):
        load(str(broken))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"model_type": "gpt2"}, "does not fit its config.json"),
        (
            {"rope_parameters": {"rope_type": "mrope", "factor": 2.0, "rope_theta": 1e4}},
            "'mrope' is not known here; known: default",
        ),
    ],
)
def test_models_that_no_engine_can_drive(broken: Path, change: dict[str, Any], says: str) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(SkipbenchError, match=says):
        load(str(broken))


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 0}, {"num_hidden_layers": 10**7}, {"num_attention_heads": 0},
        {"num_key_value_heads": 3}, {"rms_norm_eps": -1}, {"tie_word_embeddings": "yes"},
        {"vocab_size": 0}, {"hidden_size": "big"}, {"hidden_act": "none such"},
        {"quantization_config": {"quant_method": "gptq", "bits": 4}}, {"rope_parameters": [1]},
    ],
)  # fmt: skip
def test_a_damaged_config_is_one_error(broken: Path, change: dict[str, Any]) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(SkipbenchError, match=re.escape(str(broken)[-12:]) + "|hidden_act"):
        load(str(broken))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tokenizer.json", '{"version": "1.0"}'),
        ("tokenizer.json", "{"),
        ("config.json", "[1]"),
        ("model.safetensors.index.json", '{"weight_map": {"a": "../outside.safetensors"}}'),
        ("model.safetensors.index.json", '{"weight_map": {"a": "/etc/passwd"}}'),
        ("model.safetensors.index.json", '{"weight_map": 7}'),
    ],
)
def test_damaged_files_beside_the_weights_are_one_error(broken: Path, name: str, text: str) -> None:
    (broken / name).write_text(text)
    with pytest.raises(SkipbenchError, match=re.escape(str(broken)[-12:])):
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
    for name in ("config.json", "tokenizer_config.json"):
        settings = json.loads((broken / name).read_text())
        autos = ("AutoConfig", "AutoModelForCausalLM", "AutoTokenizer")
        settings["auto_map"] = dict.fromkeys(autos, "mine.C")
        (broken / name).write_text(json.dumps(settings))
    load(str(broken))
    assert not (tmp_path / "harmed").exists()


def test_pickled_weights_run_nothing(broken: Path, tmp_path: Path) -> None:
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
]


@pytest.mark.parametrize("template", ESCAPES)
def test_a_chat_template_stays_in_its_sandbox(template: str) -> None:
    own = AutoTokenizer.from_pretrained(TINY)
    own.chat_template = template + "{{ messages[0].content }}"
    row = Row("r", "say", {}, {})
    with pytest.raises(SkipbenchError, match="chat template refuses row 'r'"):
        encode(
            [row],
            own,
            random_lm("llama", "fused").max_positions,
            8,
            "refuse",
            chat="template",
        )


def test_an_endless_chat_template_is_bounded() -> None:
    own = AutoTokenizer.from_pretrained(TINY)
    own.chat_template = "{% for a in range(10**9) %}x{% endfor %}"
    with pytest.raises(SkipbenchError, match="chat template refuses row 'r'"):
        encode(
            [Row("r", "say", {}, {})],
            own,
            random_lm("llama", "fused").max_positions,
            8,
            "refuse",
            chat="template",
        )


BOMBS = {
    "a loop": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "a long text": "{% generation %}{{ 'x' * 10000000000 }}{% endgeneration %}",
    "a power": "{{ 7 ** 999999999 }}",
}


@pytest.mark.parametrize("bomb", [*BOMBS, "an unseen step"])
def test_a_tokenizer_and_its_template_are_tried_in_a_process_with_limits(
    bomb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where they come from elsewhere; once for the same contents."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder, run, tried = tmp_path / "m", subprocess.run, list[Any]()
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: tried.append(a) or run(*a, **k))
    read_tokenizer(str(TINY))
    assert not tried
    folder.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder)
    for _ in range(2):
        read_tokenizer(str(folder))
    assert len(tried) == 1
    if bomb in BOMBS:
        (folder / "chat_template.jinja").write_text(BOMBS[bomb])
    else:
        parts = json.loads((folder / "tokenizer.json").read_text())
        step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 16}
        parts["decoder"] = {"type": "Sequence", "decoders": [step] * 10}
        (folder / "tokenizer.json").write_text(json.dumps(parts))
        monkeypatch.setattr(tokenizer, "_check_parts", lambda _: None)
    for _ in range(2):
        with pytest.raises(SkipbenchError, match=r"once takes more than 3 s or 256 MiB of memory"):
            read_tokenizer(str(folder))


@pytest.mark.parametrize(
    "setting",
    ["method.ratio=nan", "method.ratio=inf", "method.stop.threshold=nan"],
)
def test_no_setting_is_nan_or_infinite(setting: str) -> None:
    key, _, value = setting.partition("=")
    with pytest.raises(SkipbenchError, match=f"{key}={value}; wanted a finite number"):
        compose(["method=uniform", setting])


def test_another_activation_is_left_to_the_reference_engine(broken: Path) -> None:
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"hidden_act": "gelu"}))
    lm, _ = load(str(broken))
    assert lm.engine.name == "reference" and "activation gelu" in lm.notes()[0]


@pytest.mark.parametrize("rope", ["linear", "llama3", "yarn", "dynamic"])
def test_supported_rope_scalings_equal_hugging_face(broken: Path, rope: str) -> None:
    more = (
        {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
        if rope == "llama3"
        else {}
    )
    more |= {"original_max_position_embeddings": 64} if rope == "yarn" else {}
    scaled = {"rope_type": rope, "factor": 4.0, "rope_theta": 1e4} | more
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps(config | {"rope_parameters": scaled}))
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
    rows = [Row("short", "abc", {}, {}), Row("long", "x" * 200, {}, {})]
    with pytest.raises(SkipbenchError, match=r"'long' has 201 tokens.*at most 108.*truncate=left"):
        encode(rows, Letters(), lm.max_positions, 20, "refuse")
    short, long = encode(rows, Letters(), lm.max_positions, 20, "left")
    assert (short.cut, len(short.ids)) == (0, 4)
    assert (long.cut, len(long.ids), long.ids[0]) == (93, 108, 0)
    with pytest.raises(SkipbenchError, match="no tokens"):
        encode([Row("empty", "", {}, {})], Letters(), lm.max_positions, 20, "left")


def test_a_prompt_with_half_of_a_surrogate_pair_is_refused() -> None:
    lm, row = random_lm("llama", "fused"), Row("odd", "a \ud800 b", {}, {})
    with pytest.raises(SkipbenchError, match=r"prompt 'odd' is no Unicode text .*'.ud800'"):
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
    rows = [Row(str(i), text, {}, {}) for i, text in enumerate(("abc", "poison", "xyz"))]
    prompts = encode(rows, Letters(), lm.max_positions, 8, "refuse")
    embed = lm.embed

    def poisoned(tokens: list[int]) -> torch.Tensor:
        hidden = embed(tokens)
        return hidden * float("nan") if tokens == prompts[1].ids else hidden

    monkeypatch.setattr(lm, "embed", poisoned)
    store = RunStore(tmp_path / "run", {}, Provenance())
    config = compose(["dataset.max_new_tokens=8", "dataset.scorer=none", "engine.warmup=0"])
    method = make_method("uniform")
    bench = Bench(config, lm, Letters(), method, prompts, frozenset(), store)
    decode_missing(bench)
    samples = bench.samples
    assert [s.lossless for s in samples] == ["identical", "failed", "identical"]
    assert "not finite" in str(samples[1].vanilla.error)
    store.close()


@pytest.mark.parametrize("values", [
    {"temperature": -0.1}, {"temperature": math.nan}, {"temperature": math.inf},
    {"top_p": 0.0}, {"top_p": 1.1}, {"top_p": math.nan}, {"top_k": -1},
])  # fmt: skip
def test_sampler(values: dict[str, Any]) -> None:
    with pytest.raises(SkipbenchError, match="wanted"):
        Sampler(**values)
