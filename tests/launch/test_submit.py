"""Without a cluster: the text of a script, the state of a run, what is submitted, and signals."""

import json
import os
import shlex
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from builders import fake_tool
from conftest import PAPERS
from msgspec.structs import replace

from skipbench.bench.memory import out_of_memory
from skipbench.cli.commands import Status
from skipbench.cli.experiments import cells_asked
from skipbench.cli.main import dispatch
from skipbench.cli.parser import parse
from skipbench.config import catalog
from skipbench.config.catalog import choices, known_hardware, known_models, places
from skipbench.config.compose import compose
from skipbench.config.hardware import Slurm
from skipbench.config.paths import CONF
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import cost_of, gpu_of
from skipbench.experiments.plan import once
from skipbench.experiments.set_search import search_trace
from skipbench.launch import manifest
from skipbench.launch.jobs import Job, schedule_stages
from skipbench.launch.slurm import requeue_self, script
from skipbench.launch.status import key_of, with_states
from skipbench.runs.cell import Cell
from skipbench.runs.lock import held
from skipbench.runs.state import Interrupted, defer_signals, handle_signals, run_state
from skipbench.runs.store import record_failure


def hardware(name: str = "slurm-a100", **more: Any) -> Slurm:
    found = compose([f"hardware={name}"]).hardware
    assert isinstance(found, Slurm)
    return replace(found, **more)


def survey(name: str, words: list[str]) -> list[Cell]:
    """The cells of an experiment with their states."""
    (cells,) = cells_asked(parse(Status, [name, *words]), choices("experiment")).values()
    return with_states(once(cells))


FIRST = range(12)


def text(part: range = FIRST, folder: str = "/r/submit/tiny-1", **more: Any) -> str:
    cells = Path(folder) / "cells.jsonl"
    return script("skipbench-tiny", cells, part, hardware(**more), "/env/bin/python", Path("/w"))


def options(made: str) -> dict[str, str]:
    """What sbatch reads: one word a line, quotes as in a shell."""
    words = [
        shlex.split(line.removeprefix("#SBATCH "))[0]
        for line in made.splitlines()
        if line.startswith("#SBATCH ")
    ]
    return {word.partition("=")[0]: word.partition("=")[2] for word in words}


def test_the_script_asks_for_what_the_hardware_says() -> None:
    more = {"partition": "gpu", "account": "lab", "constraint": "a100&nvlink", "parallel": 4}
    more |= {"exclusive": True, "requeues": 2, "setup": ["module load cuda"]}
    made = text(range(1001, 1004), **more, options=["--nice=10"])
    wanted = {"array": "0-2%4", "gres": "gpu:a100:1", "cpus-per-task": "8", "mem": "120G"}
    wanted |= {"time": "12:00:00", "signal": "B:USR2@300", "nice": "10", "partition": "gpu"}
    wanted |= {"account": "lab", "constraint": "a100&nvlink", "exclusive": "", "requeue": ""}
    assert options(made).items() >= {f"--{name}": value for name, value in wanted.items()}.items()
    shell = made.splitlines()
    assert "export HF_HUB_OFFLINE=1" in shell and "export SKIPBENCH_REQUEUES=2" in shell
    assert shell.index("module load cuda") == len(shell) - 3
    assert shell[-1].startswith("exec ") and '"$((1001 + SLURM_ARRAY_TASK_ID))"' in shell[-1]


def test_what_is_null_is_left_to_the_cluster() -> None:
    asked = options(text(name="slurm-local", requeues=0, offline=False))
    assert not {"--partition", "--account", "--mem", "--gres", "--exclusive", "--requeue"} & set(
        asked
    )
    assert "--no-requeue" in asked
    assert "HF_HUB_OFFLINE" not in text(name="slurm-local", offline=False)


def test_odd_names_reach_the_program_whole(tmp_path: Path) -> None:
    folder = '/r s/50% "x" $HOME'
    made = text(folder=folder)
    assert options(made)["--output"] == folder.replace("%", "%%") + "/%A_%a.log"
    show = tmp_path / "show"
    show.write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    show.chmod(0o755)
    command = made.splitlines()[-1].replace("/env/bin/python", str(show))
    ran = subprocess.run(
        ["bash", "-c", command], env={"SLURM_ARRAY_TASK_ID": "5"}, capture_output=True, text=True
    )
    assert ran.stdout.splitlines() == ["-m", "skipbench", "runrow", f"{folder}/cells.jsonl", "5"]


@pytest.mark.parametrize("word", ["cpus=0", "gpus=-1", "signal_s=0", "parallel=0", "node_gpus=0"])
def test_a_number_out_of_range_is_refused(word: str) -> None:
    with pytest.raises(SkipbenchError, match=rf"hardware\.{word}; wanted [01] or more"):
        compose(["hardware=slurm-a100", f"hardware.{word}"])


def test_a_word_of_two_lines_is_refused() -> None:
    with pytest.raises(SkipbenchError, match="line break"):
        text(partition="a\n#SBATCH --uid=0")


def say(folder: Path, age: float = 0, **value: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "status.json"
    running = {"state": "running", "error": None, "pid": 1, "host": "elsewhere", "slurm": None}
    path.write_text(json.dumps(running | value))
    os.utime(path, (time.time() - age,) * 2)
    return folder


BAD_STATUSES = ["", "[1]", "{}", '{"state": 5}', "\x00", "[" * 100_000, "9" * 5000, "\udcff"]
BAD_STATUSES += ['{"state": "\\u001b[2J"}']


def test_the_state_of_a_run(tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    ended = subprocess.Popen(["true"])  # and nobody asks how
    while Path(f"/proc/{ended.pid}/stat").read_text().split()[2] != "Z":
        time.sleep(0.01)
    here = {"host": socket.gethostname()}

    def state(
        jobs: dict[str, str] | None = None, age: float = 0, stale_s: float = 600, **value: Any
    ) -> str:
        return run_state(say(tmp_path / "run", age, **value), jobs, stale_s).state

    assert run_state(tmp_path / "none", None).state == "missing"
    ends = ["done", "failed", "interrupted"]
    assert [state(state=s) for s in ends] == ends
    assert state(**here, pid=os.getpid()) == "running"
    assert state(**here, pid=gone.pid) == state(**here, pid=ended.pid) == "stale"
    ended.wait()
    assert state(**here, pid=1, age=20, stale_s=10) == "stale"
    assert state(**here, pid=os.getpid(), age=90_000_000) == "stale"
    assert state(age=30) == "running" and state(age=900) == "stale"
    assert state(slurm="7", jobs={"7": "RUNNING"}) == "running"
    assert state(slurm="7", jobs={"8": "RUNNING"}) == "stale"
    assert state(slurm="7", jobs={"7": "PENDING"}) == "queued"
    assert state(slurm="7", jobs=None) == "running", "Slurm's silence says nothing of a job"
    status = tmp_path / "run" / "status.json"
    for bad in BAD_STATUSES:
        status.write_text(bad, errors="surrogateescape")
        life = run_state(tmp_path / "run", None)
        assert life.state == "failed" and str(status) in str(life.reason), repr(bad)


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

    squeue = fake_tool(tmp_path, "squeue", "echo '8|7|0|RUNNING'", monkeypatch)
    assert states() == ["running", "failed", "missing", "missing"], (
        "a cancelled job never began, the last was not sent"
    )
    reason = survey("tiny", words)[1].state.reason
    assert reason == f"job 7_1 is over and left no record; see {submission / '7_1.log'}"
    squeue.write_text("#!/bin/sh\nexit 1\n")
    assert states() == ["missing"] * 4, "Slurm's silence says nothing of a job"


def test_a_cluster_of_ones_own_may_have_any_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(CONF / "hardware", tmp_path / "hardware")
    shutil.copy(CONF / "hardware" / "slurm-a100.yaml", tmp_path / "hardware" / "ours.yaml")
    devices = known_hardware()
    monkeypatch.setattr(catalog, "_folders", [tmp_path])
    assert places() == ["local", "ours", "slurm-a100", "slurm-a6000", "slurm-local"]
    assert known_hardware() == devices and "ours" not in devices


def test_a_manifest_knows_its_cells_and_jobs(tmp_path: Path) -> None:
    folder = manifest.next_folder(tmp_path, "tiny", make=True)
    rows = [
        {"name": n, "folders": list(n), "names": list(n), "configs": []} for n in ("a", "bc", "d")
    ]
    manifest.write_rows(folder, rows)
    manifest.add_job(folder, "7", 0, 2)
    manifest.add_job(folder, "9", 2, 1)
    sent = manifest.tasks(tmp_path)
    jobs = {key: [task.job for task in tasks] for key, tasks in sent.items()}
    assert jobs == {"a": ["7_0"], "b": ["7_1"], "c": ["7_1"], "d": ["9_0"]}
    assert manifest.next_folder(tmp_path, "tiny", make=True).name == "tiny-2"
    for index in (3, -1):
        with pytest.raises(SkipbenchError, match="3 rows"):
            manifest.read_row(folder / "cells.jsonl", index)
    with pytest.raises(SkipbenchError, match="0 rows"):
        manifest.read_row(folder / "none.jsonl", 0)


def test_a_job_requeues_itself_only_so_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert "not in a Slurm job" in requeue_self()
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    monkeypatch.setenv("SKIPBENCH_REQUEUES", "2")
    assert "2 times already" in requeue_self()


def test_out_of_memory_says_what_is_needed_and_what_to_change() -> None:
    model = replace(known_models()["llama2-13b"], name="llama2-13b", dtype="float32", device="cpu")
    told = out_of_memory(MemoryError(), model, 512) or ""
    assert "out of memory (MemoryError); model 'llama2-13b' needs" in told
    assert "hardware.memory=" in told and "model.dtype" in told
    tiny = compose([]).model
    assert tiny.architecture is None
    assert "hardware.memory" in (
        out_of_memory(RuntimeError("can't allocate memory: 8 bytes"), tiny, 64) or ""
    )
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
    more = [
        Cell(replace(f.config, search=search)) for f, search in zip(cells, searches, strict=True)
    ]
    most = {search_trace(f.config): f for f in more}  # the last of each, which wants most
    stages = schedule_stages([Job([f]) for f in more])
    assert [job.cells[0] for job in stages[0]] == [*most.values()]
    # rows that share a search with the next one do not run beside it
    a, b, c = (job.cells[0] for job in first)
    chain = [Job([a]), Job([a, b]), Job([b, c]), Job([c])]
    assert schedule_stages(chain) == [[chain[0], chain[2]], [chain[1], chain[3]]]


def test_jobs_that_cannot_be_read_hide_no_others(tmp_path: Path) -> None:
    folder = manifest.next_folder(tmp_path, "good", make=True)
    manifest.write_rows(folder, [{"name": "a", "folders": ["a"], "names": ["a"], "configs": []}])
    manifest.add_job(folder, "7", 0, 1)
    for number, line in enumerate(
        ("[" * 100_000, '{"job": "8", "first": 0, "count": 1000000000000}', "null")
    ):
        bad = shutil.copytree(folder, tmp_path / "submit" / f"bad-{number}")
        (bad / "jobs.jsonl").write_text(line + "\n")
    for job in ("../../x", "a" * 5000):
        manifest.add_job(shutil.copytree(folder, tmp_path / "submit" / f"job-{job[-1]}"), job, 0, 1)
    assert {task.job for task in manifest.tasks(tmp_path)["a"]} == {"7_0"}


def test_a_search_that_cannot_be_read_is_of_its_cell_alone(tmp_path: Path) -> None:
    words = ["swift-table11", "scale=embedded", f"results={tmp_path}"]
    cells = survey(words[0], words[1:])
    (trace,) = (search_trace(f.config) for f in cells if f.config.search_dataset is not None)
    trace.parent.mkdir(parents=True)
    trace.write_text("{}\n" + "[" * 100_000 + "\n")
    found = survey(words[0], words[1:])
    (bad,) = (f for f in found if f.state.state == "failed")
    assert str(trace) in str(bad.state.reason) and not bad.runnable and len(found) == 2


SIZES = ["clasp-table1", "models=llama3-70b,llama3-8b", "method=swift", "decoding.temperature=0.0"]


def asked(shown: str) -> list[tuple[str | None, str, str]]:
    """GPUs, tasks and first cell of each script that was printed."""
    found = []
    for made in shown.split("#!/bin/bash\n")[1:]:
        words = options(made)
        found.append(
            (words.get("--gres"), words["--array"], made.partition('"$((')[2].partition(" +")[0])
        )
    return found


def test_a_job_asks_for_the_gpus_that_its_models_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def shown(*words: str) -> tuple[list[tuple[str | None, str, str]], str]:
        dispatch(["submit", *SIZES, f"results={tmp_path}", "scale=paper", "--print", *words])
        assert not (tmp_path / "submit").exists()
        said = capsys.readouterr()
        return asked(said.out), said.err

    assert shown("hardware=slurm-a100")[0] == [
        ("gpu:a100:1", "0-0", "0"),
        ("gpu:a100:2", "0-0", "1"),
    ]
    # 134.0 GiB with the cache, in 47 - 1 - 1.6 each, since a layer stays whole
    four = ("gpu:a6000:4", "0-0", "1")
    assert shown("hardware=slurm-a6000")[0] == [("gpu:a6000:1", "0-0", "0"), four]
    assert shown("hardware=slurm-a100", "hardware.gpus=4")[0] == [("gpu:a100:4", "0-1", "0")]
    small = "hardware=slurm-a100", "hardware.gpu=t4", "hardware.gpu_memory_gib=8"
    scripts, aside = shown(*small)
    assert (
        len(scripts) == 1
        and "not submitted: llama3-8b swift specbench: it needs 3 GPUs of 8 GiB" in aside
    )
    assert "give model.device=auto" in aside
    with pytest.raises(SkipbenchError, match="gpu_memory_gib"):
        shown("hardware=slurm-a100", "hardware.gpu_memory_gib=null")


def test_arrays_hold_the_cells_that_need_their_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = f"echo x >> {tmp_path}/sent; wc -l < {tmp_path}/sent"
    fake_tool(tmp_path, "sbatch", sent, monkeypatch)
    words = [*SIZES, f"results={tmp_path}", "hardware=slurm-a100", "scale=paper"]
    dispatch(["submit", *words, "--anyway"])
    folder = tmp_path / "submit" / "clasp-table1-1"
    cells = [
        [one["model"]["name"] for one in json.loads(line)["configs"]]
        for line in (folder / "cells.jsonl").read_text().splitlines()
    ]
    lines = [json.loads(line) for line in (folder / "jobs.jsonl").read_text().splitlines()]
    jobs = [line for line in lines if line["job"]]
    gpus = [options((folder / f"{n}.sh").read_text())["--gres"] for n in range(len(jobs))]
    found = {
        g: cells[job["first"] : job["first"] + job["count"]]
        for g, job in zip(gpus, jobs, strict=True)
    }
    assert found == {"gpu:a100:1": [["llama3-8b"]], "gpu:a100:2": [["llama3-70b"]]}
    # 480 conversations of two arms: 3 h, and 36 h, in which a limit of 12 h ends three times
    requeues = [f"export SKIPBENCH_REQUEUES={n}\n" for n in (3, 6)]
    scripts = [(folder / f"{n}.sh").read_text() for n in range(2)]
    assert all(line in script for line, script in zip(requeues, scripts, strict=True))


@pytest.mark.slow
def test_charged_hours_of_a_papers_table_are_the_planned_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_tool(tmp_path, "sbatch", "echo 7", monkeypatch)
    words = ["swift-table2", "hardware=slurm-a100", f"results={tmp_path}"]
    dispatch(["submit", *words, "--yes", "--anyway"])
    (folder,) = tmp_path.glob("submit/swift-table2-*")
    lines = [json.loads(line) for line in (folder / "jobs.jsonl").read_text().splitlines()]
    jobs = [line for line in lines if line["job"]]  # the others say that it is about to be sent
    gpu, charged, planned = gpu_of(hardware()), 0.0, 0.0
    for number, job in enumerate(jobs):
        asked_for = options((folder / f"{number}.sh").read_text())
        assert "--exclusive" not in asked_for  # neighbours share the node of 8 GPUs
        for row in range(job["first"], job["first"] + job["count"]):
            cost = cost_of([c.config for c in manifest.read_row(folder / "cells.jsonl", row)], gpu)
            assert cost is not None
            charged += int(asked_for["--gres"].rpartition(":")[2]) * cost.hours
            planned += cost.gpu_hours
    assert planned > 50 and charged <= 1.15 * planned
    assert f"at most {charged:.1f} GPU-hours charged" in capsys.readouterr().out


def test_rows_of_several_experiments_are_one_and_no_run_is_in_two_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tool(tmp_path, "sbatch", "echo 7", monkeypatch)
    names = ["swift-figure8", "swift-table8"]
    words = ["models=llama2-13b", "scale=paper", f"results={tmp_path}"]
    dispatch(["submit", *names, *words, "hardware=slurm-a100", "--yes", "--anyway"])
    (path,) = tmp_path.glob("submit/*/cells.jsonl")
    assert path.parent.name == "swift-figure8+1-1"
    rows = [manifest.read_row(path, n) for n in range(len(path.read_text().splitlines()))]
    # one row, in blocks
    assert len({cell.row for row in rows for cell in row}) == 1 and len(rows) > 1
    folders = [f for line in path.read_text().splitlines() for f in json.loads(line)["folders"]]
    cells = {key_of(found) for name in names for found in survey(name, words)}
    assert sorted(folders) == sorted(cells)


@pytest.mark.parametrize(
    ("time", "hours"),
    [
        ("90", 1.5),
        ("30:00", 0.5),
        ("12:00:00", 12),
        ("2-0", 48),
        ("1-6:30", 30.5),
        ("1-0:0:36", 24.01),
    ],
)
def test_hours_of_a_time_limit(time: str, hours: float) -> None:
    assert hardware(time=time).limit_h == hours
    assert hardware(time=None).limit_h is hardware(time="UNLIMITED").limit_h is None


def test_here_cells_take_the_gpus_that_they_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = "echo '0, GPU-a, 81920'; echo '1, GPU-b, 81920'; echo '2, GPU-c, 24576'"
    fake_tool(tmp_path, "nvidia-smi", listed, monkeypatch)

    def shown(visible: str, *words: str) -> tuple[list[str], str]:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        where = [f"results={tmp_path}", "hardware=local", "scale=paper", "--print"]
        dispatch(["submit", *SIZES, *where, *words])
        said = capsys.readouterr()
        return sorted(said.out.splitlines()), said.err

    names = ["llama3-70b swift specbench", "llama3-8b swift specbench"]
    assert shown("0,GPU-b")[0] == [f"{names[0]}, 2 GPUs", names[1]]
    assert shown("0,1", "hardware.gpus=1")[0] == names
    only, aside = shown("1")
    assert (
        only == names[1:]
        and f"not submitted: {names[0]}: it needs 2 GPUs of 79 GiB; 1 at hand" in aside
    )
    wanted = r"hardware\.gpus=3; wanted null, or 1 to the number of GPUs at hand, 2"
    with pytest.raises(SkipbenchError, match=wanted):
        shown("0,1", "hardware.gpus=3")


def printed_and_told(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[str, str, str]:
    """Output and error output of `submit --print`, and what `status` says."""
    dispatch(["submit", *words, "hardware=slurm-a100", "--print"])
    shown = capsys.readouterr()
    with pytest.raises(SystemExit):
        dispatch(["status", *words, "scale=paper"])
    return shown.out, shown.err, capsys.readouterr().out


def test_a_set_to_be_searched_by_hand_stops_no_other_cell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name, model = "mine", "llama3-8b"
    own = (CONF / "experiment" / "clasp-table1.yaml").read_text().partition("  cases:\n")[0]
    text = own + "  cases: [{method: 'swift,self-sd'}]\n"  # no search of a cell's own
    (tmp_path / "conf" / "experiment").mkdir(parents=True)
    (tmp_path / "conf" / "experiment" / f"{name}.yaml").write_text(text)
    monkeypatch.setattr(catalog, "_folders", [CONF, tmp_path / "conf"])
    words = [name, f"models={model}", f"results={tmp_path}"]
    shown, aside, told = printed_and_told([*words, "method=swift,self-sd"], capsys)
    assert shown.startswith("#!/bin/bash\n")
    waiting = f"{model} self-sd "
    for line in (f"not submitted: {waiting}", f"missing     {waiting}"):
        (found, *_) = [said for said in (aside + told).splitlines() if said.startswith(line)]
        command = "search model=llama3-8b method=self-sd dataset=specbench, with your other"
        assert f"search one: python -m skipbench {command}" in found
    assert "to run them: " in told
    with pytest.raises(SystemExit):
        dispatch(["status", *words, "method=self-sd", "scale=paper"])
    assert "to run them: " not in capsys.readouterr().out, "no command runs what waits for the user"


@pytest.mark.experiments
@pytest.mark.parametrize("name", PAPERS)
def test_every_experiment_prints_and_tells(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shown, aside, told = printed_and_told([name, f"results={tmp_path}"], capsys)
    assert f"{name}: " in told and "0 failed" in told
    assert shown.startswith("#!/bin/bash\n") or "0 cells" in aside
