"""Whatever drafts, a lossless method scores what vanilla scores: whole cells on the embedded
model.
"""

import functools
from pathlib import Path
from typing import Any

import pytest

from skipbench.config.compose import compose
from skipbench.experiments.row import run_cell
from skipbench.models.load import load
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run
from skipbench.scoring.scorers import score

# The answers fit; stories are begun, far enough to name somebody.
METHODS = ("vanilla", "self-sd", "prompt-lookup")
DATASETS = ("mini-math", "mini-summary", "mini-stories")


@functools.cache
def tokenizer() -> Any:
    return load(compose([]).model.path, engine="fused")[1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("dataset", DATASETS)
@pytest.mark.slow
def test_both_arms_score_the_same(method: str, dataset: str, tmp_path: Path) -> None:
    small = ["limit=2", "dataset.max_new_tokens=64", "engine.warmup=0", f"results={tmp_path}"]
    config = compose([f"method={method}", f"dataset={dataset}", *small])
    assert run_cell(config, print_table=False)
    (folder,) = run_folders(tmp_path)
    run = read_run(folder)
    metrics = run.measured
    assert metrics.lossless.identical == 2 and metrics.score_equal is True
    assert metrics.score and metrics.score == metrics.baseline.score
    assert any(metrics.score.means.values()), "no answer was reached, so nothing was compared"
    # A run scores a text once: each arm's own tokens are scored here.
    for turn, row in zip(run.turns, config.dataset.rows(2), strict=True):
        for arm in turn.arms.values():
            text = tokenizer().decode(arm.tokens, skip_special_tokens=True)
            assert arm.score == score(config.dataset.scorer, text, row.prompt, row.reference)
