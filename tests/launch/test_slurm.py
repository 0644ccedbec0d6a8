"""A sweep on a real Slurm: whatever befalls its jobs, at the end the records are those of an
undisturbed run.

Its cluster is that of `scripts/slurm_local.sh`, which needs root and Debian's packages slurmctld,
slurmd and munge.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import ROOT

from skipbench.runs.reading import run_folders
from skipbench.runs.record import MEASURED, VANILLA
from skipbench.runs.store import read_turns

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
MISSING = [p for p in PROGRAMS if shutil.which(p) is None]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(MISSING),
        reason=f"no {', '.join(MISSING)}: apt-get install slurmctld slurmd slurm-client munge",
    ),
    pytest.mark.skipif(os.getuid() != 0, reason="a cluster of one's own needs root"),
]
LIMIT = 24  # enough that a cell is not over before it is made to stand still
FOUR = ["tiny", "method=uniform", f"limit={LIMIT}", "dataset.max_new_tokens=24"]
SWEEP = ["sweep", "--config-dir", str(Path(__file__).parent / "conf"), *FOUR[2:]]
"""12 rows of one cell each."""
HALTED = {"timeout": 0, "kill": 1, "cancel": 2, "preempt": 3}
DISK, MEMORY = 4, 5
Environment = dict[str, str]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Environment]:
    """The environment of a fresh cluster, with 12 threads' worth of nothing else in it."""
    script, folder = str(ROOT / "scripts" / "slurm_local.sh"), str(tmp_path / "slurm")
    started = subprocess.run([script, "start", folder], capture_output=True, text=True)
    assert started.returncode == 0, started.stderr
    conf = started.stdout.strip().removeprefix("export SLURM_CONF=")
    try:
        yield os.environ | {"SLURM_CONF": conf, "PYTHONPATH": str(ROOT)}
    finally:
        stopped = subprocess.run([script, "stop", folder], capture_output=True, text=True)
        assert stopped.returncode == 0, stopped.stderr
        assert not Path(folder).exists()


def skipbench(env: Environment, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "skipbench", *words],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )


def slurm(env: Environment, *words: str) -> str:
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout


def until(what: Callable[[], bool], said: str, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"waited {seconds} s in vain until {said}"
        time.sleep(0.1)


def records(results: Path) -> dict[str, list[dict[str, Any]]]:
    """Of every run what depends neither on the clock nor on other arms; turns by index."""
    found = {}
    for folder in run_folders(results):
        turns = [msgspec.to_builtins(turn) for turn in read_turns(folder)]
        for turn in turns:
            del turn["order"]
            turn["arms"] = [turn["arms"][name] for name in (VANILLA, folder.name)]
            for arm in turn["arms"]:
                for name in MEASURED:
                    del arm[name]
        found[folder.name] = turns
    return found


def read_status(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return {"state": "missing", "error": None}
    return found


def cells_of(submission: Path) -> list[str]:
    lines = (submission / "cells.jsonl").read_text().splitlines()
    return [folder for line in lines for folder in json.loads(line)["folders"]]


def idle(env: Environment, said: str, seconds: float = 300) -> None:
    until(lambda: not slurm(env, "squeue", "-h"), said, seconds)


def minutes_so_far(env: Environment, array: str) -> int:
    """Whole minutes that the cell which is to meet its time limit has run."""
    days_and_time = slurm(
        env, "squeue", "-h", "-r", "-o", "%M", "-j", f"{array}_{HALTED['timeout']}"
    ).strip()
    return int(days_and_time.split(":")[-2]) + 60 * (days_and_time.count(":") == 2)


def plant(env: Environment, results: Path, faults: Path) -> Environment:
    """Writes down which tasks meet which fault; `disturb` goes on where cells are to stand still
    first.
    """
    faults.mkdir()
    for task in HALTED.values():
        (faults / f"fault_{task}").write_text("halt")
    (faults / f"fault_{DISK}").write_text("disk")
    (faults / f"fault_{MEMORY}").write_text("memory")
    return env | {"FAULTS": str(faults), "RESULTS": str(results)}


def disturb(env: Environment, array: str) -> dict[str, Path]:
    """Once they stand still, kills one cell, cancels one, shortens one's time, and has one
    preempted; their folders.
    """
    halted = {what: Path(env["FAULTS"]) / f"halted_{task}" for what, task in HALTED.items()}
    until(lambda: all(path.exists() for path in halted.values()), "four cells stand still")
    folder = {what: Path(path.read_text().strip()) for what, path in halted.items()}
    os.kill(read_status(folder["kill"])["pid"], signal.SIGKILL)
    slurm(env, "scancel", f"{array}_{HALTED['cancel']}")
    limit = f"timelimit={minutes_so_far(env, array) + 2}"
    slurm(env, "scontrol", "update", f"jobid={array}_{HALTED['timeout']}", limit)
    return folder


def preempt(env: Environment, array: str) -> None:
    node = slurm(
        env, "squeue", "-h", "-r", "-o", "%N", "-j", f"{array}_{HALTED['preempt']}"
    ).strip()
    slurm(
        env,
        "sbatch",
        "-p",
        "high",
        "-w",
        node,
        "--exclusive",
        "-o",
        "/dev/null",
        "--wrap",
        "sleep 1",
    )


def undisturbed(env: Environment, results: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of a serial run of the sweep, which every other must equal."""
    serial = skipbench(env, "table", *SWEEP, f"results={results}")
    assert serial.returncode == 0, serial.stdout + serial.stderr
    found = records(results)
    assert len(found) == 12 and all(len(samples) == LIMIT for samples in found.values())
    return found


def test_a_disturbed_sweep_ends_as_an_undisturbed_one(cluster: Environment, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    whole = undisturbed(cluster, tmp_path / "whole")
    env = plant(cluster, parts, tmp_path / "faults")
    setup = f"hardware.setup=[\"source '{ROOT}/tests/faults.sh'\"]"
    words = [*SWEEP, f"results={parts}", "hardware=slurm-local", setup]
    first = skipbench(env, "submit", *words)
    assert first.returncode == 0, first.stderr
    names = cells_of(parts / "submit" / "sweep-1")
    assert sorted(names) == sorted(whole)
    *_, line = (parts / "submit" / "sweep-1" / "jobs.jsonl").read_text().splitlines()
    array = json.loads(line)["job"]
    folder = disturb(env, array)
    assert {what: path.name for what, path in folder.items()} == {
        what: names[task] for what, task in HALTED.items()
    }
    until(
        lambda: "SIGUSR2" in str(read_status(folder["timeout"])["error"]),
        "the time limit interrupts its cell",
    )
    preempt(env, array)
    until(
        lambda: "SIGTERM" in str(read_status(folder["preempt"])["error"]),
        "a job of the other partition preempts it",
    )
    idle(env, "all jobs are over")

    told = skipbench(env, "status", *words)
    assert told.returncode == 1
    assert (
        "12 cells: 8 done, 3 failed, 0 running, 0 queued, 1 interrupted, 0 stale, 0 missing"
        in told.stdout
    )
    reasons = {line.split()[0]: line for line in told.stdout.splitlines()[1:]}
    assert "SIGTERM" in reasons["interrupted"] and "killed by SIGKILL" in told.stdout
    # Where memory ends while a library is loaded, the words differ, a reason stands there.
    assert "File too large" in told.stdout and told.stdout.count("\nfailed  ") == 3
    log = (parts / "submit" / "sweep-1" / f"{array}_{HALTED['timeout']}.log").read_text()
    assert "requeued for the 1. time" in log

    (tmp_path / "faults" / "over").touch()
    again = skipbench(env, "submit", *words)
    assert again.returncode == 0, again.stderr
    expected = {names[HALTED["kill"]], names[HALTED["cancel"]], names[DISK], names[MEMORY]}
    assert set(cells_of(parts / "submit" / "sweep-2")) == expected
    idle(env, "the second submission is over")
    told = skipbench(env, "status", *words)
    assert told.returncode == 0, told.stdout
    assert "12 cells: 12 done" in told.stdout
    assert records(parts) == whole
    skipbench(env, "submit", *words)
    assert not (parts / "submit" / "sweep-3").exists(), "a finished sweep was submitted again"


def parent(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_a_lost_node_ran_goes_on_elsewhere(cluster: Environment, tmp_path: Path) -> None:
    env = plant(cluster, tmp_path, tmp_path / "faults")
    setup = f"hardware.setup=[\"source '{ROOT}/tests/faults.sh'\"]"
    words = [*FOUR, f"results={tmp_path}", "hardware=slurm-local", setup]
    first = skipbench(env, "submit", *words)
    assert first.returncode == 0, first.stderr
    *_, line = (tmp_path / "submit" / "tiny-1" / "jobs.jsonl").read_text().splitlines()
    array = json.loads(line)["job"]
    halted = [tmp_path / "faults" / f"halted_{task}" for task in HALTED.values()]
    until(lambda: all(path.exists() for path in halted), "four cells stand still")
    tasks = slurm(env, "squeue", "-h", "-r", "-w", "node2", "-o", "%K", "-j", array).split()
    lost = [Path((tmp_path / "faults" / f"halted_{task}").read_text().strip()) for task in tasks]
    assert lost, "nothing ran on that node"
    os.kill(int((Path(env["SLURM_CONF"]).parent / "slurmd-node2.pid").read_text()), signal.SIGKILL)
    for folder in lost:
        cell = read_status(folder)["pid"]
        watcher = parent(cell)
        # the node's step first, so that nobody tells the controller
        for pid in (parent(watcher), watcher, cell):
            os.kill(pid, signal.SIGKILL)
    told = skipbench(env, "status", *words)
    # Slurm still holds their jobs, and will start them again: another submission would only be in
    # the way.
    assert told.returncode == 1 and f" {len(lost)} queued," in told.stdout, told.stdout
    for path in halted:
        folder = Path(path.read_text().strip())
        if folder not in lost:
            os.kill(read_status(folder)["pid"], signal.SIGCONT)
    idle(env, "the controller has missed the node, and its cells have run on the other")
    told = skipbench(env, "status", *words)
    assert told.returncode == 0, told.stdout
    assert "Node failure" not in told.stdout and not (tmp_path / "submit" / "tiny-2").exists()


def test_hydras_own_launcher_disturbed_ends_the_same(cluster: Environment, tmp_path: Path) -> None:
    """Its shell ends with the last job and names cells that failed; the same command goes on."""
    parts = tmp_path / "parts"
    whole = undisturbed(cluster, tmp_path / "whole")
    env = plant(cluster, parts, tmp_path / "faults")
    setup = f"hardware.setup=[\"source '{ROOT}/tests/faults.sh'\"]"
    words = ["experiment=sweep", *SWEEP[1:], f"results={parts}", "hardware=slurm-local", setup]
    command = [sys.executable, "-m", "skipbench", "-m", "hydra/launcher=slurm", *words]
    with (tmp_path / "shell.log").open("w") as log:
        shell = subprocess.Popen(command, cwd=ROOT, env=env, stdout=log, stderr=log)
    until(lambda: slurm(env, "squeue", "-h") != "", "its array is submitted")
    array = slurm(env, "squeue", "-h", "-o", "%F").split()[0]
    disturb(env, array)
    preempt(env, array)
    idle(env, "all jobs are over")
    assert shell.wait(120) == 1 and "failed: " in (tmp_path / "shell.log").read_text()

    told = skipbench(env, "status", "sweep", *words[1:])
    assert told.returncode == 1
    done = {path.parent: path.stat().st_mtime_ns for path in parts.glob("runs/*/*/metrics.json")}
    assert (
        f"12 cells: {len(done)} done" in told.stdout and " 0 running, 0 queued," in told.stdout
    ), told.stdout
    assert 6 <= len(done) <= 9, (
        "the kill, the cancel, the disk and the memory leave their cells undone"
    )
    kept = {path: (path / "status.json").stat().st_mtime_ns for path in done}

    (tmp_path / "faults" / "over").touch()
    again = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert again.returncode == 0, again.stdout + again.stderr
    told = skipbench(env, "status", "sweep", *words[1:])
    assert told.returncode == 0 and "12 cells: 12 done" in told.stdout, told.stdout
    assert records(parts) == whole
    assert {path: (path / "status.json").stat().st_mtime_ns for path in kept} == kept, (
        "a finished cell was run again"
    )


def test_cells_wait_for_the_search_that_they_share(cluster: Environment, tmp_path: Path) -> None:
    small = ["limit=1", "dataset.max_new_tokens=8", "search.prompts=1", "search.max_new_tokens=8"]
    words = ["swift-figure2b", *small, f"results={tmp_path}", "hardware=slurm-local"]
    first = skipbench(cluster, "submit", *words)
    assert first.returncode == 0, first.stdout + first.stderr
    assert first.stdout.count("submitted: job") == 2
    assert "afterany" in slurm(cluster, "squeue", "-h", "-o", "%E")
    idle(cluster, "both arrays are over")
    told = skipbench(cluster, "status", *words)
    assert told.returncode == 0, told.stdout
