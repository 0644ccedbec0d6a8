"""A run that is killed at any moment and started again ends with the records of an unbroken one."""

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from skipbench.runs.record import MEASURED

pytestmark = pytest.mark.slow
COMMAND = [
    sys.executable, "-m", "skipbench", "method=self-sd", 'method.skip="attn:2,3,6,7;mlp:3,6,8"',
    "dataset=mini-math",
    "stop@method.stop=adaptive", "limit=20", "dataset.max_new_tokens=24", "engine.warmup=1",
]  # fmt: skip


def start(results: Path, *more: str) -> "subprocess.Popen[str]":
    command = [*COMMAND, f"results={results}", *more]
    # A shell's background jobs ignore SIGINT, and so would what they start.
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, preexec_fn=listen, **pipes)


def records(results: Path) -> list[dict[str, Any]]:
    (path,) = results.glob("runs/*/samples.jsonl")
    found = [json.loads(line) for line in path.read_text().splitlines()]
    for record in found:
        for arm in ("vanilla", "method"):
            for name in MEASURED:
                del record[arm][name]
        del record["order"]  # of the arms that lacked the prompt
        record["trace"].pop("setup_s", None)
    return found


def completions(results: Path) -> str:
    (path,) = results.glob("runs/*/completions.jsonl")
    return path.read_text()


def lines(results: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in results.glob("runs/*/samples.jsonl"))


def test_killed_runs_end_with_the_same_records(tmp_path: Path) -> None:
    whole = start(tmp_path / "whole")
    output = whole.communicate()[0]
    assert whole.returncode == 0, output
    rng = random.Random(5)
    parts, kills = tmp_path / "parts", 0
    # 0: before a first sample, while the model warms up
    for more in (0, *(rng.randint(1, 3) for _ in range(4))):
        process, goal = start(parts), lines(parts) + more
        while process.poll() is None and not (
            list(parts.glob("runs/*/status.json")) and lines(parts) >= goal
        ):
            time.sleep(0.002)
        time.sleep(rng.random() * 0.05 if more else 0)
        process.kill()
        process.communicate()
        assert goal <= lines(parts)
        kills += lines(parts) < 20
    assert kills >= 2, "the run was not killed while it ran"
    last = start(parts)
    output = last.communicate()[0]
    assert last.returncode == 0, output
    assert [r["index"] for r in records(parts)] == list(range(20))
    assert records(parts) == records(tmp_path / "whole")
    assert (
        completions(parts) == completions(tmp_path / "whole")
        and completions(parts).count("\n") == 20
    )
    thresholds = [r["carry"]["stop"]["threshold"] for r in records(parts)]
    assert len(set(thresholds)) == 20, (
        "no prompt moved the threshold, so nothing was there to restore"
    )
    again = start(parts)
    assert "samples, speedup so far" not in again.communicate()[0], "a finished run was run again"


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    process = start(tmp_path, "limit=300")  # far more than it gets done, on a busy machine too
    while process.poll() is None and lines(tmp_path) < 2:
        time.sleep(0.002)
    os.kill(process.pid, signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 130, output
    assert "same command goes on" in output
    (status,) = tmp_path.glob("runs/*/status.json")
    said = json.loads(status.read_text())
    assert said["state"] == "interrupted" and "interrupted" in said["error"]
    assert len(records(tmp_path)) >= 2
