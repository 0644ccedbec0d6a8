"""`compare`: what can run is ranked, what cannot says why, and one recommendation ends it."""

import io
import json
import shlex
import sys
from pathlib import Path

import pytest
from builders import tiny_copy
from conftest import ROOT, Command

import skipbench as package
from skipbench.cli.compare import COMMANDS, advice
from skipbench.errors import SkipbenchError
from skipbench.experiments.ranking import cells_to_rank, run_ranked
from skipbench.experiments.table_runs import run_entry
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.report.compared import Comparison, conclude
from skipbench.report.page import write_page
from skipbench.runs.measures import Metrics, Speedup
from skipbench.runs.reading import run_folders
from skipbench.runs.run import Run, read_run

TALK = "chat" if "chat" in COMMANDS else "generate"
SHORT = ["dataset.max_new_tokens=12", "engine.warmup=0"]


def run(method: str, *ratios: float) -> Run:
    """A run of these speedups, one per prompt."""
    mean, ends = paired_ratio_interval(ratios)
    by_question = {str(i): ratio for i, ratio in enumerate(ratios)}
    speedup = Speedup(e2e=mean, e2e_ci95=ends, by_question=by_question)
    return Run(model="m", dataset="d", method=method, metrics=Metrics(speedup=speedup))


A = (1.2, 1.31, 1.24, 1.26, 1.25, 1.24)
VANILLA = run("vanilla", 0.99, 1.01, 1.0, 1.02, 0.98, 1.0)


def test_the_fastest_beyond_the_noise_is_recommended() -> None:
    b, c = [r * 0.99 + 0.02 * (i % 2) for i, r in enumerate(A)], [0.5 * r for r in A]
    left_out = Run(model="m", dataset="d", method="x", reason="y")
    found = conclude([left_out, VANILLA, run("c", *c), run("b", *b), run("a", *A)])
    assert [r.method for r in found.runs] == ["a", "b", "vanilla", "c", "x"]
    assert found.best is not None and found.best.method == "a"
    assert [r.method for r in found.tied] == ["b"]
    text = "\n".join(advice(found, ["model=path", "model.path='/my model'"]))
    assert "Recommended: a, 1.25x [1.19, 1.31] of vanilla; not significantly slower: b." in text
    assert f"{TALK} 'model.path='" in text and 'load("/my model", method="a")' in text
    more = ["model.dtype=bfloat16", "results=/r"]
    _, command, call = advice(found, ["model.path=/m", *more, "limit=4", "dataset.path=p.jsonl"])
    assert command.endswith(f"{TALK} model.path=/m {' '.join(more)} method=a")
    assert call == f'  skipbench.load("/m", method="a", overrides={json.dumps(more)})'


@pytest.mark.parametrize(
    "fast", [(0.8, 1.6, 1.9, 1.0, 0.9, 1.3), (1.01, 1.03, 0.99, 1.02, 1.0, 1.01), A[:4]]
)
def test_noise_is_not_recommended(fast: tuple[float, ...]) -> None:
    found = conclude([VANILLA, run("a", *fast)])
    told, command, _ = advice(found, ["model=m"])
    assert found.best is None and told.startswith("Recommended: vanilla. No method is faster")
    assert command.endswith(f"{TALK} model=m method=vanilla")


def test_a_folder_and_a_file_of_prompts(
    tmp_path: Path, skipbench: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text('{"prompt": "Once upon a time"}\n{"prompt": "A dog and a cat"}\n')
    words = ["compare", f"model.path={ROOT / 'skipbench/models/tiny'}", f"prompts={prompts}"]
    words += [f"results={tmp_path / 'results'}", "method=uniform,fixed", *SHORT]
    done = skipbench(*words)
    assert done.returncode == 0, done.stderr
    assert "| uniform" in done.stdout and "| vanilla" in done.stdout
    assert "left out: fixed: method.skip must be given" in done.stdout
    told, command, call = done.stdout.splitlines()[-3:]
    assert told.startswith("Recommended: ")
    # both go on as they stand
    answer = eval(call, {"skipbench": package}).generate("Once upon a time", 4)
    monkeypatch.setattr(sys, "stdin", io.StringIO("Once upon a time\n"))
    chat = skipbench(*shlex.split(command)[3:], "max_new_tokens=4")
    assert chat.returncode == 0 and answer.method in chat.stderr, chat.stderr
    again = skipbench(*words, "--json")
    assert "prompts:" not in again.stderr  # nothing is measured twice
    runs = json.loads(again.stdout)
    assert {r["method"] for r in runs} == {"vanilla", "uniform", "fixed"}
    path, counts, _ = write_page(tmp_path / "results")
    assert counts == {"runs": 2, "tables": 1, "figures": 0} and told in path.read_text()


def test_no_prompt_begins_after_the_time_is_up_and_the_same_command_goes_on(tmp_path: Path) -> None:
    mine = ["model=path", f"model.path={tiny_copy(tmp_path / 'mine')}"]  # without a searched set
    settings = [*mine, "dataset=mini-stories", f"results={tmp_path}", *SHORT]

    def ranked(minutes: float, *methods: str) -> Comparison:
        run_ranked(cells := cells_to_rank(settings, methods, 3), minutes)
        return conclude([run_entry(cell) for cell in cells])

    found = ranked(0, "uniform", "self-sd")
    counts = {r.method: r.metrics and r.metrics.samples for r in found.runs}
    assert counts == {"vanilla": 1, "uniform": 1, "self-sd": None}
    assert "minutes=" in str(found.runs[-1].reason)
    states = [read_run(folder).status for folder in run_folders(tmp_path)]
    assert [status.state for status in states] == ["interrupted"] * 2
    (turns,) = tmp_path.glob("runs/*/turns.jsonl")
    first = turns.read_text()
    found = ranked(1, "uniform")
    assert [r.metrics and r.metrics.samples for r in found.runs] == [3, 3]
    assert all(read_run(folder).done for folder in run_folders(tmp_path))
    assert turns.read_text().startswith(first) and first.count("\n") == 1


def test_the_frame(tmp_path: Path) -> None:
    frame = package.compare(
        "tiny", ["Once upon a time"], methods=["uniform"], results=tmp_path, overrides=SHORT
    )
    assert set(frame["method"]) == {"vanilla", "uniform"} and (frame["speedup"] > 0).all()
    assert list(frame["lossless"]) == [1, 1] and list(frame["note"]) == ["", ""]
    assert frame["speedup_low"].dtype == float, "one question has no interval, and it is a number"
    with pytest.raises(SkipbenchError, match="prompt b'Once'; wanted a text"):
        package.compare("tiny", [b"Once"], results=tmp_path)
