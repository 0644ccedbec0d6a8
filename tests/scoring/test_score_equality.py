"""Whatever drafts, a lossless method scores what vanilla scores: whole cells on the embedded
model.
"""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import pytest
from conftest import ALONE, NEEDED

from skipbench.config.compose import compose
from skipbench.experiments.row import run_cell
from skipbench.models.load import load
from skipbench.runs.run import read_run
from skipbench.scoring.scorers import score

# The answers fit; stories are begun, far enough to name somebody.
TOKENS = {"mini-math": 64, "mini-summary": 64, "mini-stories": 64}
CELLS = [
    (m, d)
    for m in ALONE
    for d in TOKENS
    if d == "mini-math" or m in ("vanilla", "self-sd", "prompt-lookup")
]


@functools.cache
def tokenizer() -> Any:
    return load(compose([]).model.path, engine="fused")[1]


@pytest.mark.parametrize(("method", "dataset"), CELLS)
@pytest.mark.slow
def test_both_arms_score_the_same(method: str, dataset: str, tmp_path: Path) -> None:
    small = [
        "limit=2",
        f"dataset.max_new_tokens={TOKENS[dataset]}",
        "engine.warmup=0",
        f"results={tmp_path}",
    ]
    # no set of theirs ships with the model
    needed = NEEDED[method] if method in ("fixed", "self-sd-c") else []
    config = compose([f"method={method}", f"dataset={dataset}", *needed, *small])
    assert run_cell(config, print_table=False)
    (folder,) = (tmp_path / "runs").iterdir()
    metrics = read_run(folder).measured
    assert metrics.lossless.identical == 2 and metrics.score_equal is True
    assert metrics.score and metrics.score.vanilla == metrics.score.method
    assert any(metrics.score.vanilla.values()), "no answer was reached, so nothing was compared"
    # A run scores a text once: each arm's own tokens are scored here.
    records = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    for record, row in zip(records, config.dataset.rows(2), strict=True):
        for arm in ("vanilla", "method"):
            text = tokenizer().decode(record[arm]["tokens"], skip_special_tokens=True)
            assert record["score"][arm] == score(
                config.dataset.scorer, text, row.prompt, row.reference
            )


def test_a_method_that_loses_tokens_scores_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from skipbench.bench import cell
    from skipbench.methods.vanilla import Vanilla

    generate = cell.generate

    def lossy(lm: Any, method: Any, *rest: Any) -> Any:
        out = generate(lm, method, *rest)
        return (
            out if isinstance(method, Vanilla) else dataclasses.replace(out, tokens=out.tokens[:3])
        )

    monkeypatch.setattr(cell, "generate", lossy)
    config = compose(
        [
            "method=prompt-lookup",
            "dataset=mini-math",
            "limit=1",
            "engine.warmup=0",
            f"results={tmp_path}",
        ]
    )
    run_cell(config, print_table=False)
    (path,) = tmp_path.glob("runs/*/metrics.json")
    metrics = json.loads(path.read_text())
    assert metrics["score_equal"] is False
    assert (metrics["score"]["vanilla"], metrics["score"]["method"]) == (
        {"exact": 1.0},
        {"exact": 0.0},
    )
    assert metrics["lossless"]["diverged"] == 1
