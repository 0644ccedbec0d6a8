"""The queue of cells on one machine, the process that watches over a cell, and `status`."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from builders import fake_tool, survey
from conftest import ROOT, Command, rest_slow
from msgspec.structs import replace

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.launch import manifest
from skipbench.launch.local import cells_at_once, gpu_bytes, gpus, run_cells, watch
from skipbench.launch.status import row_progress
from skipbench.runs.cell import rows_of
from skipbench.runs.record import VANILLA
from skipbench.runs.run import read_run
from skipbench.runs.state import Status as RunStatus
from skipbench.runs.state import read_status, write_status


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


@pytest.mark.parametrize(
    ("needs", "most", "together"), [({}, 2, 2), ({1: 2, 3: 3, 4: 4}, 4, 4), ({1: 2}, 1, 1)]
)
def test_a_cell_has_the_gpus_that_it_needs_to_itself(
    needs: dict[int, int], most: int, together: int, tmp_path: Path
) -> None:
    note = (
        "import os,time; g=os.environ['CUDA_VISIBLE_DEVICES']; print(g, time.time()); "
        "time.sleep(.2); print(time.time())"
    )
    ended: list[tuple[int, int]] = []
    found = ["0", "1", "2", "7"] if needs else ["2", "5"]
    commands = {n: python(note) for n in range(5)} | {5: python("raise SystemExit(3)")}
    run_cells(commands, tmp_path, found, most, lambda *one: ended.append(one), needs)
    assert sorted(ended) == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0), (5, 3)]
    spans = []
    for number in range(5):
        shown, began, over = (tmp_path / f"{number}.log").read_text().split()
        own = set(shown.split(","))
        assert len(own) == needs.get(number, 1) and own <= {*found}
        spans.append((float(began), float(over), own))
    for began, _, _ in spans:
        now = [own for b, over, own in spans if b <= began < over]
        assert len(now) <= together
        assert sum(map(len, now)) == len(set().union(*now)), "two shared a GPU"


def test_workers_and_gpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cells_at_once(None, []) == 1 and cells_at_once(3, []) == 3
    assert cells_at_once(1, ["0", "1"]) == 1 and cells_at_once(None, ["0", "1"]) == 2
    for workers, found in ((0, []), (3, ["0", "1"]), (-1, ["0"])):
        with pytest.raises(SkipbenchError, match=rf"hardware\.workers={workers}; wanted 1"):
            cells_at_once(workers, found)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, GPU-abc")
    assert gpus() == ["3", "GPU-abc"]
    for none in ("", "-1", "NoDevFiles", "-1,0"):  # CUDA sees none behind what is no GPU
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", none)
        assert gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    listed = "echo 'GPU 0: NVIDIA A100 (UUID: GPU-1)'; echo '  MIG 1g.10gb'; echo 'GPU 1: A100'"
    tool = fake_tool(tmp_path, "nvidia-smi", listed, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ["0", "1"]
    assert gpu_bytes(["0", "1"]) is None, "it did not say"
    memory = ["0, GPU-1f, 81920", "1, GPU-2e, 24576", "2, GPU-3d, [N/A]"]
    tool.write_text("#!/bin/sh\n" + "".join(f"echo '{line}'\n" for line in memory))
    assert gpu_bytes(["0"]) == 79 * 2**30 and gpu_bytes(["0", "GPU-2e"]) == 23 * 2**30
    assert gpu_bytes(["2"]) is gpu_bytes(["MIG-1"]) is gpu_bytes([]) is None
    tool.unlink()
    assert gpus() == []


def test_what_breaks_the_queue_off_ends_its_cells_and_starts_no_other(tmp_path: Path) -> None:
    started = tmp_path / "started"
    code = f"import time; open({str(started)!r}, 'a').write('x'); time.sleep(60)"

    def ended(number: int, status: int) -> None:
        while not started.exists() or len(started.read_text()) < 2:
            time.sleep(0.01)
        raise KeyboardInterrupt

    began = time.monotonic()
    commands = {0: python("pass")} | {n: python(code) for n in range(1, 5)}
    with pytest.raises(KeyboardInterrupt):
        run_cells(commands, tmp_path, [], 2, ended)
    assert time.monotonic() - began < 50 and len(started.read_text()) == 2
    with pytest.raises(SkipbenchError, match="cannot start a cell"):
        run_cells({0: ["/no/such/program"]}, tmp_path, [], 1, ended)
    assert threading.active_count() < 20


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signals_are_handed_on_even_to_one_that_stands_still(number: int, tmp_path: Path) -> None:
    """The status of a child is handed back, and handlers are as they were."""
    ready, handlers = tmp_path / "ready", [signal.SIGTERM, signal.SIGUSR2, signal.SIGINT]
    before = [*map(signal.getsignal, handlers)]
    code = (
        f"import os, signal, sys, time; signal.signal({int(number)}, lambda *_: sys.exit(5)); "
        f"open({str(ready)!r}, 'w').close(); os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)"
    )

    def send() -> None:
        while not ready.exists():
            time.sleep(0.01)
        os.kill(os.getpid(), number)

    sender = threading.Thread(target=send)
    sender.start()
    assert watch(python(code), os.environ) == 5
    sender.join()
    assert watch(python("import os; os.kill(os.getpid(), 9)"), os.environ) == -9
    assert watch(python("pass"), os.environ) == 0 and before == [*map(signal.getsignal, handlers)]


@pytest.mark.slow
def test_submit_runs_cells_here_and_status_agrees(
    skipbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the cells, which are processes
    words = ["tiny", "dataset=mini-math", "limit=2", "dataset.max_new_tokens=8"]
    words += ["method=uniform,random", f"results={tmp_path}", "hardware=local"]
    words.append("hardware.workers=2")
    shown = skipbench("submit", *words, "--print")
    assert shown.stdout.splitlines() == ["tiny uniform,random mini-math"]
    assert not (tmp_path / "submit").exists()
    first = skipbench("submit", *words)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "1 row, 2 at a time" in first.stdout and "1/1 tiny uniform,random" in first.stdout
    done = skipbench("status", *words)
    assert "2 cells: 2 done" in done.stdout and done.returncode == 0
    records = [json.loads(one.read_text()) for one in tmp_path.glob("runs/*/*/provenance.json")]
    assert [record["argv"][1:] for record in records] == [["submit", *words]] * 2
    again = skipbench("submit", *words)
    assert "2 done" in again.stdout and not (tmp_path / "submit" / "tiny-2").exists()


def planned(folder: Path) -> Path:
    """A manifest of one cell."""
    words = ["dataset=mini-math", "method=uniform", "limit=50"]
    config = compose([*words, f"results={folder / 'results'}"])
    return manifest.write_rows(folder, [{"configs": [config.to_dict()]}])


@pytest.mark.slow
def test_a_cell_that_the_kernel_kills_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "skipbench", "runrow", str(planned(tmp_path)), "0"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    cell = subprocess.Popen(command, env=environment, text=True, stderr=subprocess.PIPE)
    while not any(path.read_text() for path in tmp_path.glob("results/runs/*/turns.jsonl")):
        assert cell.poll() is None, cell.communicate()
        time.sleep(0.01)
    (status,) = tmp_path.glob("results/runs/*/*/status.json")
    pid = json.loads(status.read_text())["pid"]
    assert pid != cell.pid, "nobody watches"
    os.kill(pid, signal.SIGKILL)
    said = cell.communicate()[1]
    assert cell.returncode == 128 + signal.SIGKILL
    told = json.loads(status.read_text())
    assert told["state"] == "failed" and told["error"] in said
    assert "killed by SIGKILL" in told["error"] and "hardware.memory=" in told["error"]


def test_a_cell_that_dies_before_it_can_speak_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "first").mkdir()
    (tmp_path / "first" / "torch.py").write_text("import os\nos._exit(7)\n")  # at its import
    done = subprocess.run(
        [sys.executable, "-m", "skipbench", "runrow", str(planned(tmp_path)), "0"],
        env=os.environ | {"PYTHONPATH": f"{tmp_path / 'first'}:{ROOT}"},
        capture_output=True,
    )
    assert done.returncode > 0, done.stderr
    (status,) = tmp_path.glob("results/runs/*/*/status.json")
    record = json.loads(status.read_text())
    assert record["state"] == "failed"
    assert record["error"].startswith("ended with exit status 7")


SMALL = ["dataset=mini-math", "limit=3", "dataset.max_new_tokens=6", "engine.warmup=0"]


@pytest.mark.parametrize("name", rest_slow(["swift-table2", "swift-table8"], "swift-table8".__eq__))
def test_every_cell_has_a_name_of_its_own(name: str) -> None:
    found = [cell.name for cell in survey(name, ["scale=paper"])]
    assert len({*found}) == len(found) > 4


def cut(folder: Path, turns: int, status: RunStatus) -> None:
    """Makes a done run one that took part in fewer turns, and ended or runs as `status` says."""
    (folder / "metrics.json").unlink()
    path = folder.parent / "turns.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        if line["index"] >= turns:
            del line["arms"][folder.name]
            line["order"].remove(folder.name)
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
