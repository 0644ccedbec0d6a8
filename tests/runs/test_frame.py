"""A results folder as pandas frames: one row per run, or per turn and arm."""

from pathlib import Path

import pytest
from builders import make_run

import skipbench
from skipbench.errors import SkipbenchError
from skipbench.report.columns import COLUMNS
from skipbench.report.frame import frame
from skipbench.runs.record import VANILLA
from skipbench.runs.run import read_run


def test_a_frame_holds_settings_and_numbers_by_their_paths(tmp_path: Path) -> None:
    folders = [make_run(tmp_path, seed) for seed in (0, 1)]
    runs = frame(tmp_path, wide=True).set_index("run")
    assert sorted(runs.index) == sorted(str(read_run(folder).id) for folder in folders)
    run = runs.loc[read_run(folders[1]).id]
    assert (run["method"], run["state"], run["origin.commit"]) == ("fixed", "done", "0123abc")
    assert (run["metrics.M"], run["metrics.speedup.e2e"]) == (2.0, 1.0)
    assert (run["settings.engine.threads"], run["settings.seed"]) == (1, 1)


def test_a_frame_has_the_columns_of_the_table_under_their_keys(tmp_path: Path) -> None:
    made = read_run(make_run(tmp_path))
    (run,) = skipbench.frame(tmp_path).to_dict("records")
    assert (run["run"], run["method"], run["state"]) == (made.id, "fixed", "done")
    assert (run["speedup"], run["M"], run["n"]) == (made.speedup, 2.0, made.measured.samples)
    assert (run["speedup_low"], run["speedup_high"]) == made.measured.speedup.headline[1]
    others = {"best", "over", "ttft", "itl", "score"}  # of several runs; not measured here
    assert {column.key for column in COLUMNS} - others <= run.keys()
    assert all(any(name.startswith(column.key) for column in COLUMNS) for name in [*run][2:])


def test_a_frame_of_turns_holds_the_counts_and_seconds_of_every_arm(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path))
    rows = iter(frame(tmp_path, turns=True).to_dict("records"))
    for turn in run.turns:
        for arm, of in turn.arms.items():
            row, first = next(rows), of.rounds[0]
            names = row["row"], row["arm"], row["method"]
            assert names == (run.folder.parent.name, arm, VANILLA if arm == VANILLA else "fixed")
            assert (row["index"], row["tokens"], row["rounds"]) == (turn.index, 3, len(of.rounds))
            assert (row["steps"], row["accepted"], row["emitted"]) == (4, 1, first.emitted)
            assert (row["seconds.draft"], row["speedup"]) == (of.seconds.draft, 1.0)
            if arm != VANILLA:
                assert (row["lossless"], row["divergence.logit_gap"]) == ("tie", 0.5)
    assert next(rows, None) is None
    with pytest.raises(SkipbenchError, match="has no runs"):
        frame(tmp_path / "none")
