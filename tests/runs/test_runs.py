"""Records and the folder of a run: nothing is lost, nothing is mixed, and errors say where."""

import contextlib
import errno
import functools
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import fake_tool, turn
from conftest import ROOT
from msgspec.structs import replace

from skipbench.config.paths import PACKAGE
from skipbench.errors import SkipbenchError
from skipbench.runs import provenance
from skipbench.runs.files import append_line, write_atomic
from skipbench.runs.gpu import Gpu, gpu
from skipbench.runs.lock import held
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, config_hash, portable, run_name
from skipbench.runs.reading import run_folders
from skipbench.runs.record import VANILLA, Texts, dump
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore, append_turn, read_texts, read_turns, row_turns, set_aside


def store(row: Path, arm: str = "method") -> RunStore:
    return RunStore(row / arm, {"seed": 0, "method": {"name": arm}})


def append(row: Path, index: int, arm: str = "method") -> None:
    append_turn(row, turn(index, arm), Texts(index, f"s{index}", "p", {}, {VANILLA: "a", arm: "b"}))


def indices(row: Path, arm: str = "method") -> list[int]:
    return [turn.index for turn in row_turns(row) if arm in turn.arms]


def test_what_was_written_is_read(tmp_path: Path) -> None:
    run = store(tmp_path)
    for index in (2, 0, 1):
        append(tmp_path, index)
    run.status("done")
    run.write_metrics(Metrics(M=1.5, samples=3))
    run.close()
    assert (indices(tmp_path), [t.index for t in read_turns(run.folder)]) == ([2, 0, 1], [0, 1, 2])
    loaded = read_run(tmp_path / "method")
    assert (loaded.metrics, loaded.status.state) == (Metrics(M=1.5, samples=3), "done")
    assert loaded.settings == {"seed": 0, "method": {"name": "method"}}
    files = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*")}
    own = {f"method/{name}.json" for name in ("provenance", "metrics", "status")}
    both = {f"{place}{name}" for place in ("", "method/") for name in (".lock", "config.yaml")}
    assert files == {"turns.jsonl", "texts.jsonl"} | own | both


def test_a_row_holds_each_arm_once_and_a_later_arm_with_a_vanilla_of_its_own(
    tmp_path: Path,
) -> None:
    """Of an arm that is made anew the others keep their turns, and `replaced/` has the old ones."""
    row = tmp_path / "runs" / "row"
    for arm in ("one", "two", "three"):
        store(row, arm).close()
    for index in (0, 1):
        both = turn(index, "one").arms | turn(index, "two").arms
        together = replace(turn(index), order=[*both], arms=both)
        append_turn(row, together, Texts(index, "s", "p", {}, dict.fromkeys(both, "x")))
        append(row, index, "three")
    before = {arm: read_turns(row / arm) for arm in ("two", "three")}
    texts = (row / "texts.jsonl").read_bytes()
    set_aside(row / "one")
    assert (row / "one").exists() is False and indices(row, "one") == []
    for arm, turns in before.items():
        now = read_turns(row / arm)
        assert [t.arms[arm] for t in now] == [t.arms[arm] for t in turns] and VANILLA in now[0].arms
    replaced = tmp_path / "replaced" / "row.1"
    assert [[*t.arms] for t in read_turns(replaced / "one")] == [[VANILLA, "one"]] * 2
    assert b"one" not in (row / "texts.jsonl").read_bytes()
    assert (replaced / "texts.jsonl").read_bytes().count(b"one") == texts.count(b"one") == 2


@pytest.mark.parametrize("tail", ['{"index": 1, "id', "gar\rbage", "\x00\x00\x00"])
def test_a_line_within_which_another_process_died_is_no_part_of_the_next_one(
    tail: str, tmp_path: Path
) -> None:
    """Of two that write to a row; the one that goes on opens nothing anew."""
    run, other = store(tmp_path), store(tmp_path, "other")
    append(tmp_path, 0)
    other.close()
    append_line(tmp_path / "texts.jsonl", dump(Texts(0, "s0", "p", {}, {"other": "before"})))
    with open(tmp_path / "turns.jsonl", "a") as file:  # killed here
        file.write(tail)
    append(tmp_path, 1)
    other = store(tmp_path, "other")
    append(tmp_path, 0, "other")
    assert [t.index for t in read_turns(run.folder)] == [*read_texts(run.folder)] == [0, 1]
    assert (indices(tmp_path, "other"), read_texts(other.folder)[0].arms["other"]) == ([0], "b")
    run.close()
    other.close()


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([dump(turn(0)), "garbage", dump(turn(1))], r"turns\.jsonl, line 2"),
        # not taken for a torn line
        ([dump(turn(0)), dump(replace(turn(1), format=0))], r"\$\.format"),
        ([dump(turn(4)), dump(turn(4))], "turn 4 occurs twice"),
        ([dump(turn(0)).replace('"index"', '"colour":1,"index"')], "unknown field `colour`"),
        ([dump(turn(0)).replace('"draft":0.2', '"draft":-1')], r">= 0.*seconds\.draft"),
    ],
)
def test_lines_that_no_run_writes_are_refused(lines: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "turns.jsonl").write_text("".join(f"{line}\n" for line in lines))
    run = store(tmp_path)
    with pytest.raises(SkipbenchError, match=told):
        read_turns(run.folder)
    run.close()


def test_other_settings_and_folders_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    for protect in ((0, 1), [0, 1], (0, 1)):
        RunStore(tmp_path / "arm", {"protect": protect}).close()
        with pytest.raises(SkipbenchError, match="protect"):
            RunStore(tmp_path / "arm", {"protect": [0]})  # and lets go of the folder
    (tmp_path / "config.yaml").write_text("protect: [0")
    with pytest.raises(SkipbenchError, match=r"config\.yaml cannot be read"):
        RunStore(tmp_path / "arm", {"protect": (0, 1)})
    (tmp_path / "file").write_text("")  # a path under a regular file: refused to root as well
    with pytest.raises(SkipbenchError, match=r"file/row/method is not writable.*results="):
        store(tmp_path / "file" / "row")
    with pytest.raises(SkipbenchError, match="results="):
        append_line(tmp_path / "missing" / "turns.jsonl", "{}")


def test_a_second_process_is_refused_and_admitted_after_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from skipbench.runs.store import RunStore; "
        "settings = {'seed': 0, 'method': {'name': 'method'}}; "
        "s = RunStore(Path(sys.argv[1]) / 'method', settings); print('held', flush=True); "
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(SkipbenchError, match=f"pid {holder.pid}"):
            store(tmp_path)
        (tmp_path / "method" / ".lock").write_text("")  # as on a full disk
        with pytest.raises(SkipbenchError, match="it has the lock"):
            store(tmp_path)
        store(tmp_path, "other").close()  # the row is everybody's
        holder.kill()
        holder.wait()
    store(tmp_path).close()


WRITER = """
import sys
from pathlib import Path
from skipbench.runs.record import Arm, Seconds, Texts, Turn
from skipbench.runs.store import RunStore, append_turn, read_turns

row, name = Path(sys.argv[1]), sys.argv[2]
run = RunStore(row / name, {"seed": 0, "method": {"name": name}})
arm = Arm(list(range(400)), [], Seconds(0.1, 0.2, 0.3, 0.0, 0.01), "length")
print(flush=True)
sys.stdin.readline()  # both begin together
for index in range(len(read_turns(run.folder)), 10**6):
    texts = Texts(index, f"s{index}", "p", {}, {name: "t" * 400})
    arms = {"vanilla": arm, name: arm}
    append_turn(row, Turn(index, f"s{index}", "h", 7, [*arms], arms), texts)
    print(index, flush=True)
"""


def test_no_turn_is_lost_or_written_twice_when_one_of_two_writers_is_killed(tmp_path: Path) -> None:
    """They append to one row, each for an arm of its own."""
    rng = random.Random(11)
    done = {"a": 0, "b": 0}
    for _ in range(2):
        with contextlib.ExitStack() as stack:
            writers, told = dict[str, subprocess.Popen[str]](), dict[str, list[str]]()
            for arm in done:
                command = [sys.executable, "-c", WRITER, str(tmp_path), arm]
                writer = subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
                )
                writers[arm] = stack.enter_context(writer)
            for writer in writers.values():
                assert writer.stdout is not None and writer.stdout.readline()
            for arm, writer in writers.items():
                assert writer.stdout is not None
                print(file=writer.stdin, flush=True)
                told[arm] = [writer.stdout.readline()]  # it writes
            for arm in rng.sample([*done], 2):
                time.sleep(rng.random() * 0.06)
                writers[arm].kill()
                told[arm] += writers[arm].stdout or ()
        for arm, lines in told.items():
            numbers = [int(line) for line in lines if line.endswith("\n")]
            assert numbers == list(range(done[arm], done[arm] + len(numbers))) and numbers, (
                "the writer did not go on where it was killed"
            )
            run = store(tmp_path, arm)
            found = [turn.index for turn in read_turns(run.folder)]
            assert found == list(range(len(found))) and {*found} <= read_texts(run.folder).keys()
            assert numbers[-1] < len(found) <= numbers[-1] + 2  # one may not be told yet
            done[arm] = len(found)
            run.close()


def test_a_full_disk_leaves_files_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (row := tmp_path / "row").mkdir()
    append_line(path := row / "turns.jsonl", "{}")
    write = os.write
    with monkeypatch.context() as patch, pytest.raises(SkipbenchError, match="free some space"):
        patch.setattr("os.write", lambda handle, data: write(handle, data[:100]))
        append_line(path, "x" * 500)
    assert path.read_text() == "{}\n"
    (arm := tmp_path / "arm").mkdir()
    path = arm / "status.json"
    for text in ("old", "new"):
        write_atomic(path, text)
        assert (path.read_text(), list(arm.iterdir())) == (text, [path])

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SkipbenchError, match=r"status\.json is not writable .no space"):
        write_atomic(path, "newer")
    assert (path.read_text(), list(arm.iterdir())) == ("new", [path])


def test_a_file_is_as_open_as_the_umask_lets_it(tmp_path: Path) -> None:
    for mask in (0o077, 0o022):
        before = os.umask(mask)
        try:
            write_atomic(tmp_path / "report.html", "texts")
        finally:
            os.umask(before)
        assert (tmp_path / "report.html").stat().st_mode & 0o777 == 0o644 & ~mask


def test_names_and_hashes() -> None:
    a, b = {"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}
    assert config_hash(a) == config_hash(b)
    assert config_hash({"a": 1}) != config_hash({"a": 2})
    assert config_hash({"a": {"b": 1}}) != config_hash({"a": {"b": 2}})
    inside = {"model": {"path": f"{PACKAGE}/models/tiny", "sets": [f"{PACKAGE}/x.json"]}}
    told = {"model": {"path": "package:models/tiny", "sets": ["package:x.json"]}}
    assert portable(inside) == told and config_hash(inside) == config_hash(told)
    assert config_hash(inside) != config_hash({"model": {"path": "/models/tiny"}})
    assert run_name(["a/b", "x y", ""], "12") == "a-b_x-y_12"
    assert run_name(["../Llama-3.1_8B", 'é"\n;$', "n" * 99], "12") == f"Llama-3.1-8B_{'n' * 40}_12"


def test_provenance_names_versions_and_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret-value")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    found = Provenance.here()
    assert found.slurm == {"SLURM_JOB_ID": "17"}
    assert found.versions["torch"].startswith("2.13")
    assert "secret-value" not in repr(found)


SMI = """case "$*" in
*--id=GPU-1*clocks.max.sm*nounits*) echo "580.65.06, 1980, 1980, 3201, 700.00" ;;
*--id=GPU-2*) echo "580.65.06, 210, [N/A], 3201, [Not Supported]" ;;
*) echo "No devices were found"; exit 6 ;;
esac"""


def test_the_provenance_names_gpus_and_the_commit_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_tool(tmp_path, "nvidia-smi", SMI, monkeypatch)
    first, second = Gpu("580.65.06", 1980, 1980, 3201, 700), Gpu("580.65.06", 210, None, 3201, None)
    assert [gpu(f"GPU-{n}") for n in (1, 2, 3)] == [first, second, Gpu()]
    one = Provenance(gpus=[first], cudnn=91900)
    assert msgspec.convert(msgspec.to_builtins(one), Provenance) == one
    other = Provenance(gpus=[second], cudnn=91900)
    resumed = one.resumed_by(other, 3, tmp_path).resumed
    assert resumed == [{"after_turns": 3, "gpus": msgspec.to_builtins([second])}]
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert gpu("GPU-1") == Gpu() and Provenance.here().gpus == []
    monkeypatch.setattr(provenance, "PACKAGE", tmp_path / "skipbench")
    monkeypatch.delenv("SKIPBENCH_COMMIT", raising=False)
    assert Provenance.here().commit is None
    monkeypatch.setenv("SKIPBENCH_COMMIT", "158f0bf")
    assert (Provenance.here().commit, Provenance.here().dirty) == ("158f0bf", None)


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    words = ["method=uniform", "dataset=mini-math", "limit=300", "dataset.max_new_tokens=24"]
    command = [sys.executable, "-m", "skipbench", *words, f"results={tmp_path}"]
    # a shell's background jobs ignore SIGINT, and so would what they start
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, preexec_fn=listen, **pipes)

    def lines() -> int:
        return sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("runs/*/turns.jsonl"))

    while process.poll() is None and lines() < 2:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 130 and "same command goes on" in output, output
    (folder,) = run_folders(tmp_path)
    status = read_run(folder).status
    assert status.state == "interrupted" and "interrupted" in str(status.error)
    assert len(read_turns(folder)) == lines() >= 2


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_flock_is_one_error(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("fcntl.flock", flock)
    with pytest.raises(SkipbenchError, match="without flock; mount"), held(tmp_path):
        raise AssertionError
