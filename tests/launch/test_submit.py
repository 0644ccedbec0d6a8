"""Without a cluster: texts of scripts, states of runs, signals, and what is submitted once."""

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from builders import fake_tool, survey
from conftest import ROOT, Command
from msgspec.structs import replace

from skipbench.bench.memory import out_of_memory
from skipbench.cli.main import dispatch
from skipbench.config.catalog import known_models
from skipbench.config.compose import compose
from skipbench.config.hardware import Slurm
from skipbench.errors import SkipbenchError
from skipbench.experiments.set_search import search_trace
from skipbench.launch import manifest
from skipbench.launch.jobs import Job, schedule_stages
from skipbench.launch.slurm import jobs, requeue_self, sbatch, script
from skipbench.launch.status import key_of
from skipbench.runs.cell import Cell
from skipbench.runs.lock import held
from skipbench.runs.state import Interrupted, defer_signals, handle_signals, run_state
from skipbench.runs.store import record_failure


def hardware(name: str = "slurm-a100", **more: Any) -> Slurm:
    found = compose([f"hardware={name}"]).hardware
    assert isinstance(found, Slurm)
    return replace(found, **more)


def options(made: str) -> dict[str, str]:
    """What sbatch reads: one word a line, quotes as in a shell."""
    given = re.findall(r"^#SBATCH (.*)$", made, re.M)
    words = [shlex.split(line)[0].partition("=") for line in given]
    return {name: value for name, _, value in words}


def test_the_script_asks_for_what_the_hardware_says(tmp_path: Path) -> None:
    """And the program gets odd names of folders whole."""
    (show := tmp_path / "show").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    show.chmod(0o755)
    folder = '/r s/50% "x" $HOME'

    def text(**more: Any) -> str:
        part, cells = range(1001, 1004), Path(folder) / "cells.jsonl"
        return script("skipbench-tiny", cells, part, hardware(**more), str(show), Path("/w"))

    more = {"partition": "gpu", "account": "lab", "constraint": "a100&nvlink", "parallel": 4}
    more |= {"exclusive": True, "requeues": 2, "setup": ["module load cuda"]}
    made = text(**more, options=["--nice=10"])
    wanted = {"array": "0-2%4", "gres": "gpu:a100:1", "cpus-per-task": "8", "mem": "120G"}
    wanted |= {"time": "12:00:00", "signal": "B:USR2@300", "nice": "10", "partition": "gpu"}
    wanted |= {"account": "lab", "constraint": "a100&nvlink", "exclusive": "", "requeue": ""}
    wanted |= {"output": folder.replace("%", "%%") + "/%A_%a.log"}
    assert options(made).items() >= {f"--{name}": value for name, value in wanted.items()}.items()
    shell = made.splitlines()
    assert "export HF_HUB_OFFLINE=1" in shell and "export SKIPBENCH_REQUEUES=2" in shell
    assert shell.index("module load cuda") == len(shell) - 3 and shell[-1].startswith("exec ")
    task = os.environ | {"SLURM_ARRAY_TASK_ID": "5"}
    ran = subprocess.run(["bash", "-c", shell[-1]], env=task, capture_output=True, text=True)
    assert ran.stdout.splitlines() == ["-m", "skipbench", "runrow", f"{folder}/cells.jsonl", "1006"]
    asked = options(text(name="slurm-local", requeues=0))
    assert asked.keys().isdisjoint({"--partition", "--mem", "--gres", "--exclusive", "--requeue"})
    with pytest.raises(SkipbenchError, match="line break"):
        text(partition="a\n#SBATCH --uid=0")
    with pytest.raises(SkipbenchError, match=r"hardware\.gpus=-1; wanted 0 or more"):
        compose(["hardware=slurm-a100", "hardware.gpus=-1"])


def test_the_state_of_a_run(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    ended = subprocess.Popen(["true"])  # and nobody asks how
    while Path(f"/proc/{ended.pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    here, status = {"host": socket.gethostname()}, tmp_path / "status.json"
    running = {"state": "running", "error": None, "pid": 1, "host": "elsewhere", "slurm": None}

    def state(jobs: dict[str, str] | None = None, age: float = 0, **value: Any) -> str:
        status.write_text(json.dumps(running | value))
        os.utime(status, (time.time() - age,) * 2)
        return run_state(tmp_path, jobs).state

    assert run_state(tmp_path / "none", None).state == "missing"
    ends = ["done", "failed", "interrupted"]
    assert [state(state=s) for s in ends] == ends
    assert state(**here, pid=os.getpid()) == "running"
    assert state(**here, pid=gone.pid) == state(**here, pid=ended.pid) == "stale"
    ended.wait()
    assert state(**here, pid=1, age=1900) == "stale"
    assert state(**here, pid=os.getpid(), age=90_000_000) == "stale"
    assert state(age=1700) == "running" and state(age=1900) == "stale"
    assert state(slurm="7", jobs={"7": "RUNNING"}) == "running"
    assert state(slurm="7", jobs={"8": "RUNNING"}) == "stale"
    assert state(slurm="7", jobs={"7": "PENDING"}) == "queued"
    assert state(slurm="7", jobs=None) == "running", "Slurm's silence says nothing of a job"
    status.write_text('{"state": "\\u001b[2J"}')
    life = run_state(tmp_path, None)
    assert life.state == "failed" and str(status) in str(life.reason)


def test_a_failure_is_recorded_but_never_over_another_process(tmp_path: Path) -> None:
    record_failure(tmp_path / "run", "no memory")
    assert run_state(tmp_path / "run", None).reason == "no memory"
    with held(tmp_path / "run"):
        record_failure(tmp_path / "run", "the second one")
    assert run_state(tmp_path / "run", None).reason == "no memory"


def test_what_became_of_jobs_without_a_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["dataset=mini-math,mini-code", "method=uniform,random", f"results={tmp_path}"]
    cells = survey("tiny", words)
    submission = manifest.next_folder(tmp_path, "tiny", make=True)
    manifest.write_rows(submission, [Job([found]).record() for found in cells])
    manifest.add_job(submission, "7", 0, 3)
    for task in (0, 1):
        (submission / f"7_{task}.log").write_text("python: command not found\n")

    def states() -> list[str]:
        return [found.state.state for found in survey("tiny", words)]

    for index in (4, -1):
        with pytest.raises(SkipbenchError, match="4 rows"):
            manifest.read_row(submission / "cells.jsonl", index)
    squeue = fake_tool(tmp_path, "squeue", "echo '8|7|0|RUNNING'", monkeypatch)
    assert states() == ["running", "failed", "missing", "missing"], (
        "a cancelled job never began, the last was not sent"
    )
    reason = survey("tiny", words)[1].state.reason
    assert reason == f"job 7_1 is over and left no record; see {submission / '7_1.log'}"
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert states() == ["missing"] * 4, "Slurm's silence says nothing of a job"


def test_words_of_slurm_stand_among_those_of_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one task of an array, whose own number may be the array's, requeues itself alone."""
    tool = fake_tool(tmp_path, "sbatch", "echo '== Welcome: 99 =='; echo 4711", monkeypatch)
    for text, job in (
        ("echo '4711;gpu'; echo 'Quota: 12 of 90'", "4711"),
        ("echo Submitted batch job 12 on cluster c2", "12"),
        ("echo; echo 7; echo 'charged to lab'", "7"),
    ):
        assert sbatch(tmp_path / "x.sh") == "4711"
        tool.write_text(f"#!/bin/sh\n{text}\n")
        assert sbatch(tmp_path / "x.sh") == job
        tool.write_text("#!/bin/sh\necho 'a | banner'; echo 4711\n")
    tool.write_text("#!/bin/sh\necho Held for review\n")
    with pytest.raises(SkipbenchError, match="names no job: 'Held for review'; look with squeue"):
        sbatch(tmp_path / "x.sh")
    text = "echo '| cluster | of | the | lab |'; echo '8|7|0|RUNNING'; echo 'Maintenance at 9'"
    fake_tool(tmp_path, "squeue", text, monkeypatch)
    assert jobs() == {"8": "RUNNING", "7_0": "RUNNING"}
    fake_tool(tmp_path, "scontrol", f'echo "$@" > {tmp_path}/said', monkeypatch)
    task = {"JOB_ID": "7", "ARRAY_JOB_ID": "7", "ARRAY_TASK_ID": "0", "RESTART_COUNT": ""}
    for name, value in task.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    monkeypatch.setenv("SKIPBENCH_REQUEUES", "2")
    assert requeue_self() == "requeued for the 1. time of at most 2"
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    assert "2 times already" in requeue_self()
    for name in task:
        monkeypatch.delenv(f"SLURM_{name}")
    assert "not in a Slurm job" in requeue_self()
    assert (tmp_path / "said").read_text() == "requeue 7_0\n"


def test_out_of_memory_says_what_is_needed_and_what_to_change() -> None:
    model = replace(known_models()["llama2-13b"], name="llama2-13b", dtype="float32", device="cpu")
    told = out_of_memory(MemoryError("no page\nbacktrace"), model, 512) or ""
    assert "out of memory (MemoryError: no page); model 'llama2-13b' needs" in told
    assert "hardware.memory=" in told and "model.dtype" in told
    assert out_of_memory(RuntimeError("can't allocate memory: 8 bytes"), model, 64)
    assert out_of_memory(RuntimeError("shapes differ"), model, 512) is None


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_waits_for_what_is_defer_signals(number: int) -> None:
    before, finished = signal.getsignal(number), False
    with pytest.raises(Interrupted, match=signal.Signals(number).name), handle_signals():
        with defer_signals():
            os.kill(os.getpid(), number)
            finished = True
        pytest.fail("the signal was lost")
    assert finished and signal.getsignal(number) == before
    with pytest.raises(Interrupted), handle_signals():
        os.kill(os.getpid(), number)
        time.sleep(1)


@pytest.mark.slow
def test_cells_that_share_a_search_are_all_submitted_and_wait_for_it(tmp_path: Path) -> None:
    cells = survey("swift-figure2b", ["scale=embedded", f"results={tmp_path}"])
    assert len({key_of(found) for found in cells}) == len(cells) == 9
    first, second = schedule_stages([Job([found]) for found in cells])
    searches = [name for job in first for name in job.searches]
    assert len(set(searches)) == len(searches) == 3
    assert {name for job in second for name in job.searches} == set(searches) and len(second) == 6
    assert schedule_stages(first) == [first] and schedule_stages([]) == []
    searches = (replace(f.config.search, iterations=10 + n) for n, f in enumerate(cells))
    both = zip(cells, searches, strict=True)
    more = [Cell(replace(f.config, search=search)) for f, search in both]
    most = {search_trace(f.config): f for f in more}  # the last of each, which wants most
    stages = schedule_stages([Job([f]) for f in more])
    assert [job.cells[0] for job in stages[0]] == [*most.values()]
    # rows that share a search with the next one do not run beside it
    a, b, c = (job.cells[0] for job in first)
    chain = [Job([a]), Job([a, b]), Job([b, c]), Job([c])]
    assert schedule_stages(chain) == [[chain[0], chain[2]], [chain[1], chain[3]]]


SIZES = ["clasp-table1", "models=llama3-70b,llama3-8b", "method=swift", "decoding.temperature=0.0"]
NAMES = ["llama3-70b swift specbench", "llama3-8b swift specbench"]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[str, str]]:
    """What `submit --print` of two models writes to stdout and stderr."""

    def of(*words: str) -> tuple[str, str]:
        dispatch(["submit", *SIZES, f"results={tmp_path}", "scale=paper", "--print", *words])
        assert not (tmp_path / "submit").exists()
        return capsys.readouterr()

    return of


def test_a_job_asks_for_the_gpus_that_its_models_need(shown: Callable[..., Any]) -> None:
    def asked(*words: str) -> list[tuple[str, ...]]:
        """GPUs, tasks, first cell and requeues of each script."""
        found = []
        for made in shown(*words)[0].split("#!/bin/bash\n")[1:]:
            of, first = options(made), re.findall(r'"\$\(\((\d+) \+', made)
            requeues = re.findall(r"^export SKIPBENCH_REQUEUES=(\d+)$", made, re.M)
            found.append((of["--gres"], of["--array"], *first, *requeues))
        return found

    # 480 conversations of two arms: 3 h, and 36 h, in which a limit of 12 h ends three times
    own = [("gpu:a100:1", "0-0", "0", "3"), ("gpu:a100:2", "0-0", "1", "6")]
    assert asked("hardware=slurm-a100") == own
    # 134.0 GiB with the cache, in 47 - 1 - 1.6 each, since a layer stays whole
    assert [of[0] for of in asked("hardware=slurm-a6000")] == ["gpu:a6000:1", "gpu:a6000:4"]
    (four,) = asked("hardware=slurm-a100", "hardware.gpus=4")
    assert four[:3] == ("gpu:a100:4", "0-1", "0")
    small = ["hardware=slurm-a100", "hardware.gpu=t4", "hardware.gpu_memory_gib=8"]
    assert len(asked(*small)) == 1
    aside = f"not submitted: {NAMES[1]}: it needs 3 GPUs of 8 GiB"
    assert aside in shown(*small)[1] and "give model.device=auto" in shown(*small)[1]
    with pytest.raises(SkipbenchError, match="gpu_memory_gib"):
        shown("hardware=slurm-a100", "hardware.gpu_memory_gib=null")


def test_here_cells_take_the_gpus_that_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: Callable[..., Any]
) -> None:
    listed = "echo '0, GPU-a, 81920'; echo '1, GPU-b, 81920'; echo '2, GPU-c, 24576'"
    fake_tool(tmp_path, "nvidia-smi", listed, monkeypatch)

    def here(visible: str, *words: str) -> tuple[list[str], str]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        out, aside = shown("hardware=local", *words)
        return sorted(out.splitlines()), aside

    assert here("0,GPU-b")[0] == [f"{NAMES[0]}, 2 GPUs", NAMES[1]]
    assert here("0,1", "hardware.gpus=1")[0] == NAMES
    only, aside = here("1")
    assert only == NAMES[1:] and "it needs 2 GPUs of 79 GiB; 1 at hand" in aside
    with pytest.raises(SkipbenchError, match="1 to the number of GPUs at hand, 2"):
        here("0,1", "hardware.gpus=3")


def test_hours_of_a_time_limit() -> None:
    hours = {"90": 1.5, "30:00": 0.5, "12:00:00": 12, "2-0": 48, "1-6:30": 30.5, "1-0:0:36": 24.01}
    assert {time: hardware(time=time).limit_h for time in hours} == hours
    assert hardware(time=None).limit_h is hardware(time="UNLIMITED").limit_h is None


SBATCH = """#!/bin/bash
exec 9>>{0}/lock; flock 9
echo "$*" >> {0}/arguments
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
MATHS = "dataset=mini-math"


class FakeSlurm:
    """A Slurm whose jobs never start: what a machine without one lacks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.results = folder, folder / "results"
        self.words = ["tiny", "method=uniform", f"results={self.results}", "hardware=slurm-local"]
        for name, text in {"jobs": "", "queue": "", "sbatch": SBATCH, "squeue": SQUEUE}.items():
            (folder / name).write_text(text.format(folder))
            (folder / name).chmod(0o755)
        (folder / "asked.0").touch()

    def submit(self, *more: str) -> None:
        dispatch(["submit", *self.words, *more])

    def sent(self) -> list[str]:
        """The cells of all submissions."""
        lines = [p.read_text().splitlines() for p in self.results.glob("submit/*/cells.jsonl")]
        return [folder for own in lines for line in own for folder in json.loads(line)["folders"]]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    return FakeSlurm(tmp_path)


def test_what_may_be_queued_is_not_submitted_again(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    (silent := slurm.folder / "silent").touch()
    slurm.submit(MATHS)  # nothing was submitted that could be queued
    assert len(slurm.sent()) == 1
    for more in ([], [MATHS]):
        with pytest.raises(SkipbenchError, match=r"squeue does not answer, and 1 of its cells"):
            slurm.submit(*more)
    with pytest.raises(SystemExit):
        dispatch(["status", *slurm.words])
    assert "1 of them were submitted and may be queued" in capsys.readouterr().out
    assert len(slurm.sent()) == 1
    silent.unlink()
    slurm.submit()
    assert len(slurm.sent()) == len(set(slurm.sent())) == 4


def test_what_sbatch_refuses_is_sent_again(slurm: FakeSlurm) -> None:
    sbatch = slurm.folder / "sbatch"
    takes = sbatch.read_text()
    sbatch.write_text("#!/bin/sh\necho no such partition >&2; exit 1\n")
    with pytest.raises(SkipbenchError, match=r"sbatch refuses .* no such partition"):
        slurm.submit(MATHS)
    sbatch.write_text(takes)
    slurm.submit(MATHS)
    assert len((slurm.folder / "jobs").read_text().split()) == 1
    assert "--dependency" not in (slurm.folder / "arguments").read_text()


def test_more_prompts_wait_for_those_that_are_queued(
    slurm: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    for limit in (9, 9, 12):  # no arm is in two jobs
        slurm.submit(f"limit={limit}")
        assert len(slurm.sent()) == 4
    capsys.readouterr()
    with pytest.raises(SystemExit):
        dispatch(["status", f"results={slurm.results}"])
    assert "tiny-1: 4 cells: 0 done, 0 failed, 0 running, 4 queued" in capsys.readouterr().out


@pytest.mark.slow
def test_hydras_launcher_submits_what_is_missing_and_waits(
    slurm: FakeSlurm, skipbench: Command
) -> None:
    small = ["method=uniform", "limit=1", "dataset.max_new_tokens=6", slurm.words[2]]
    assert skipbench(MATHS, *small).returncode == 0
    (slurm.folder / "over").touch()  # jobs leave the queue at once, and nothing has run them
    command = ["-m", f"{MATHS},mini-code", *small, "hydra/launcher=slurm"]
    done = skipbench(*command, "hardware=slurm-local")
    assert done.returncode == 1 and "submitted: job 101, 1 rows, 1 cells" in done.stdout
    assert "failed: dataset=mini-code: " in done.stderr
    (cell,) = slurm.sent()
    assert cell.startswith("tiny_mini-code_") and "/uniform_" in cell
    (slurm.folder / "silent").touch()
    silent = skipbench(*command, "hardware=slurm-local")
    assert silent.returncode == 2 and "squeue does not answer, and 1 of its cells" in silent.stderr
    (slurm.folder / "silent").unlink()
    large = ["model=llama2-70b", "method=uniform", "dataset=specbench,cnndm", "limit=null"]
    where = ["hydra/launcher=slurm", "hardware=slurm-a100", "hardware.exclusive=true"]
    above = skipbench("-m", *large, *where, slurm.words[2])
    assert above.returncode == 2 and "GPU-hours would be charged, above the 100" in above.stderr
    assert len(slurm.sent()) == 1


@pytest.mark.slow
def test_two_submissions_at_once_take_turns(slurm: FakeSlurm) -> None:
    (slurm.folder / "asked.0").unlink()
    command = [sys.executable, "-m", "skipbench", "submit", *slurm.words]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    both = [subprocess.Popen(command, env=env, stdout=subprocess.PIPE) for _ in range(2)]
    told = [one.communicate() for one in both]
    assert [one.returncode for one in both] == [0, 0], told
    assert len(slurm.sent()) == len(set(slurm.sent())) == 4
