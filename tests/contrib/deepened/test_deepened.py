"""Deepened checkpoints: the redundant sub-layers are known, and leaving them out gives the
checkpoint back.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import LAYERS, make_method, random_model

from skipbench.bench.load import depth, load_model
from skipbench.bench.stored_sets import resolve
from skipbench.config.compose import compose
from skipbench.contrib.deepened.deepened import deepen
from skipbench.decode.loop import generate
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.vanilla import Vanilla
from skipbench.profile.influence import rank_sublayers
from skipbench.runs.fingerprint import weights_sha256
from skipbench.skipset import STRONGEST, deepened_layers, deepened_set


@pytest.mark.parametrize(("layers", "share"), [(4, 1.0), (30, 1.0), (30, 0.4), (2, 0.5)])
def test_half_of_what_is_put_in_is_redundant(layers: int, share: float) -> None:
    count = round(layers * share)
    deeper = deepened_layers(layers, share, 3)
    known = deepened_set(layers, share, 3)
    assert len(deeper) == known.layers == layers + count
    assert len(known.skipped) == 2 * count
    assert [x.own for x in deeper] == sorted(x.own for x in deeper)
    sizes = [s for x in deeper for s in (x.attention, x.mlp) if s != 1.0]
    assert sizes.count(0.0) == count // 2 and max(sizes) < 1.01 * STRONGEST
    assert len(set(sizes)) == len(sizes) - max(count // 2 - 1, 0)  # graded
    assert not known.skipped & {0, 1, 2 * known.layers - 2, 2 * known.layers - 1}
    own = [s for s in range(2 * known.layers) if s not in known.skipped]
    assert [s % 2 for s in own] == [0, 1] * layers  # the checkpoint, in its order
    assert deepened_layers(layers, share, 3) == deeper != deepened_layers(layers, share, 4)


def biased(family: str) -> Any:
    """A random model whose vectors, biases above all, are not the ones and zeros of a new one."""
    model = random_model(family)
    if family == "llama":
        config = copy.deepcopy(model.config)
        config.attention_bias = config.mlp_bias = True
        fresh = type(model)(config).eval().requires_grad_(False)
        fresh.load_state_dict(model.state_dict(), strict=False)
        model = fresh
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.3)
    return model


@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral"])
def test_without_the_known_set_the_checkpoint_is_left(family: str, share: float) -> None:
    own, model = LM(biased(family)), biased(family)
    biases = [name for name, _ in model.named_parameters() if name.endswith(".bias")]
    assert bool(biases) == (family in ("llama", "qwen2"))
    deepen(model, share, 1)
    deeper, known = LM(model), deepened_set(LAYERS, share, 1)
    tokens = list(range(20))
    for lm in (own, deeper):
        lm.allocate(32)
    rows = TokenRows.chain(0, len(tokens))
    found = deeper.head(deeper.run(deeper.embed(tokens), rows, known))
    assert torch.equal(found, own.head(own.run(own.embed(tokens), rows)))
    assert not torch.equal(found, deeper.head(deeper.run(deeper.embed(tokens), rows)))


@pytest.mark.slow
def test_the_known_set_is_accepted_and_others_are_not() -> None:
    model = random_model("llama")
    reference = copy.deepcopy(model)
    deepen(model, 1.0, 2)
    lm = LM(model)
    lm.allocate(160)
    known = deepened_set(LAYERS, 1.0, 2)
    wrong = DraftPlan.of(known.layers, {s for s in range(2, 14) if s not in known.skipped})
    drafted = {}
    for skip in (known, wrong):
        method = make_method(
            "fixed", f'method.skip="{skip}"', "method.stop.max_steps=6", layers=known.layers
        )
        rounds = []
        for start in range(3):
            prompt = [start, 5, 9, 2 * start]
            out = generate(lm, method, prompt, 40)
            assert out.tokens == generate(lm, Vanilla(), prompt, 40).tokens
            rounds += out.rounds
        drafted[skip] = sum(r.accepted for r in rounds) / sum(r.nodes for r in rounds)
    assert drafted[known] > 0.95 > 0.6 > drafted[wrong]
    # the model with redundant sub-layers says nearly what the checkpoint says, on the same classes
    ids = torch.arange(40)[None]
    agree = model(ids).logits.argmax(-1) == reference(ids).logits.argmax(-1)
    assert agree.float().mean() > 0.9


def test_redundant_sub_layers_change_their_input_least() -> None:
    model = random_model("llama")
    deepen(model, 1.0, 2)
    known = deepened_set(LAYERS, 1.0, 2).skipped
    assert set(rank_sublayers(LM(model), list(range(20)))[: len(known)]) == known


def test_any_checkpoint_is_deepened_by_a_key(tmp_path: Path) -> None:
    plain = compose(["model=tiny"])
    config = compose(["model=tiny", "model.deepened=0.5", "model.deepened_seed=3"])
    assert config.model.name == "tiny-deep0.5" and depth(config.model) == 18
    assert config.record()["model"]["deepened"] == 0.5 and "deepened" not in plain.record()["model"]
    assert weights_sha256(config.model) != weights_sha256(plain.model)
    lm, _ = load_model(config.model, config.engine)
    assert lm.layers == lm.config.num_hidden_layers == 18
    # sizes are unknown here, so the set is made of the checkpoint's config
    path = compose(["model=path", f"model.path={plain.model.path}", "model.deepened=1"])
    known = resolve("stored", path.model, "self-sd", tmp_path)
    assert known == str(deepened_set(12, 1.0, 0)) and path.model.name == "tiny-deep"


def test_the_set_of_the_positive_control_is_part_of_its_settings() -> None:
    model = compose(["model=smollm2-135m-deep"]).model
    assert model.sizes is not None and model.sizes.layers == 60
    assert model.sets["self-sd"] == str(deepened_set(30, 1.0, 0)) == model.sets["self-sd-c"]
    assert len(DraftPlan.parse(str(model.sets["self-sd"]), 60).skipped) == 60


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model=smollm2-135m", "model.deepened=1.5"], "model.deepened=1.5 of 30 layers"),
        (["model=smollm2-135m", "model.deepened=-1"], "wanted above 0"),
        (["model=planted", "model.deepened=1"], "redundant sub-layers already"),
        (["model=tiny", "model.source=package"], "comes in no package"),
    ],
)
def test_what_cannot_be_deepened(overrides: list[str], says: str) -> None:
    with pytest.raises(SkipbenchError, match=says):
        compose(overrides)
