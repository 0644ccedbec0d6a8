"""The queue of cells on one machine, and the process that watches over a cell."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from builders import fake_tool
from conftest import ROOT, Command

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.launch import manifest
from skipbench.launch.local import cells_at_once, gpu_bytes, gpus, run_cells, watch


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
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert gpus() == []
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    listed = "echo 'GPU 0: NVIDIA A100 (UUID: GPU-1)'; echo '  MIG 1g.10gb'; echo 'GPU 1: A100'"
    tool = fake_tool(tmp_path, "nvidia-smi", listed, monkeypatch)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus() == ["0", "1"]
    assert gpu_bytes(["0", "1"]) is None, "it did not say"
    tool.write_text(
        "#!/bin/sh\necho '0, GPU-1f, 81920'\necho '1, GPU-2e, 24576'\necho '2, GPU-3d, [N/A]'\n"
    )
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
    with pytest.raises(KeyboardInterrupt):
        run_cells(
            {0: python("pass")} | {n: python(code) for n in range(1, 5)}, tmp_path, [], 2, ended
        )
    assert time.monotonic() - began < 50 and len(started.read_text()) == 2
    with pytest.raises(SkipbenchError, match="cannot start a cell"):
        run_cells({0: ["/no/such/program"]}, tmp_path, [], 1, ended)
    assert threading.active_count() < 20


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.abort()", -6),
    ],
)
def test_watching_tells_how_a_child_ended(code: str, wanted: int) -> None:
    before = [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)]
    assert watch(python(code), os.environ) == wanted
    assert before == [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_signals_are_handed_on_even_to_one_that_stands_still(number: int, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
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


def run(*words: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "skipbench", *words]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


WORDS = ["tiny", "dataset=mini-math", "limit=2", "dataset.max_new_tokens=8"]


@pytest.mark.slow
def test_submit_runs_cells_here_and_status_agrees(
    skipbench: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the cells, which are processes
    words = [
        *WORDS,
        "method=uniform,random",
        f"results={tmp_path}",
        "hardware=local",
        "hardware.workers=2",
    ]
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
    config = compose(
        ["dataset=mini-math", "method=uniform", "limit=50", f"results={folder / 'results'}"]
    )
    return manifest.write_rows(folder, [{"configs": [config.to_dict()]}])


def begun(folder: Path) -> "tuple[subprocess.Popen[str], Path]":
    """A cell that has its first turn, and the folder of its run."""
    cell = run("runrow", str(planned(folder)), "0")
    while not any(path.read_text() for path in folder.glob("results/runs/*/turns.jsonl")):
        assert cell.poll() is None, cell.communicate()
        time.sleep(0.01)
    return cell, next(folder.glob("results/runs/*/*/status.json")).parent


@pytest.mark.slow
def test_a_signal_too_many_changes_no_record(tmp_path: Path) -> None:
    """As Slurm sends them: one ahead of the time limit, others while the cell is on its way out."""
    cell, folder = begun(tmp_path)
    own = json.loads((folder / "status.json").read_text())["pid"]
    cell.send_signal(signal.SIGUSR2)
    while cell.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(own, signal.SIGTERM)
        time.sleep(0.005)
    assert cell.returncode in (128 + signal.SIGUSR2, 128 + signal.SIGTERM), cell.communicate()
    told = json.loads((folder / "status.json").read_text())
    assert told["state"] == "interrupted" and "failed" not in cell.communicate()[1]


@pytest.mark.slow
def test_a_cell_that_the_kernel_kills_is_a_failure_with_its_reason(tmp_path: Path) -> None:
    cell, folder = begun(tmp_path)
    status = folder / "status.json"
    pid = json.loads(status.read_text())["pid"]
    assert pid != cell.pid, "nobody watches"
    os.kill(pid, signal.SIGKILL)
    said = cell.communicate()[1]
    assert cell.returncode == 128 + signal.SIGKILL
    told = json.loads(status.read_text())
    assert told["state"] == "failed" and told["error"] in said
    assert told["error"].startswith(
        "killed by SIGKILL; where nobody sent it, it was the kernel, for memory"
    )
    assert "hardware.memory=" in told["error"]


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
