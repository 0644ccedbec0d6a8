"""A sweep on a real Slurm: whatever befalls its jobs, at the end the records are those of an undisturbed run.

Its cluster is that of `scripts/slurm_local.sh`, which needs root and Debian's packages slurmctld, slurmd and munge.
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

import pytest
from conftest import ROOT

PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch")
MISSING = [p for p in PROGRAMS if shutil.which(p) is None]
pytestmark = [
    pytest.mark.slurm,
    pytest.mark.skipif(
        bool(MISSING), reason=f"no {', '.join(MISSING)}: apt-get install slurmctld slurmd slurm-client munge"
    ),
    pytest.mark.skipif(os.getuid() != 0, reason="a cluster of one's own needs root"),
]
LIMIT = 6
SWEEP = ["tiny", f"limit={LIMIT}", "dataset.max_new_tokens=24"]
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
        [sys.executable, "-m", "skipbench", *words], cwd=ROOT, env=env, capture_output=True, text=True
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
    """Of every run all that does not depend on the clock; samples by index."""
    found = {}
    for path in sorted(results.glob("runs/*/samples.jsonl")):
        samples = [json.loads(line) for line in path.read_text().splitlines()]
        for sample in samples:
            for arm in ("vanilla", "method"):
                del sample[arm]["seconds"]
        found[path.parent.name] = samples
    return found


def read_status(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "status.json").read_text())
    except FileNotFoundError:
        return {"state": "missing", "error": None}
    return found


def cells_of(submission: Path) -> list[str]:
    return [json.loads(line)["folder"] for line in (submission / "cells.jsonl").read_text().splitlines()]


def minutes_so_far(env: Environment, array: str) -> int:
    """Whole minutes that the cell which is to meet its time limit has run."""
    days_and_time = slurm(env, "squeue", "-h", "-r", "-o", "%M", "-j", f"{array}_{HALTED['timeout']}").strip()
    return int(days_and_time.split(":")[-2]) + 60 * (days_and_time.count(":") == 2)


def plant(faults: Path, results: Path, folders: list[str]) -> None:
    faults.mkdir()
    for task in HALTED.values():
        (faults / f"fault_{task}").write_text("halt")
        (faults / f"folder_{task}").write_text(str(results / "runs" / folders[task]))
    (faults / f"fault_{DISK}").write_text("disk")
    (faults / f"fault_{MEMORY}").write_text("memory")


def test_a_disturbed_sweep_ends_as_an_undisturbed_one(cluster: Environment, tmp_path: Path) -> None:
    env, faults, whole, parts = (
        cluster | {"FAULTS": str(tmp_path / "faults")},
        tmp_path / "faults",
        *folders_in(tmp_path),
    )
    serial = skipbench(env, "table", *SWEEP, f"results={whole}")
    assert serial.returncode == 0, serial.stdout + serial.stderr
    listed = skipbench(env, "submit", *SWEEP, f"results={tmp_path / 'listed'}", "hardware=slurm-local")
    assert listed.returncode == 0, listed.stderr
    slurm(env, "scancel", "--user=root")
    names = cells_of(tmp_path / "listed" / "submit" / "tiny-1")
    assert sorted(names) == sorted(records(whole)) and len(names) == 12
    until(lambda: not slurm(env, "squeue", "-h"), "the queue is empty")

    words = [
        *SWEEP,
        f"results={parts}",
        "hardware=slurm-local",
        f"hardware.setup=[\"source '{ROOT}/tests/faults.sh'\"]",
    ]
    plant(faults, parts, names)
    first = skipbench(env, "submit", *words)
    assert first.returncode == 0, first.stderr
    array = json.loads((parts / "submit" / "tiny-1" / "jobs.jsonl").read_text())["job"]
    folder = {what: parts / "runs" / names[task] for what, task in HALTED.items()}

    until(lambda: all((faults / f"halted_{t}").exists() for t in HALTED.values()), "four cells stand still")
    os.kill(read_status(folder["kill"])["pid"], signal.SIGKILL)
    slurm(env, "scancel", f"{array}_{HALTED['cancel']}")
    slurm(
        env, "scontrol", "update", f"jobid={array}_{HALTED['timeout']}", f"timelimit={minutes_so_far(env, array) + 2}"
    )
    until(lambda: "SIGUSR2" in str(read_status(folder["timeout"])["error"]), "the time limit interrupts its cell")
    node = slurm(env, "squeue", "-h", "-r", "-o", "%N", "-j", f"{array}_{HALTED['preempt']}").strip()
    slurm(env, "sbatch", "-p", "high", "-w", node, "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    until(lambda: "SIGTERM" in str(read_status(folder["preempt"])["error"]), "a job of the other partition preempts it")
    until(lambda: not slurm(env, "squeue", "-h"), "all jobs are over", 300)

    told = skipbench(env, "status", *words)
    assert told.returncode == 1
    assert "12 cells: 8 done, 3 failed, 0 running, 0 queued, 1 interrupted, 0 stale, 0 missing" in told.stdout
    reasons = {line.split()[0]: line for line in told.stdout.splitlines()[1:]}
    assert "SIGTERM" in reasons["interrupted"] and "killed by SIGKILL" in told.stdout
    # Where memory ends, an import or a tensor fails: the words differ, a reason stands there.
    assert "File too large" in told.stdout and told.stdout.count("\nfailed  ") == 3
    logs = {task: (parts / "submit" / "tiny-1" / f"{array}_{task}.log").read_text() for task in HALTED.values()}
    assert "requeued for the 1. time" in logs[HALTED["timeout"]]

    (faults / "over").touch()
    again = skipbench(env, "submit", *words)
    assert again.returncode == 0, again.stderr
    expected = {names[HALTED["kill"]], names[HALTED["cancel"]], names[DISK], names[MEMORY]}
    assert set(cells_of(parts / "submit" / "tiny-2")) == expected
    until(lambda: not slurm(env, "squeue", "-h"), "the second submission is over")
    told = skipbench(env, "status", *words)
    assert told.returncode == 0, told.stdout
    assert "12 cells: 12 done" in told.stdout
    assert records(parts) == records(whole)
    assert all([s["index"] for s in samples] == list(range(LIMIT)) for samples in records(parts).values())
    skipbench(env, "submit", *words)
    assert not (parts / "submit" / "tiny-3").exists(), "a finished sweep was submitted again"


def folders_in(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "whole", tmp_path / "parts"
