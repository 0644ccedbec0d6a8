"""A results folder as pandas frames: one row per run, or per sample."""

from pathlib import Path

import pytest
from builders import make_run

import skipbench
from skipbench.errors import SkipbenchError
from skipbench.runs.run import read_run
from skipbench.runs.store import read_samples


def test_a_frame_holds_settings_and_numbers_by_their_paths(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, seed) for seed in (0, 1)]
    runs = skipbench.frame(tmp_path, wide=True).set_index("run")
    assert sorted(runs.index) == sorted(folder.name for folder in folders)
    run = runs.loc[folders[1].name]
    assert (run["method"], run["state"], run["origin.commit"]) == ("fixed", "done", "0123abc")
    assert (run["metrics.M"], run["metrics.speedup.e2e"]) == (2.0, 1.0)
    assert (run["settings.engine.threads"], run["settings.seed"]) == (1, 1)


def test_a_frame_has_the_numbers_of_the_table_under_its_names(tmp_path: Path) -> None:
    made = read_run(make_run(tmp_path))
    (run,) = skipbench.frame(tmp_path).to_dict("records")
    assert (run["run"], run["method"], run["state"]) == (made.id, "fixed", "done")
    assert (run["speedup"], run["M"], run["n"]) == (made.speedup, 2.0, made.measured.samples)
    assert sum("speedup" in name for name in run) == 1 and len(run) < 20


def test_a_frame_of_samples_holds_the_counts_and_seconds_of_both_arms(tmp_path: Path) -> None:
    folder = make_run(tmp_path)
    rows = skipbench.frame(tmp_path, samples=True).to_dict("records")
    for row, s in zip(rows, read_samples(folder / "samples.jsonl"), strict=True):
        turn = s.method.rounds[0]
        assert (row["run"], row["index"], row["lossless"]) == (folder.name, s.index, "tie")
        assert (row["steps"], row["accepted"], row["emitted"]) == (4, 1, turn.emitted)
        assert (row["seconds.draft"], row["vanilla.seconds.prefill"]) == (
            s.method.seconds.draft,
            s.vanilla.seconds.prefill,
        )
        assert (row["tokens"], row["rounds"], row["speedup"]) == (3, 1, s.speedup)
        assert (row["divergence.position"], row["divergence.logit_gap"]) == (1, 0.5)


def test_what_has_no_runs_or_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match="has no runs"):
        skipbench.frame(tmp_path)
    folder = make_run(tmp_path)
    (folder / "metrics.json").write_text('{"M": "high"}')
    with pytest.raises(SkipbenchError, match=r"metrics\.json cannot be read"):
        skipbench.frame(tmp_path)
