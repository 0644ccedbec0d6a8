"""Every model composes with its methods, and a paper's settings reach the method without another
word.
"""

import re
from pathlib import Path
from typing import Any

import hydra
import pytest
from conftest import rest_slow

from skipbench.config import catalog
from skipbench.config.catalog import choices, known_models, places
from skipbench.config.compose import compose, to_run_config, use_config_dir
from skipbench.config.explain import hydra_initialized
from skipbench.config.nodes import SWAPPED
from skipbench.draft_plan import DraftPlan
from skipbench.lm.families import FAMILIES

MODELS = [m for m in choices("model") if m != "path"]
# without choices that need another word, and those that are no place for a run
CHOSEN = {g: sorted({*choices(g)} - {"path", "fixed", "prompts"}) for g in SWAPPED}
CHOSEN["hardware"] = places()
METHODS = ("swift", "clasp", "knapspec", "self-sd", "layerskip")


def made(model: str, method: str) -> dict[str, Any]:
    """The settings of the model for methods, after one of these was made."""
    config = compose([f"model={model}", f"method={method}"])
    chosen = config.method.but(skip="attn:1") if config.method.skip is not None else config.method
    layers = config.model.architecture.layers if config.model.architecture else 12
    assert chosen.name == method and chosen.factory()(layers=layers) is not None
    return config.model.settings


@pytest.mark.parametrize("model", rest_slow(MODELS, lambda m: m.startswith("llama2-13b")))
def test_every_model_composes_with_the_methods_it_has_settings_for(model: str) -> None:
    for method in made(model, "swift").keys() - {"swift"}:
        made(model, method)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_composes_with_the_model_of_fewest_layers(method: str) -> None:
    made("llama3.2-1b", method)


@pytest.mark.parametrize("method", ["clasp", "layerskip"])
def test_another_stop_rule_replaces_a_paper_s_constants(method: str) -> None:
    composed = compose([f"method={method}", "stop@method.stop=fixed"])
    assert composed.method.node["stop"]["_target_"].endswith("Fixed")


@pytest.mark.parametrize(
    "words",
    [
        ["method=uniform", "method.ratio=0.25", "method.tree=[4,3,2,1]", "seed=7"],
        ["method=uniform", "stop@method.stop=fixed", "dataset=mini-math", "seed=3"],
        ["model=llama2-13b", "method=swift", "dataset=gsm8k", "dataset.prompt=self-sd", "limit=3"],
        ["method=self-sd", "search=constrained", "engine=reference", "decoding=sampling"],
        ["experiment=swift-table2", "model=llama2-13b", "dataset=cnndm", "hardware=slurm-a100"],
        *([f"{group}={name}"] for group in SWAPPED for name in CHOSEN[group]),
    ],
)
@pytest.mark.slow
def test_nodes_of_a_process_make_what_hydra_makes(words: list[str]) -> None:
    with hydra_initialized():
        wanted = to_run_config(hydra.compose("config", overrides=catalog.with_search_path(words)))
    plain = compose(words[:1])
    assert compose(words) == compose(words) == wanted
    assert compose(words[:1]) == plain


def test_a_file_of_ones_own_may_set_keys_of_any_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(catalog, "_folders", catalog.config_folders())
    for name, text in {
        "it's/experiment/base": "search: {iterations: 5}",
        "it's/experiment/mine": "defaults: [base, _self_]",
        "b/local/default": "search: {iterations: 7}",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / f"{name}.yaml").write_text(f"# @package _global_\n{text}\n")
    searches = [[f"search={name}"] for name in ("self-sd", "constrained")]
    mine = [["experiment=mine", *words] for words in searches]
    for folder, cells, wanted in (("it's", mine, 5), ("b", searches, 7)):
        use_config_dir(tmp_path / folder)
        assert {compose(words).search.iterations for words in cells} == {wanted}
    assert str(compose(['results=/r/it\'s "b"']).results) == '/r/it\'s "b"'


@pytest.mark.parametrize(
    ("words", "engine"),
    [
        ([], ("fused", False)),
        (["model=smollm2-135m"], ("fused", None)),
        (["model=smollm2-135m", "model.device=cuda:0"], ("cuda_graphs", None)),
        (["model=llama2-13b"], ("cuda_graphs", None)),
        (["model=llama2-70b", "engine.strict=true"], ("cuda_graphs", True)),
        (["model=llama2-13b", "engine=fused"], ("fused", False)),
    ],
)
def test_the_engine_that_is_left_out_is_that_of_the_device(words: list[str], engine: Any) -> None:
    chosen = compose(words).engine
    assert (chosen.name, chosen.strict) == engine


def test_every_hub_model_is_described() -> None:
    models = known_models()
    assert set(MODELS) - set(models) == {"tiny", "planted"}
    for name, model in models.items():
        assert model.architecture is not None
        if model.path.startswith("${cache:"):
            continue
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", model.path), name
        assert re.fullmatch(r"[0-9a-f]{40}|main", str(model.revision)), name
        assert model.architecture.family in FAMILIES, name
        for skip in filter(None, model.sets.values()):
            assert DraftPlan.parse(skip, model.architecture.layers).skipped, name


def test_clasp_skips_the_papers_44_of_80_layers() -> None:
    config = compose(["model=llama3-70b", "method=clasp"])
    assert config.method.factory()(layers=80).skipped == 44
