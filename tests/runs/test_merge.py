"""A merge loses nothing and mixes nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from builders import make_run, sample
from conftest import ROOT, unseal
from msgspec.structs import replace

from skipbench.cli.main import dispatch
from skipbench.errors import SkipbenchError
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.runs import row_table
from skipbench.runs.merge import _decided, merge_into
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore, read_samples

ORIGIN: dict[str, Any] = {"commit": "0123abc", "device": "NVIDIA H200", "versions": {"torch": "2"}}


def test_runs_of_several_machines_come_together(tmp_path: Path) -> None:
    a, b, target = (tmp_path / name for name in ("a", "b", "target"))
    make_run(a, 1, ORIGIN)
    make_run(b, 2, ORIGIN | {"host": "other"})
    short, long = make_run(a, 3, ORIGIN), make_run(b, 3, ORIGIN | {"host": "other"}, samples=5)
    for source in (a, b):
        assert merge_into(source, target).left == []
    assert len(list((target / "runs").iterdir())) == 3
    united = read_samples(target / "runs" / short.name / "samples.jsonl")
    assert [s.index for s in united] == list(range(5))
    assert read_run(target / "runs" / short.name).status.state == "done"
    before = {p: p.read_bytes() for p in target.rglob("*") if p.is_file()}
    for source in (b, a, b):
        assert merge_into(source, target).did == {"there already": 2}
    assert before == {p: p.read_bytes() for p in target.rglob("*") if p.is_file()}
    assert len(read_samples(long / "samples.jsonl")) == 5, "the source was changed"


def test_parts_are_united_and_then_wait_for_the_same_command(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    mine, other = make_run(a, 0, ORIGIN), make_run(b, 0, ORIGIN)
    for folder, index in ((mine, 5), (other, 6)):
        store = RunStore(folder, read_run(folder).settings)
        store.append(sample(index))
        store.status("running")
        store.close()
    assert merge_into(b, a).left == []
    assert [s.index for s in read_samples(mine / "samples.jsonl")] == [0, 1, 5, 6]
    state = read_run(mine)
    assert state.metrics is None and state.status.state == "failed"
    assert "same command goes on" in state.status.error


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_merge_that_is_interrupted_leaves_no_copy(
    error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "b", 0, ORIGIN)

    def stop(*_: Any) -> None:
        raise error

    monkeypatch.setattr("os.rename", stop)
    with pytest.raises((SkipbenchError, KeyboardInterrupt)):
        merge_into(tmp_path / "b", tmp_path / "a")
    assert not [*(tmp_path / "a" / "runs").iterdir()]


def test_what_was_measured_tells_no_two_samples_apart() -> None:
    one = sample(0)
    method = replace(one.method, seconds=one.vanilla.seconds, round_s=[0.5])
    assert _decided(replace(one, method=method)) == _decided(one)


def test_other_counts_of_one_origin_are_refused_by_name(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    mine, other = make_run(a, 0, ORIGIN), make_run(b, 0, ORIGIN)
    unseal(other)
    text = (other / "samples.jsonl").read_text()
    (other / "samples.jsonl").write_text(text.replace('"tokens":[1,2,3]', '"tokens":[1,2,4]'))
    before = (mine / "samples.jsonl").read_text()
    (left,) = merge_into(b, a).left
    assert str(mine) in left and str(other) in left and "samples [0, 1]" in left
    assert (mine / "samples.jsonl").read_text() == before
    with pytest.raises(SkipbenchError, match="1 not merged"):
        dispatch(["merge", str(b), f"results={a}"])


@pytest.mark.parametrize(
    "more", [{"commit": "4567def"}, {"device": "NVIDIA A100"}, {"versions": {"torch": "3"}}]
)
def test_another_origin_is_kept_beside_and_told_apart_in_tables(
    more: dict[str, Any], tmp_path: Path
) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    make_run(a, 0, ORIGIN)
    make_run(b, 0, ORIGIN | more)
    for _ in range(2):
        done = merge_into(b, a)
        assert done.left == []
    assert done.did == {"there already": 1} and len(list((a / "runs").iterdir())) == 2
    text = markdown(row_table([read_run(folder) for folder in run_folders(a)]))
    rows = [line for line in text.splitlines() if line.startswith("| mini-code")]
    assert sorted(row.rstrip(" |").split("|")[-1].strip()[:1] for row in rows) == ["a", "b"]
    assert "origin a: commit 0123abc" in text and "origin b: commit" in text


def test_runs_of_other_weights_are_not_united_and_one_origin_needs_no_marks(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    make_run(a, 0, ORIGIN | {"weights_sha256": "1"})
    make_run(b, 0, ORIGIN | {"weights_sha256": "2"})
    merge_into(b, a)
    runs = [read_run(folder) for folder in run_folders(a)]
    text = markdown(row_table(runs))
    assert len(runs) == 2 and "origin a" not in text and "| origin" not in text


def test_searches_and_sets_are_merged_or_named(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for results, trials in ((a, 1), (b, 3)):
        (results / "search" / "x").mkdir(parents=True)
        trials_done = [{"settings": {}}, *({"iteration": i} for i in range(trials))]
        lines = [json.dumps(value) for value in trials_done]
        (results / "search" / "x" / "trace.jsonl").write_text("\n".join(lines) + "\n")
        (results / "skip_sets").mkdir()
        (results / "skip_sets" / "tiny.json").write_text(json.dumps({"skip": f"attn:{trials}"}))
    done = merge_into(b, a)
    traces = {(results / "search" / "x" / "trace.jsonl").read_text() for results in (a, b)}
    (left,) = done.left
    assert len(traces) == 1 and "skip_sets" in left
    assert json.loads((a / "skip_sets" / "tiny.json").read_text()) == {"skip": "attn:1"}


@pytest.mark.slow
def test_faults_in_short(tmp_path: Path) -> None:
    """Kills and full disks; the script checks by itself that nothing is lost."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fault_harness.py"), "5", "3"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "5 faults in" in done.stdout
