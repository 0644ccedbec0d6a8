"""Two phases: the run stores completions, `score` executes them and adds the scores."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from builders import CONFIG
from conftest import ROOT, rest_slow
from msgspec.structs import replace

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.runs.measures import GroupScores, Metrics, Score
from skipbench.runs.reading import run_folders
from skipbench.runs.record import Arm, Seconds, Texts, Turn
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore, append_turn
from skipbench.scoring import execute, overlap
from skipbench.scoring.execute import score_run
from skipbench.scoring.sandbox import Outcome

pytestmark = pytest.mark.usefixtures("isolated")
SMALL = ["dataset=mini-code", "engine.warmup=0"]
SETTINGS = CONFIG | {"dataset": {"scorer": "humaneval", "name": "d"}}


def read(folder: Path, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def judged(program: str, *arguments: Any) -> Outcome:
    """In the place of `run_program`."""
    return Outcome("return 3" in program)


def metrics(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return found


def means(found: Metrics) -> tuple[dict[str, float | None], ...]:
    """The mean scores of vanilla and of the method."""
    return tuple(m.score.means for m in (found.baseline, found) if m.score)


def run_folder(
    tmp_path: Path, texts: dict[str, tuple[str, str]], scorer: str = "humaneval"
) -> Path:
    """A finished run of a function that must return 3; `texts` are vanilla's and the method's
    bodies by sample id.
    """
    reference = {"prompt": "def f():\n", "test": "def check(f):\n    assert f() == 3\n"}
    reference["entry_point"] = "f"
    row = tmp_path / "row"
    store = RunStore(row / "x", SETTINGS | {"dataset": {"scorer": scorer, "name": "d"}})
    arm = Arm([1, 2], [], Seconds(0, 0, 0, 0, 0.1), "length")
    arms = {"vanilla": arm, "x": replace(arm, lossless="identical")}
    for index, (name, (vanilla, method)) in enumerate(texts.items()):
        groups, task = {"half": str(index % 2)}, name.partition("#")[0]
        turn = Turn(index, name, "h", 3, [*arms], arms, groups, task)
        said = {"vanilla": vanilla, "x": method}
        append_turn(row, turn, Texts(index, name, "def f():\n", reference, said))
    store.write_metrics(Metrics(samples=len(texts), score=Score()))
    store.close()
    return row / "x"


RIGHT, WRONG = "\treturn 3\n", "    return 4\n"


@pytest.mark.parametrize("method", rest_slow(["uniform", "self-sd", "clasp"], "uniform".__eq__))
def test_a_run_is_scored(method: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_cell(compose([*SMALL, f"method={method}", "limit=2", f"results={tmp_path}"]))
    (folder,) = run_folders(tmp_path)
    assert f"not scored yet: python -m skipbench score {folder}" in capsys.readouterr().err
    assert "means" not in metrics(folder)["score"] and not (folder / "scores.jsonl").exists()
    rows = read(folder.parent, "texts.jsonl")
    assert [r["index"] for r in rows] == [0, 1]
    assert all(r["arms"]["vanilla"] == r["arms"][folder.name] != "" for r in rows)
    dispatch(["score", f"{folder.parent.name}/{folder.name}", f"results={tmp_path}"])
    assert "vanilla and the method are equal, 2 samples" in capsys.readouterr().out
    score = metrics(folder)["score"]["means"]
    assert metrics(folder)["vanilla"]["score"]["means"] == score and 0 < score["pass@1"] <= 1
    verdicts = read(folder, "scores.jsonl")
    passed = [v["arms"]["vanilla"]["passed"] for v in verdicts]
    assert "no numpy" in metrics(folder)["score_rules"]["program"]
    assert sum(passed) / 2 == score["pass@1"]
    assert [v["id"] for v in verdicts] == [r["id"] for r in rows]
    assert "pass@1" in (folder / "table.md").read_text()
    run_cell(compose([*SMALL, f"method={method}", "limit=2", f"results={tmp_path}"]))
    shown = capsys.readouterr()
    assert "not scored yet" not in shown.err and "pass@1" in shown.out


def test_a_table_says_what_is_not_scored(tmp_path: Path) -> None:
    words = ["limit=1", "dataset.max_new_tokens=8", "engine.warmup=0", f"results={tmp_path}"]
    dispatch(["table", "tiny", *words, "method=uniform", "dataset=mini-code,mini-math"])
    lines = (tmp_path / "tables" / "tiny.md").read_text().splitlines()
    code, *other = [line for line in lines if "| mini-" in line]
    assert "python -m skipbench score" in code and not any("not scored" in line for line in other)


def test_the_model_is_not_there_when_code_is_executed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, {"a": (RIGHT, WRONG)})
    program = "import sys\nfrom skipbench.cli.main import main\nmain()\n"
    program += "assert 'torch' not in sys.modules, 'torch is loaded'"
    words = [sys.executable, "-c", program, "score", str(folder)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "pass@1 1.000 -> 0.000" in done.stdout
    assert "differ on 1 of 1 samples, first a" in done.stdout


def test_equal_programs_are_executed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Mock(side_effect=judged)
    monkeypatch.setattr(execute, "run_program", run)
    texts = {"T/0#0": (RIGHT, RIGHT), "T/0#1": (RIGHT, WRONG)}
    texts |= {"T/1#0": ("    return 3\n", WRONG), "T/1#1": (WRONG, "x")}
    folder = run_folder(tmp_path, texts)
    scored = score_run(folder, "auto", 5.0)
    assert scored is not None and len({call.args[0] for call in run.call_args_list}) == 3
    assert run.call_count == 3
    assert scored.differ == ["T/0#1", "T/1#0"]
    assert means(scored.metrics) == ({"pass@1": 0.75}, {"pass@1": 0.25})


def test_pass_at_ten_wants_ten_samples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execute, "run_program", judged)
    # Of task 0, one of 12 samples is right: pass@10 is 1 - C(11, 10) / C(12, 10) = 1 - 11 / 66. Of
    # task 1, none.
    texts = {f"T/0#{n}": (RIGHT if n == 5 else WRONG, RIGHT) for n in range(12)}
    texts |= {f"T/1#{n}": (WRONG, RIGHT) for n in range(10)}
    folder = run_folder(tmp_path, texts)
    scored = score_run(folder, "none", 5.0)
    assert scored is not None
    theirs, ours = means(scored.metrics)
    by_hand = {"pass@1": (1 / 12 + 0) / 2, "pass@10": (1 - 11 / 66) / 2}
    assert theirs == pytest.approx(by_hand) and ours == {"pass@1": 1.0, "pass@10": 1.0}
    score = scored.metrics.baseline.score
    assert score and set(score.by["half"]["0"].means) == {"pass@1"}  # 6 and 5 samples per task


def test_corpus_scores_join_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def length(texts: list[str], references: list[Any]) -> dict[str, float]:
        return {"length": float(sum(map(len, texts)))}

    monkeypatch.setitem(overlap.CORPUS_SCORERS, "length", length)
    folder = run_folder(tmp_path, {"a": ("x", "yy"), "b": ("xxx", "yyyy")}, scorer="length")
    run = read_run(folder)
    found = overlap.corpus_scored("length", Metrics(), run.turns, run.arm, run.texts)
    assert means(found) == ({"length": 4.0}, {"length": 6.0}) and found.score is not None
    assert found.score.by["half"]["1"] == GroupScores(means={"length": 4.0}, samples=1)


def test_runs_that_cannot_be_scored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = run_folder(tmp_path, {"a": (RIGHT, RIGHT)})
    cases = [
        (["nowhere", f"results={tmp_path}"], "no run nowhere"),
        ([], "score needs a run"),
        ([str(folder), "sandbox=docker"], "sandbox=docker"),
        ([str(folder), "timeout=soon"], "timeout=soon"),
        ([str(folder), "timeout=-1"], "positive number of seconds"),
        ([str(folder), "colour=red"], "sandbox, timeout, results"),
    ]
    for words, says in cases:
        with pytest.raises(SkipbenchError, match=says):
            dispatch(["score", *words])
    store = RunStore(folder, SETTINGS)
    with pytest.raises(SkipbenchError, match="another process"):
        score_run(folder, "auto", 5.0)
    store.close()
    shutil.copytree(folder.parent, tmp_path / "other")
    (tmp_path / "other" / "x" / "metrics.json").unlink()
    with pytest.raises(SkipbenchError, match="not finished"):
        score_run(tmp_path / "other" / "x", "auto", 5.0)
    (folder.parent / "texts.jsonl").unlink()
    with pytest.raises(SkipbenchError, match="no text of a; fresh=true"):
        score_run(folder, "auto", 5.0)

    def refuses() -> None:
        raise SkipbenchError("cannot be isolated; sandbox=none runs it anyway")

    monkeypatch.setattr(execute, "bubblewrap", refuses)
    again = run_folder(tmp_path / "again", {"a": (RIGHT, RIGHT)})
    with pytest.raises(SkipbenchError, match="sandbox=none"):
        dispatch(["score", str(again)])
    dispatch(["score", str(again), "sandbox=none"])
    assert metrics(again)["score"]["means"] == {"pass@1": 1.0}
