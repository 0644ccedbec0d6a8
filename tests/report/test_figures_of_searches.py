"""Figures of searches: the trials of a trace, and the sets that SWIFT found step by step."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from conftest import ROOT

from skipbench.cli.main import dispatch
from skipbench.errors import SkipbenchError
from skipbench.report.figures.runs import read_runs
from skipbench.report.figures.searches import course, refined, sets_by_step
from skipbench.search.run import RETIMED, Retimed, Trial

FIGURES = ROOT / "results" / "embedded" / "figures"
TRIALS = [
    Trial(0, "attn:1", 0.5, {"skipped": 1}, None, 0.0, 1.0),
    Trial(1, "", None, {}, None, 0.0, 1.0),
    Trial(2, "attn:1,2", 0.25, {"skipped": 2}, [0.5], 0.0, 1.0),
    Trial(3, "attn:2", 1.0, {"skipped": 1}, [0.5], 0.0, 1.0),
]
AGAIN = Retimed(4, "attn:1,2", 0.2, ["attn:1,2"], [[0.2]])


def test_a_search_is_drawn_over_its_trials_and_over_what_it_skips() -> None:
    left, right = course(TRIALS, AGAIN).axes
    so_far, chosen = left.get_lines()
    assert list(so_far.get_xdata()) == [1, 3, 4] and list(so_far.get_ydata()) == [2, 4, 4]
    assert [*chosen.get_xydata()[0]] == [3, 5]
    best, _ = right.get_lines()
    assert list(best.get_xdata()) == [1, 2] and list(best.get_ydata()) == [2, 4]
    tried, suggested = (points.get_offsets().tolist() for points in right.collections)
    assert tried == [[1, 2]] and suggested == [[2, 4], [1, 1]]
    with pytest.raises(SkipbenchError, match="no trial of this search has a value"):
        course(TRIALS[1:2], None)


def test_the_folder_of_a_search_is_drawn(tmp_path: Path) -> None:
    named = {key: {"name": key} for key in ("model", "dataset", "method", "engine")}
    lines = [{"settings": named | {"search": {"strategy": "bayes"}}}, *map(asdict, TRIALS)]
    trace = tmp_path / "trace.jsonl"
    trace.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    (tmp_path / RETIMED).write_text(f"{json.dumps(asdict(AGAIN))}\n")
    dispatch(["figure", str(tmp_path)])
    assert (tmp_path / "figures" / "search.png").stat().st_size > 5000
    trace.write_text(trace.read_text().replace("settings", "other"))
    with pytest.raises(SkipbenchError, match=r"trace\.jsonl cannot be read"):
        dispatch(["figure", str(tmp_path)])


def test_a_set_of_swift_stands_at_the_step_that_found_it() -> None:
    """A step that finds a better set has its own matchness as the best."""
    _, runs = read_runs(FIGURES / "swift-figure8.embedded.json")
    for run in runs:
        traces = [s.trace for s in run.sound]
        matchness, best = ([v for t in traces for v in t[name]] for name in ("matchness", "best"))
        (first, _), *found = sets_by_step(run, 12)
        assert first == 0 and all(matchness[step - 1] == best[step - 1] for step, _ in found)
    assert max(len(sets_by_step(run, 12)) for run in runs) > 3
    attention, mlp = refined(runs[:1], []).axes
    sets = sets_by_step(runs[0], 12)
    drawn = [axis.get_images()[0].get_array() for axis in (attention, mlp)]
    for row, (_, plan) in enumerate(sets):
        skipped = [2 * layer + kind for kind in (0, 1) for layer in drawn[kind][row].nonzero()[0]]
        assert {*skipped} == plan.skipped
    assert [t.get_text() for t in mlp.get_yticklabels()] == [str(step) for step, _ in sets]
    clasp = read_runs(FIGURES / "clasp-figure3a.embedded.json")[1]
    with pytest.raises(SkipbenchError, match="draw a run of swift"):
        refined(clasp, [])
