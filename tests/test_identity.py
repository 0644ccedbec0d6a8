"""A record belongs to the settings that made it, whatever its folder is called."""

from pathlib import Path

import pytest
from test_bad_records import make_run, readers, refused_by

from skipbench.cli import table
from skipbench.errors import SkipbenchError
from skipbench.experiments.cell import run_cell
from skipbench.launch.status import CellStatus, cell_statuses, parse_submit
from skipbench.runs.run import read_run

SMALL = ["limit=1", "dataset.max_new_tokens=8", "engine.warmup=0"]


def swap(a: Path, b: Path) -> None:
    a.rename(aside := a.with_name("aside"))
    b.rename(a)
    aside.rename(b)


def test_a_run_under_another_runs_name_is_refused_by_all_that_read_it(tmp_path: Path) -> None:
    first, second = (make_run(tmp_path / "results", seed) for seed in (0, 1))
    swap(first, second)
    second.rename(tmp_path / second.name)  # `readers` are of a results folder with one run
    told = refused_by(first)
    assert told.keys() == readers(first).keys() - {"samples", "completions"}  # a run's own files
    own = f"{first} holds another run: its config.yaml has the hash {second.name[-10:]}"
    named = {name for name, text in told.items() if own in text}
    assert named >= {"read_run", "figure", "page", "score", "merge", "index"}
    first.rename(mine := first.with_name("best-of-mine"))  # a name that promises nothing
    assert read_run(mine).metrics


def test_a_cell_under_another_cells_name_is_not_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["tiny", *SMALL, "method=uniform", "dataset=mini-math", f"results={tmp_path}"]

    def cell(ratio: float) -> CellStatus:
        words = [*given, f"method.ratio={ratio}"]
        (found,) = cell_statuses("tiny", parse_submit(words, "status"))
        return found

    for ratio in (0.3, 0.7):
        table.run([*given, f"method.ratio={ratio}"])
    assert cell(0.3).state.state == "done"
    swap(*(tmp_path / "runs" / cell(ratio).key for ratio in (0.3, 0.7)))
    capsys.readouterr()
    with pytest.raises(SkipbenchError, match="holds another run"):
        run_cell(cell(0.3).config)
    assert not capsys.readouterr().out
    with pytest.raises(SystemExit):
        table.run([*given, "method.ratio=0.3"])
    assert "holds another run" in capsys.readouterr().err
    assert cell(0.3).state.state == "failed" and not cell(0.3).runnable
