"""The models of `conf/model`: sizes against counts worked by hand, memory, planted models, and what
a failed load says.
"""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import make_method, nothing_lost

from skipbench.bench import memory
from skipbench.bench.doctor import TINY
from skipbench.bench.load import load_model
from skipbench.bench.memory import GIB, MARGIN, check_memory, gpus_needed, needed_bytes
from skipbench.bench.prompts import SCRATCH_ROWS
from skipbench.bench.stored_sets import resolve, stored_path, write_stored
from skipbench.config.catalog import known_models, shape_of
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.lm.model import LM
from skipbench.models.load import load
from skipbench.models.outline import read_tokenizer
from skipbench.skipset import planted_set


def test_parameters_and_memory_by_hand() -> None:
    models = known_models()
    for name, parameters in (
        # 2 * 32000 * 4096 + 4096 + 32 (4 * 4096^2 + 3 * 4096 * 11008 + 2 * 4096)
        ("llama2-7b", 6_738_415_616),
        ("llama3.1-405b", 405_853_388_800),
        ("llama3.2-1b", 1_235_814_400),  # the head is the embedding
        ("qwen3-8b", 8_190_735_360),  # heads of 128 beside a hidden size of 4096, and their norms
    ):
        shape = models[name].architecture
        assert shape is not None and shape.parameters == parameters, name
    weights, cache = needed_bytes(models["llama2-7b"], 1000)
    assert weights == 2 * 6_738_415_616
    # keys and values of 32 layers in 2 bytes
    assert cache == (1000 + SCRATCH_ROWS) * 2 * 32 * 4096 * 2
    weights, cache = needed_bytes(models["llama3.1-405b"], 1000)
    tables = 2 * 128256 * 16384 + 16384
    assert weights == (405_853_388_800 - tables) + 2 * tables  # the layers in one byte a weight
    assert cache == (1000 + SCRATCH_ROWS) * 2 * 126 * 8 * 128 * 2


def test_a_model_that_does_not_fit_is_refused_with_the_numbers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda device: 40 * GIB)
    monkeypatch.setattr("skipbench.bench.load.check_model", lambda *_: None)  # gated
    says = r"needs 129\.\d GiB.*40\.0 GiB are free; use .*dataset.max_new_tokens"
    with pytest.raises(SkipbenchError, match=says):
        run_cell(compose(["model=llama2-70b", "method=clasp", "limit=1", f"results={tmp_path}"]))
    config = compose(["model=llama2-7b", "dataset.max_new_tokens=64"])
    exact = sum(needed_bytes(config.model, 64)) + MARGIN
    monkeypatch.setattr(memory, "free_bytes", lambda device: exact)
    check_memory(config.model, config.dataset, [])
    monkeypatch.setattr(memory, "free_bytes", lambda device: exact - 1)
    with pytest.raises(SkipbenchError, match="llama2-7b"):
        check_memory(config.model, config.dataset, [])


def test_gpus_by_hand() -> None:
    def needed(model: str, dataset: str, gib: int, *words: str) -> int:
        config = compose([f"model={model}", f"dataset={dataset}", *words])
        return gpus_needed(config.model, config.dataset, gib * GIB)

    # 131.4 GiB of weights and 5.4 of cache, in 2 * (79 - 1 - 1.6)
    assert needed("llama3.1-70b", "pg19", 79) == 2
    longer = "dataset.context=null", "dataset.max_new_tokens=130000"
    assert needed("llama3.1-70b", "pg19", 79, *longer) == 3  # 40.1 GiB of cache
    assert needed("llama3.1-405b", "specbench", 79) == 6  # 381.9 GiB, 3.0 of them in a layer
    assert needed("llama2-13b", "cnndm", 79) == needed("tiny", "mini-math", 1) == 1
    assert needed("llama2-13b", "cnndm", 24) == 2
    with pytest.raises(SkipbenchError, match="holds no layer"):
        needed("llama2-70b", "cnndm", 2)


def test_a_hub_that_cannot_be_reached_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wait(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a download was tried")

    for name in ("HF_HUB_OFFLINE", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_ENDPOINT", "https://hub.invalid")  # a name that never resolves
    monkeypatch.setattr(transformers.AutoConfig, "from_pretrained", wait)
    for method in ("self-sd", "clasp"):
        words = ["model=path", "model.path=someone/else", f"method={method}"]
        with pytest.raises(SkipbenchError, match=r"^'someone/else' .*the hub cannot be reached"):
            run_cell(compose([*words, f"results={tmp_path}"]))
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", wait)
    with pytest.raises(SkipbenchError, match="'someone/else' at revision v9 is not"):
        read_tokenizer("someone/else", "v9")


def test_another_size_and_eight_bits_where_they_cannot_be_are_refused() -> None:
    tiny = compose([]).model.path
    with pytest.raises(SkipbenchError, match=r"layers 32, not 12.*hidden 4096, not 192.*=path"):
        load(tiny, architecture=shape_of("llama2-7b"))
    with pytest.raises(SkipbenchError, match="engine=reference"):
        load("meta-llama/Llama-3.1-405B", quantization="int8", device="auto")
    with pytest.raises(SkipbenchError, match="needs a GPU"):
        load("meta-llama/Llama-3.1-405B", quantization="int8", engine="reference")


@pytest.mark.parametrize("kind", [pytest.param("fp4", marks=pytest.mark.slow), "nf4"])
def test_four_bits_are_lossless_on_a_cpu(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("bitsandbytes", reason="the extra quant")
    pytest.importorskip("accelerate", reason="the extra quant")
    given = [f"model.quantization={kind}", "engine=reference", "method=self-sd", "limit=1"]
    given.append("dataset=mini-stories")
    config = compose([*given, "dataset.max_new_tokens=12", f"results={tmp_path}"])
    assert nothing_lost(run_cell(config))
    lm, _ = load_model(config.model, config.engine)
    assert {layer.mlp.up_proj.weight.dtype for layer in lm.model.model.layers} == {torch.uint8}
    assert lm.model.lm_head.weight.dtype == torch.float32


def planted(*overrides: str) -> tuple[LM, Any, str]:
    config = compose(["model=planted", "model.shape=12x256", "model.dtype=float32", *overrides])
    lm, tokenizer = load_model(config.model, config.engine)
    lm.allocate(400)
    skip = config.model.sets["self-sd"]
    assert skip is not None
    return lm, tokenizer, skip


def test_a_model_that_is_gone_leaves_its_memory_before_the_next_one_is_read() -> None:
    lm, _ = load(str(TINY))
    lm.allocate(64)
    rows = weakref.ref(lm.cache.rows[0])
    del lm
    load(str(TINY))
    assert rows() is None


def test_a_seed_is_a_model() -> None:
    first, second, other = (
        planted(f"model.seed={n}", "model.shape=4x64", "engine=reference")[0].model.state_dict()
        for n in (1, 1, 2)
    )
    assert all(torch.equal(first[k], second[k]) for k in first)
    assert not torch.equal(first["lm_head.weight"], other["lm_head.weight"])


def test_self_sd_takes_what_was_planted_until_a_search_finds_another(tmp_path: Path) -> None:
    words = ["model=planted", "model.shape=12x256", "model.seed=3", "method=self-sd"]
    config = compose([*words, f"results={tmp_path}"])
    assert resolve_cell(config).config.method.skip == str(planted_set(12, 0.5, 3))
    write_stored(stored_path(tmp_path, config.model, "self-sd"), "attn:1", 1.0, {})
    assert resolve("stored", config.model, "self-sd", tmp_path) == "attn:1"
    of_int8 = stored_path(tmp_path, config.model, "self-sd", "int8")
    settings = {"method": {"name": "self-sd", "precision": "int8"}}
    write_stored(of_int8, "attn:2", 1.0, settings)  # searched for drafts in 8 bits
    for option, wanted in (("int8", "attn:2"), ("window 8", "attn:1"), ("", "attn:1")):
        assert resolve("stored", config.model, "self-sd", tmp_path, option) == wanted


def test_clasp_finds_what_was_planted() -> None:
    from skipbench.decode.loop import generate

    lm, tokenizer, text = planted()
    method = make_method("clasp", "method.interval=64", layers=lm.layers)
    generate(lm, method, tokenizer.encode("Once upon a time"), 24, frozenset())
    assert str(method.skip) == text


@pytest.mark.parametrize(("share", "count"), [(0.25, 6), (0.5, 12), (0.29, 7)])
def test_planted_sets_spare_the_ends(share: float, count: int) -> None:
    skip = planted_set(12, share, 0)
    assert len(skip.skipped) == count and all(2 <= s < 22 for s in skip.skipped)
    assert len(set(skip.attention) - set(skip.mlp)) == count % 2
