"""What is not submitted: cells that may be queued already, and more hours than were allowed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Command

from skipbench.cli.main import dispatch
from skipbench.errors import SkipbenchError

SBATCH = """#!/bin/bash
exec 9>>{0}/lock; flock 9
n=$(( $(wc -l < {0}/jobs) + 101 ))
for i in $(seq 0 $(grep -oP -- '--array=0-\\K[0-9]+' "${{@: -1}}")); do
  echo "$n|$n|$i|PENDING" >> {0}/queue
done
echo $n >> {0}/jobs; echo $n
"""
# answers the first time when two have asked, or after 3 s
SQUEUE = """#!/bin/bash
[ -e {0}/silent ] && exit 1
[ -e {0}/over ] && exit 0
cat {0}/queue
touch {0}/asked.$$
for _ in $(seq 30); do [ $(ls {0}/asked.* | wc -l) -gt 1 ] && break; sleep 0.1; done
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a Slurm whose jobs never start: what a machine without one lacks."""
    (folder := tmp_path / "slurm").mkdir()
    for name in ("jobs", "queue"):
        (folder / name).touch()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (folder / name).write_text(text.format(folder))
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


def words(results: Path) -> list[str]:
    return ["tiny", "method=uniform", f"results={results}", "hardware=slurm-local"]


def sent(results: Path) -> list[str]:
    """The cells of all submissions."""
    lines = [p.read_text().splitlines() for p in results.glob("submit/*/cells.jsonl")]
    return [folder for own in lines for line in own for folder in json.loads(line)["folders"]]


def test_what_may_be_queued_is_not_submitted_again(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "asked.0").touch()
    (slurm / "silent").touch()
    dispatch(
        ["submit", *words(tmp_path), "dataset=mini-math"]
    )  # nothing was submitted that could be queued
    assert len(sent(tmp_path)) == 1
    for command in (words(tmp_path), [*words(tmp_path), "dataset=mini-math"]):
        with pytest.raises(SkipbenchError, match=r"squeue does not answer, and 1 of its cells"):
            dispatch(["submit", *command])
    with pytest.raises(SystemExit):
        dispatch(["status", *words(tmp_path)])
    assert "1 of them were submitted and may be queued" in capsys.readouterr().out
    assert len(sent(tmp_path)) == 1
    (slurm / "silent").unlink()
    dispatch(["submit", *words(tmp_path)])
    assert len(sent(tmp_path)) == len(set(sent(tmp_path))) == 4


def test_what_sbatch_refuses_is_sent_again(slurm: Path, tmp_path: Path) -> None:
    (slurm / "asked.0").touch()
    sbatch, command = slurm / "sbatch", ["submit", *words(tmp_path), "dataset=mini-math"]
    takes = sbatch.read_text()
    sbatch.write_text("#!/bin/sh\necho no such partition >&2; exit 1\n")
    with pytest.raises(SkipbenchError, match=r"sbatch refuses .* no such partition"):
        dispatch(command)
    sbatch.write_text(takes)
    dispatch(command)
    assert len((slurm / "jobs").read_text().split()) == 1


def test_more_prompts_wait_for_those_that_are_queued(
    slurm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (slurm / "asked.0").touch()
    dispatch(["submit", *words(tmp_path), "limit=9"])
    dispatch(["submit", *words(tmp_path), "limit=9"])
    assert len(sent(tmp_path)) == 4
    capsys.readouterr()
    with pytest.raises(SystemExit):
        dispatch(["status", f"results={tmp_path}"])
    assert "tiny-1: 4 cells: 0 done, 0 failed, 0 running, 4 queued" in capsys.readouterr().out
    dispatch(["submit", *words(tmp_path), "limit=12"])  # no arm is in two jobs
    assert len(sent(tmp_path)) == 4


@pytest.mark.slow
def test_hydras_launcher_submits_what_is_missing_and_waits(
    slurm: Path, tmp_path: Path, skipbench: Command
) -> None:
    small = ["method=uniform", "limit=1", "dataset.max_new_tokens=6", f"results={tmp_path}"]
    assert skipbench("dataset=mini-math", *small).returncode == 0
    (slurm / "over").touch()  # jobs leave the queue at once, and nothing has run them
    command = ["-m", "dataset=mini-math,mini-code", *small, "hydra/launcher=slurm"]
    done = skipbench(*command, "hardware=slurm-local")
    assert done.returncode == 1 and "submitted: job 101, 1 rows, 1 cells" in done.stdout
    assert "failed: dataset=mini-code: " in done.stderr
    (cell,) = sent(tmp_path)
    assert cell.startswith("tiny_mini-code_") and "/uniform_" in cell
    refused = skipbench(*command)
    assert refused.returncode == 2 and "needs the hardware= of a cluster" in refused.stderr
    (slurm / "silent").touch()
    silent = skipbench(*command, "hardware=slurm-local")
    assert silent.returncode == 2 and "squeue does not answer, and 1 of its cells" in silent.stderr
    (slurm / "silent").unlink()
    large = ["model=llama2-70b", "method=uniform", "dataset=specbench,cnndm", "limit=null"]
    where = ["hydra/launcher=slurm", "hardware=slurm-a100", "hardware.exclusive=true"]
    above = skipbench("-m", *large, *where, f"results={tmp_path}")
    assert above.returncode == 2 and "GPU-hours would be charged, above the 100" in above.stderr
    assert "then give hydra.launcher.confirmed=true" in above.stderr
    assert len(sent(tmp_path)) == 1


@pytest.mark.slow
def test_two_submissions_at_once_take_turns(slurm: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "skipbench", "submit", *words(tmp_path)]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    both = [
        subprocess.Popen(command, env=env, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    told = [one.communicate() for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    assert len(sent(tmp_path)) == len(set(sent(tmp_path))) == 4


@pytest.mark.slow
def test_more_hours_than_allowed_are_submitted_with_yes_alone(slurm: Path, tmp_path: Path) -> None:
    (slurm / "asked.0").touch()
    some = ["clasp-table1", "hardware=slurm-a100", "models=llama3-8b", f"results={tmp_path}"]
    whole = [*some, "hardware.exclusive=true"]  # 27 hours, charged as 213
    above = "above the 100 that need no confirmation"
    with pytest.raises(SkipbenchError, match=rf"GPU-hours would be charged, {above}"):
        dispatch(["submit", *whole])
    assert not sent(tmp_path) and not (slurm / "jobs").read_text()
    dispatch(["submit", *some, "limit=20", "--anyway"])
    assert len(sent(tmp_path)) == 8
    dispatch(["submit", *whole, f"results={tmp_path / 'whole'}", "--yes", "--anyway"])
    assert len(sent(tmp_path / "whole")) == 8
