"""`status`: names by what differs, samples so far, speedup, time left, and the end of a log."""

import json
import os
import shlex
import socket
from pathlib import Path

import pytest
from builders import fake_tool
from conftest import rest_slow
from msgspec.structs import replace
from test_submit import survey

from skipbench.cli.commands import Status
from skipbench.cli.experiments import cells_asked
from skipbench.cli.main import dispatch
from skipbench.cli.parser import parse
from skipbench.config.catalog import choices
from skipbench.experiments.plan import once
from skipbench.launch import manifest
from skipbench.launch.jobs import Job
from skipbench.launch.status import Progress, row_progress
from skipbench.runs.cell import rows_of
from skipbench.runs.record import VANILLA
from skipbench.runs.run import read_run
from skipbench.runs.state import Status as RunStatus
from skipbench.runs.state import read_status, write_status

SMALL = ["dataset=mini-math", "limit=3", "dataset.max_new_tokens=6", "engine.warmup=0"]


def names(experiment: str, *words: str) -> list[str]:
    asked = parse(Status, [experiment, "scale=paper", *words])
    (cells,) = cells_asked(asked, choices("experiment")).values()
    return [cell.name for cell in once(cells)]


@pytest.mark.parametrize(
    "experiment",
    rest_slow(["swift-table2", "swift-table8", "swift-figure8"], "swift-table8".__eq__),
)
def test_every_cell_has_a_name_of_its_own(experiment: str) -> None:
    found = names(experiment)
    assert len({*found}) == len(found) > 4


def test_a_name_says_what_differs_alone() -> None:
    found = names("clasp-table1", "models=llama3-8b")
    assert "llama3-8b clasp specbench temperature=1.0" in found
    assert names("clasp-table1", "models=llama3-8b", "methods=clasp", "decoding.temperature=0.0")[
        0
    ] == ("llama3-8b clasp specbench")


def cut(folder: Path, turns: int, status: RunStatus) -> None:
    """Makes a done run one that took part in fewer turns, and ended or runs as `status` says."""
    (folder / "metrics.json").unlink()
    path = folder.parent / "turns.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["index"] >= turns:
            del line["arms"][folder.name]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    write_status(folder, status)


@pytest.mark.slow
def test_status_says_how_far_what_came_out_and_what_failed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tiny", "method=uniform,random", *SMALL, f"results={tmp_path}"]
    dispatch(["table", *words])
    first, second = (c.folder for c in survey("tiny", words[1:]))
    capsys.readouterr()
    dispatch(["status", *words])
    done = [f"{read_run(folder).speedup:.2f}x" for folder in (first, second)]
    said = capsys.readouterr().out.splitlines()
    assert [line.split()[4:] for line in said[1:]] == [["3/3", speedup] for speedup in done]

    here = RunStatus(state="running", pid=os.getpid(), host=socket.gethostname())
    cut(first, 2, replace(here, prompts=read_status(first).prompts))
    cut(second, 1, RunStatus(state="failed", error="out of\x9b5m\u202e\r\nmemory", prompts=3))
    (second / "run.log").write_text("begun\n" + "".join(f"line {n}\n" for n in range(9)))
    (row,) = rows_of(survey("tiny", words[1:]))
    now, ended = row_progress(row)
    run = read_run(first)
    assert now.samples == 2 and now.of == 3 and run.paired()
    both = [sum(turn.arms[n].seconds.total for n in (VANILLA, run.arm)) for turn in run.turns]
    assert now.left_s == pytest.approx(sum(both) / 2)  # one prompt is left
    assert (ended.samples, ended.of, ended.left_s) == (1, 3, None)
    with pytest.raises(SystemExit):
        dispatch(["status", *words])
    said = capsys.readouterr().out.splitlines()
    assert said[1].startswith(f"running     tiny uniform mini-math  2/3  {now.speedup:.2f}x")
    assert "2 cells: 0 done, 1 failed, 1 running, 0 queued, 0 interrupted, 0 stale" in said[0]
    assert said[2].endswith(r": out of\x9b5m\u202e\r\nmemory")
    assert [line.strip() for line in said[3:8]] == [f"| line {n}" for n in range(4, 9)]
    with pytest.raises(SystemExit):
        dispatch(["status", *words, "--json"])
    records = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(r["name"], r["samples"], r["of"], r["state"]) for r in records] == [
        ("tiny uniform mini-math", 2, 3, "running"),
        ("tiny random mini-math", 1, 3, "failed"),
    ]
    assert records[1]["log"][-1] == "line 8" and not records[0]["log"]


def test_the_log_of_a_job_without_a_record_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["tiny", "method=uniform", *SMALL, f"results={tmp_path}"]
    submission = manifest.next_folder(tmp_path, "tiny", make=True)
    given = [*words, "hardware=slurm-local"]
    manifest.write_rows(submission, [Job(survey("tiny", words[1:])).record()], given)
    manifest.add_job(submission, "7", 0, 1)
    (submission / "7_0.log").write_text(
        "module: command not found\n\npython: no such file\x1b[2J\n"
    )
    fake_tool(tmp_path, "squeue", "", monkeypatch)
    told = list[list[str]]()
    for named in (words, [f"results={tmp_path}"]):
        with pytest.raises(SystemExit):
            dispatch(["status", *named])
        told.append([line.strip() for line in capsys.readouterr().out.splitlines()])
    said, alone = told
    assert alone == [said[0].replace("tiny", "tiny-1", 1), *said[1:]], "what was sent is known"
    assert said.count("| module: command not found") == 1, "cells of a job have one log"
    submit = shlex.join(["submit", *words, "hardware=slurm-local"])
    assert said[-1] == f"to run them: python -m skipbench {submit}"
    at = said.index("| module: command not found")
    assert "7_0 is over and left no record" in said[at - 1]
    assert said[at + 1] == r"| python: no such file\x1b[2J"


def test_progress_is_a_line() -> None:
    assert str(Progress(212, 480, 1.314, 6000)) == "212/480  1.31x  ~1 h 40 min"
    assert str(Progress()) == "" and str(Progress(3)) == "3"
