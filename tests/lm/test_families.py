"""Families whose layer is described (`lm/layer.py`) or traced (`lm/traced.py`), against Hugging
Face's own forward pass and `generate`.
"""

import copy
import dataclasses
import functools
import json
import re
from pathlib import Path
from typing import Any

import contract
import described
import pytest
import torch
from conftest import ALONE, EVERY_ENGINE, LAYERS, ROOT, composed_method, make_method, rest_slow
from described import DESCRIBED, SIZES, TRACED, described_lm, described_model, made

from skipbench.config.compose import compose
from skipbench.decode.loop import generate
from skipbench.draft_plan import DraftPlan
from skipbench.errors import NotStrictError, SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.lm import families
from skipbench.lm.families import FAMILIES
from skipbench.lm.layer import Family
from skipbench.lm.model import LM
from skipbench.lm.reference import ReferenceEngine
from skipbench.lm.traced import trace
from skipbench.models.load import load

EVERY = [*DESCRIBED, *TRACED]
TREE = ("stop@method.stop=fixed", "method.stop.max_steps=4", "method.tree=[4,3,2,1]")
TEXT = (ROOT / "docs/families.md").read_text()
LINES = re.findall(r"^\| (`.*?) \|.*\| (yes|reference)\b.* \|$", TEXT, re.M)
TOLD = {name: engine for names, engine in LINES for name in re.findall(r"`(\w+)`", names)}
"""The engine of a family, by the documentation."""
PROMPTS = [[(seed * 17 + 5 * i * i) % 61 for i in range(4 + 2 * seed)] for seed in range(8)]


def generated(model: Any, prompt: list[int], length: int) -> list[int]:
    """What Hugging Face's `generate` makes of a prompt, greedily."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=length, do_sample=False
    )
    tokens: list[int] = out[0, len(prompt) :].tolist()
    return tokens


@pytest.mark.parametrize("family", rest_slow(EVERY, ("gemma2", "gpt_neox", "mixtral").__contains__))
def test_greedy_is_generate(family: str) -> None:
    lm = described_lm(family)
    wanted = generated(lm.model, contract.PROMPT, 12)
    assert len(set(wanted)) >= 3
    assert contract.plain_greedy(lm.model, contract.PROMPT, 12) == wanted
    contract.check_greedy(lm, make_method("uniform", *TREE), length=12)


def test_every_row_has_a_model_here_and_a_line_in_the_documentation() -> None:
    known = {"llama", "mistral", "qwen2", "qwen3", "gemma3"}  # the contract's, and one below
    assert set(FAMILIES) == known | set(DESCRIBED) == set(TOLD)


@pytest.mark.slow
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("family", EVERY)
def test_every_method_is_generate(family: str, name: str) -> None:
    lm = described_lm(family)
    if name == "int8" and lm.engine.name == "reference":
        with pytest.raises(SkipbenchError, match="engine=reference has no products of int8"):
            generate(lm, make_method(name), contract.PROMPT, 40)
        return
    methods = [make_method(name)]
    if "tree" in composed_method(name).node and name != "layerskip":
        methods.append(make_method(name, *TREE))
    for method in methods:
        for seed, prompt in enumerate(PROMPTS):
            assert generate(lm, method, prompt, 40).tokens == known(family, seed)


@functools.cache
def known(family: str, seed: int) -> list[int]:
    return generated(described_model(family), PROMPTS[seed], 40)


@pytest.mark.parametrize("family", DESCRIBED)
def test_draft_and_tree_logits(family: str) -> None:
    lm = described_lm(family)
    contract.check_draft_logits(lm, DraftPlan.parse("attn:0,2;mlp:2,3", LAYERS))
    contract.check_tree_logits(lm, DraftPlan.parse("attn:1;mlp:2", LAYERS))


@pytest.mark.parametrize("engine", EVERY_ENGINE)
@pytest.mark.parametrize("family", [f for f in DESCRIBED if TOLD[f] != "reference"])
def test_layers_like_llamas_run_on_every_engine(family: str, engine: str) -> None:
    contract.check_greedy(described_lm(family, engine), make_method("uniform", *TREE))
    assert described_lm(family, "fused").engine.name == "fused"


@pytest.mark.parametrize("family", DESCRIBED)
def test_what_is_traced_is_what_the_row_says(family: str) -> None:
    found, row = trace(described_model(family)), FAMILIES[family]
    names = ["attention", "mlp", "parallel", "arguments"]
    names += [field.name for field in dataclasses.fields(Family) if field.name.endswith("_path")]
    assert {n: getattr(found, n) for n in names} == {n: getattr(row, n) for n in names}
    config = described_model(family).config
    for layer in range(LAYERS):
        assert found.window(config, layer) == row.window(config, layer)


def test_the_row_that_adding_md_writes_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (ROOT / "docs/adding.md").read_text().partition("## A model family")[2]
    lines = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names = {**vars(families), **vars(described)}
    ((family, row),), ((_, sizes),) = (eval(f"{{{line}}}", names).items() for line in lines)
    assert family not in FAMILIES
    monkeypatch.setitem(FAMILIES, family, row)
    monkeypatch.setitem(DESCRIBED, family, sizes)
    test_what_is_traced_is_what_the_row_says(family)
    test_layers_like_llamas_run_on_every_engine(family, "fused")


@pytest.mark.parametrize("family", TRACED)
def test_a_traced_family_is_proven_and_says_so(family: str) -> None:
    assert family not in FAMILIES
    (note, proven) = LM(described_model(family), "fused").notes()
    assert "reference is used instead" in note
    assert f"model family {family} has no row" in proven and "logits differ by" in proven


def test_a_traced_layer_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    head = ReferenceEngine.head
    monkeypatch.setattr(ReferenceEngine, "head", lambda *given: head(*given) * float("nan"))
    with pytest.raises(SkipbenchError, match=r"the head alone, .*differs; the logits by up to inf"):
        LM(described_model("stablelm"), "reference")


ONES = {"embedding_multiplier": 1.0, "residual_multiplier": 1.0, "logits_scaling": 1.0}


@pytest.mark.parametrize(
    ("family", "more", "says"),
    [
        ("gpt2", {}, "the input of the first layer"),
        ("granite", ONES | {"residual_multiplier": 0.5}, "the output of layer 0 differs"),
        ("granite", ONES | {"logits_scaling": 2.0}, "the head alone"),
        ("opt", {}, "not one attention and one MLP, but .*fc1"),
        ("mamba2", {"num_heads": 8, "head_dim": 8}, "their state cannot go back"),
        ("llama", {"attention_chunk_size": 8}, "attention_chunk_size, which is unknown"),
    ],
)
def test_what_cannot_be_traced_is_refused_with_what_differs(
    family: str, more: dict[str, Any], says: str
) -> None:
    model = made(family, **more)
    model.config.model_type = "unlisted"
    with pytest.raises(SkipbenchError, match=says):
        LM(model, "reference")


@pytest.mark.parametrize("family", [f for f in DESCRIBED if TOLD[f] == "reference"])
def test_other_engines_say_why_the_reference_engine_is_used(family: str) -> None:
    model = described_model(family)
    for engine in ("fused", "cuda_graphs"):
        lm = LM(model, engine)
        (note,) = lm.notes()
        assert lm.engine.name == "reference"
        assert f"engine={engine}" in note and model.config.model_type in note
    with pytest.raises(NotStrictError, match=r"engine\.strict=false"):
        LM(model, "fused", strict=True)


def test_the_text_of_a_model_of_images() -> None:
    import transformers

    vision = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    vision |= {"num_attention_heads": 2, "image_size": 16, "patch_size": 8}
    text = SIZES | DESCRIBED["gemma3_text"]
    config: Any = transformers.AutoConfig.for_model(
        "gemma3", text_config=text, vision_config=vision, mm_tokens_per_image=4
    )
    auto: Any = transformers.AutoModelForCausalLM
    torch.manual_seed(0)
    model: Any = auto.from_config(config, attn_implementation="sdpa").eval().requires_grad_(False)
    for name, weight in model.named_parameters():
        if weight.ndim > 1:
            weight.normal_(std=0.7 if "embed" in name else 0.2)
    lm = LM(model, "fused")
    assert lm.layers == LAYERS and lm.weight_bytes < sum(p.nbytes for p in model.parameters())
    lm.allocate(64)
    contract.check_greedy(lm, make_method("uniform", *TREE))
    trace(model)  # finds the decoder of text


@pytest.mark.slow
def test_a_folder_of_another_family_is_a_cell(tmp_path: Path) -> None:
    """Loaded with the attention that caps scores, measured and told in the record."""
    import shutil

    tiny = Path(compose([]).model.path)
    folder = tmp_path / "gemma"
    shutil.copytree(tiny, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.json"))
    words = json.loads((tiny / "config.json").read_text())["vocab_size"]
    made("gemma2", vocab_size=words, max_position_embeddings=512).save_pretrained(folder)
    given = [f"model.path={folder}", "model=path", "method=uniform", "limit=1"]
    given += ["dataset=mini-stories", "dataset.max_new_tokens=12", f"results={tmp_path}"]
    config = compose(given)
    assert run_cell(config)
    lm, _ = load(str(folder))
    assert lm.model.config._attn_implementation == "eager"
    (provenance,) = tmp_path.glob("runs/*/*/provenance.json")
    record = json.loads(provenance.read_text())
    assert record["engine"] == "reference" and "not this gemma2's" in record["notes"][0]
    assert record["cudnn_attention"] is False


ROPES = {
    "phi3": {
        "rope_type": "longrope",
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": 48,
    },
    "llama": {"rope_type": "dynamic"},
}


@pytest.mark.parametrize("family", ROPES)
def test_a_rope_that_changes_is_kept_to_the_context_before_that(family: str) -> None:
    rope = ROPES[family] | {"rope_theta": 1e4, "factor": 128 / 48}
    limit = "original_max_position_embeddings" if family == "phi3" else "max_position_embeddings"
    model = made(family, rope_parameters=rope, **{limit: 48})
    for engine in ("reference", "fused"):
        lm = LM(copy.deepcopy(model), engine)
        assert lm.max_positions == 48
        lm.allocate(400)  # more rows than the limit: scratch of wide trees
        contract.check_greedy(lm, make_method("uniform", *TREE), length=30)
