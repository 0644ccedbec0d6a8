"""Sparsified weights: scores and masks by hand, what pruning leaves of the embedded model, and a
lossless run with it.
"""

from pathlib import Path

import pytest
import torch
from builders import SMALL
from conftest import random_model

from skipbench.config.compose import compose
from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.models.sparsity import Pattern, kept, linears, parse_sparsity, prune
from skipbench.runs.run import read_run

TEXTS = [[3, 1, 4, 1, 5, 9, 2, 6], [2, 7, 1, 8, 2, 8], []]


def test_scores_and_masks_by_hand() -> None:
    weight = torch.tensor([[4.0, -1.0, 2.0, 3.0], [0.5, 6.0, -7.0, 0.1]])
    norms = torch.tensor([1.0, 5.0, 0.5, 1.0])
    # scores are [[4.0, 5.0, 1.0, 3.0], [0.5, 30.0, 3.5, 0.1]]
    # By rows 1.0 and 3.0 go, 0.1 and 0.5; in groups of two the lower of each, though 4.0 is above
    # all of another row.
    yes, no = True, False
    assert kept(weight, norms, Pattern(0.5)).tolist() == [[yes, yes, no, no], [no, yes, yes, no]]
    assert kept(weight, norms, Pattern(0.5, 2)).tolist() == [[no, yes, no, yes], [no, yes, yes, no]]
    assert kept(weight, norms, Pattern(0.25)).sum(1).tolist() == [3, 3]


@pytest.mark.parametrize(
    ("text", "ratio", "group"),
    [("wanda-0.3", 0.3, None), ("wanda-2:4", 0.5, 4), ("wanda-1:8", 0.875, 8)],
)
def test_every_matrix_of_every_layer_is_pruned(text: str, ratio: float, group: int | None) -> None:
    dense, lm = random_model("llama"), LM(random_model("llama"), "reference")
    pattern = parse_sparsity(text)
    assert pattern is not None
    prune(lm, TEXTS, pattern)
    for before, after in zip(dense.model.layers, lm.model.model.layers, strict=True):
        assert len(linears(after)) == 7
        for old, new in zip(linears(before), linears(after), strict=True):
            size = group or new.in_features
            left = (new.weight != 0).view(new.out_features, -1, size).sum(-1).unique().tolist()
            assert left == [size - (round(size * ratio) if group else int(size * ratio))]
            # what stays is not changed
            assert torch.equal(new.weight[new.weight != 0], old.weight[new.weight != 0])
    assert torch.equal(lm.model.lm_head.weight, dense.lm_head.weight)


def test_a_layer_is_calibrated_behind_the_pruned_ones() -> None:
    lm, reference = LM(random_model("qwen3"), "reference"), LM(random_model("qwen3"), "reference")
    prune(lm, TEXTS, Pattern(0.5))
    # By hand: the inputs of the last layer's queries, through the layers before as they are after
    # pruning.
    rows = []
    with torch.inference_mode():
        for ids in TEXTS[:2]:
            hidden = lm.run(lm.embed(ids), TokenRows.chain(0, len(ids)), last=2 * (lm.layers - 1))
            rows.append(lm.model.model.layers[-1].input_layernorm(hidden))
    norms = torch.cat(rows).square().sum(0).sqrt()
    dense = reference.model.model.layers[-1].self_attn.q_proj.weight
    wanted = kept(dense, norms, Pattern(0.5))
    assert torch.equal(lm.model.model.layers[-1].self_attn.q_proj.weight != 0, wanted)


def settings(results: Path, *overrides: str) -> RunConfig:
    given = ["method=self-sd", "dataset=mini-stories", *SMALL, f"results={results}"]
    return compose([*given, "dataset.max_new_tokens=16", *overrides])


def test_a_run_is_lossless_and_named_by_its_sparsity(tmp_path: Path) -> None:
    names = set()
    for words in (["wanda-4:8"], ["none"], ["wanda-4:8", "4"], ["none", "4"]):
        more = [f"model.calibration.rows={words[1]}"] if len(words) > 1 else []
        names.add(resolve_cell(settings(tmp_path, f"model.sparsity={words[0]}", *more)).folder)
    assert len(names) == 3  # a dense model is not calibrated
    config = settings(tmp_path, "model.sparsity=wanda-4:8", "model.calibration.rows=2")
    assert run_cell(config)
    state = read_run(resolve_cell(config).folder)
    assert state.measured.lossless.identical == 1
    assert len(str(state.provenance.calibration_sha256)) == 64
    assert state.origin.sparsity == "wanda-4:8"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        (["model.sparsity=wanda-1.5"], "none, wanda-RATIO.*wanda-2:4, wanda-4:8"),
        (["model.sparsity=wanda-0.5", "model.calibration.rows=0"], "wanted 1 or more"),
        (["model.sparsity=wanda-0.5", "model.quantization=int8"], "model.quantization=int8"),
        (["model.sparsity=wanda-2:5"], "192 inputs; use wanda-RATIO"),
    ],
)
def test_what_cannot_be_is_refused(overrides: list[str], says: str, tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match=says):
        run_cell(settings(tmp_path, "model.calibration.rows=2", *overrides))
