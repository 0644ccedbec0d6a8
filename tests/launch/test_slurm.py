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
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from scripts.fault_processes import Records, records

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
FAULTY = ["hardware=slurm-local", f"hardware.setup=[\"source '{ROOT}/tests/faults.sh'\"]"]
HALTED = {"timeout": 0, "kill": 1, "cancel": 2, "preempt": 3}
DISK, MEMORY = 4, 5
Environment = dict[str, str]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Environment]:
    """The environment of a fresh cluster, with 12 threads' worth of nothing else in it."""
    script, folder = str(ROOT / "scripts" / "slurm_local.sh"), str(tmp_path / "slurm")
    started, env = slurm({**os.environ}, script, "start", folder), os.environ.copy()
    conf = started.strip().removeprefix("export SLURM_CONF=")
    try:
        yield env | {"SLURM_CONF": conf, "PYTHONPATH": str(ROOT)}
    finally:
        slurm(env, script, "stop", folder)
        assert not Path(folder).exists()


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "skipbench", *words]


def ran(env: Environment, words: list[str], status: int = 0) -> str:
    """What a program says that ends with this exit status."""
    done = subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True)
    assert done.returncode == status, f"{words}: {done.stdout}{done.stderr}"
    return done.stdout


def skipbench(env: Environment, *words: str, status: int = 0) -> str:
    return ran(env, command(*words), status)


def slurm(env: Environment, *words: str) -> str:
    return ran(env, [*words])


def until(what: Callable[[], bool], said: str, seconds: float = 180) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"waited {seconds} s in vain until {said}"
        time.sleep(0.1)


def id_of(folder: Path) -> str:
    """ROW/ARM, as a manifest has it."""
    return "/".join(folder.parts[-2:])


def read_status(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return {"state": "missing", "error": None}
    return found


def lines_of(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def cells_of(submission: Path) -> list[str]:
    return [folder for line in lines_of(submission / "cells.jsonl") for folder in line["folders"]]


def idle(env: Environment, said: str, seconds: float = 300) -> None:
    until(lambda: not slurm(env, "squeue", "-h"), said, seconds)


def minutes_so_far(env: Environment, array: str) -> int:
    """Whole minutes that the cell which is to meet its time limit has run."""
    job = f"{array}_{HALTED['timeout']}"
    time_used = slurm(env, "squeue", "-h", "-r", "-o", "%M", "-j", job).strip()
    return int(time_used.split(":")[-2]) + 60 * (time_used.count(":") == 2)


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
    job = f"{array}_{HALTED['preempt']}"
    node = slurm(env, "squeue", "-h", "-r", "-o", "%N", "-j", job).strip()
    words = f"sbatch -p high -w {node} --exclusive -o /dev/null --wrap".split()
    slurm(env, *words, "sleep 1")


def undisturbed(env: Environment, results: Path) -> Records:
    """The records of a serial run of the sweep, which every other must equal."""
    skipbench(env, "table", *SWEEP, f"results={results}")
    found = records(results)
    counts = Counter(name for name, _ in found)
    assert len(counts) == 12 and {*counts.values()} == {LIMIT}
    return found


def test_a_disturbed_sweep_ends_as_an_undisturbed_one(cluster: Environment, tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    whole = undisturbed(cluster, tmp_path / "whole")
    env = plant(cluster, parts, tmp_path / "faults")
    words = [*SWEEP, f"results={parts}", *FAULTY]
    skipbench(env, "submit", *words)
    names = cells_of(parts / "submit" / "sweep-1")
    assert sorted(names) == sorted({name for name, _ in whole})
    array = lines_of(parts / "submit" / "sweep-1" / "jobs.jsonl")[-1]["job"]
    folder = disturb(env, array)
    assert {what: id_of(path) for what, path in folder.items()} == {
        what: names[task] for what, task in HALTED.items()
    }

    def interrupted(what: str, by: str) -> None:
        until(lambda: by in str(read_status(folder[what])["error"]), f"its {what} interrupts it")

    interrupted("timeout", "SIGUSR2")
    preempt(env, array)
    interrupted("preempt", "SIGTERM")  # by a job of the other partition
    idle(env, "all jobs are over")

    told = skipbench(env, "status", *words, status=1)
    counts = "8 done, 3 failed, 0 running, 0 queued, 1 interrupted, 0 stale, 0 missing"
    assert f"12 cells: {counts}" in told
    reasons = {line.split()[0]: line for line in told.splitlines()[1:]}
    assert "SIGTERM" in reasons["interrupted"] and "killed by SIGKILL" in told
    # Where memory ends while a library is loaded, the words differ, a reason stands there.
    assert "File too large" in told and told.count("\nfailed  ") == 3
    log = (parts / "submit" / "sweep-1" / f"{array}_{HALTED['timeout']}.log").read_text()
    assert "requeued for the 1. time" in log

    (tmp_path / "faults" / "over").touch()
    skipbench(env, "submit", *words)
    expected = {names[HALTED["kill"]], names[HALTED["cancel"]], names[DISK], names[MEMORY]}
    assert set(cells_of(parts / "submit" / "sweep-2")) == expected
    idle(env, "the second submission is over")
    assert "12 cells: 12 done" in skipbench(env, "status", *words)
    assert records(parts) == whole
    skipbench(env, "submit", *words)
    assert not (parts / "submit" / "sweep-3").exists(), "a finished sweep was submitted again"


def parent(pid: int) -> int:
    """The process that started another."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_a_lost_node_ran_goes_on_elsewhere(cluster: Environment, tmp_path: Path) -> None:
    env = plant(cluster, tmp_path, tmp_path / "faults")
    words = [*FOUR, f"results={tmp_path}", *FAULTY]
    skipbench(env, "submit", *words)
    array = lines_of(tmp_path / "submit" / "tiny-1" / "jobs.jsonl")[-1]["job"]
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
    # Slurm still holds their jobs, and will start them again: another submission would only be in
    # the way.
    assert f" {len(lost)} queued," in skipbench(env, "status", *words, status=1)
    for path in halted:
        folder = Path(path.read_text().strip())
        if folder not in lost:
            os.kill(read_status(folder)["pid"], signal.SIGCONT)
    idle(env, "the controller has missed the node, and its cells have run on the other")
    assert "Node failure" not in skipbench(env, "status", *words)
    assert not (tmp_path / "submit" / "tiny-2").exists()


def test_hydras_own_launcher_disturbed_ends_the_same(cluster: Environment, tmp_path: Path) -> None:
    """Its shell ends with the last job and names cells that failed; the same command goes on."""
    parts = tmp_path / "parts"
    whole = undisturbed(cluster, tmp_path / "whole")
    env = plant(cluster, parts, tmp_path / "faults")
    words = [*SWEEP[1:], f"results={parts}", *FAULTY]
    sweep = ["-m", "hydra/launcher=slurm", "experiment=sweep", *words]
    with (tmp_path / "shell.log").open("w") as log:
        shell = subprocess.Popen(command(*sweep), cwd=ROOT, env=env, stdout=log, stderr=log)
    until(lambda: slurm(env, "squeue", "-h") != "", "its array is submitted")
    array = slurm(env, "squeue", "-h", "-o", "%F").split()[0]
    disturb(env, array)
    preempt(env, array)
    idle(env, "all jobs are over")
    assert shell.wait(120) == 1 and "failed: " in (tmp_path / "shell.log").read_text()

    told = skipbench(env, "status", "sweep", *words, status=1)
    done = {path.parent: path.stat().st_mtime_ns for path in parts.glob("runs/*/*/metrics.json")}
    assert f"12 cells: {len(done)} done" in told and " 0 running, 0 queued," in told, told
    # the kill, the cancel, the disk and the memory leave their cells undone
    assert 6 <= len(done) <= 9
    kept = {path: (path / "status.json").stat().st_mtime_ns for path in done}

    (tmp_path / "faults" / "over").touch()
    skipbench(env, *sweep)
    assert "12 cells: 12 done" in skipbench(env, "status", "sweep", *words)
    assert records(parts) == whole
    assert {path: (path / "status.json").stat().st_mtime_ns for path in kept} == kept, (
        "a finished cell was run again"
    )


def test_cells_wait_for_the_search_that_they_share(cluster: Environment, tmp_path: Path) -> None:
    small = ["limit=1", "dataset.max_new_tokens=8", "search.prompts=1", "search.max_new_tokens=8"]
    words = ["swift-figure2b", *small, f"results={tmp_path}", "hardware=slurm-local"]
    assert skipbench(cluster, "submit", *words).count("submitted: job") == 2
    assert "afterany" in slurm(cluster, "squeue", "-h", "-o", "%E")
    idle(cluster, "both arrays are over")
    skipbench(cluster, "status", *words)
