"""Records and the folder of a run: nothing is lost, nothing is mixed, and errors say where."""

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
from builders import sample
from conftest import ROOT
from msgspec.structs import replace

from skipbench.config.paths import PACKAGE
from skipbench.errors import SkipbenchError
from skipbench.runs.files import append_line, write_atomic
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance, config_hash, portable, run_name
from skipbench.runs.record import Sample, dump, parse
from skipbench.runs.run import read_run
from skipbench.runs.store import RunStore, read_samples


def store(folder: Path) -> RunStore:
    return RunStore(folder, {"seed": 0})


def test_other_formats_and_fields_are_refused() -> None:
    raw = json.loads(dump(sample(0)))
    with pytest.raises(SkipbenchError, match=r"\$\.format"):
        parse(json.dumps(raw | {"format": 0}), Sample)
    with pytest.raises(SkipbenchError, match=r"unknown field `colour`"):
        parse(json.dumps(raw | {"colour": "red"}), Sample)
    with pytest.raises(SkipbenchError, match=r"got `str` - at `\$\.vanilla`"):
        parse(json.dumps(raw | {"vanilla": "text"}), Sample)
    with pytest.raises(SkipbenchError, match=r">= 0.*seconds\.draft"):
        negative = raw["vanilla"] | {"seconds": raw["vanilla"]["seconds"] | {"draft": -1}}
        parse(json.dumps(raw | {"vanilla": negative}), Sample)


def test_what_was_written_is_read(tmp_path: Path) -> None:
    run = store(tmp_path)
    for index in (2, 0, 1):
        run.append(sample(index))
    run.status("done")
    run.write_metrics(Metrics(M=1.5, samples=3))
    assert [s.index for s in run.samples()] == [2, 0, 1]
    loaded = read_run(tmp_path)
    assert loaded.metrics == Metrics(M=1.5, samples=3)
    assert (loaded.status.state, loaded.settings) == ("done", {"seed": 0})
    assert {p.name for p in tmp_path.iterdir()} == {
        ".lock", "config.yaml", "provenance.json", "samples.jsonl", "metrics.json", "status.json",
    }  # fmt: skip
    run.close()


@pytest.mark.parametrize(
    "tail",
    ['{"index": 1, "id', "garbage", "garbage\n", "gar\rbage\n", "gar\x1cbage\n", "\x00\x00\x00"],
)
def test_a_torn_last_line_is_cut_off(tail: str, tmp_path: Path) -> None:
    run = store(tmp_path)
    run.append(sample(0))
    with open(tmp_path / "samples.jsonl", "a") as file:
        file.write(tail)
    assert [s.index for s in read_samples(tmp_path / "samples.jsonl")] == [0]
    assert [s.index for s in run.samples()] == [0]
    run.close()  # nor is it cut off by a process that only appends
    with open(tmp_path / "samples.jsonl", "a") as file:
        file.write(tail)
    run = store(tmp_path)
    run.append(sample(1))
    run.close()
    assert [s.index for s in read_samples(tmp_path / "samples.jsonl")] == [0, 1]


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ([dump(sample(0)), "garbage", dump(sample(1))], r"samples\.jsonl, line 2"),
        # not taken for a torn line
        ([dump(sample(0)), dump(replace(sample(1), format=0))], r"\$\.format"),
        ([dump(sample(4)), dump(sample(4))], "sample 4 occurs twice"),
    ],
)
def test_lines_that_no_run_writes_are_refused(lines: list[str], told: str, tmp_path: Path) -> None:
    (tmp_path / "samples.jsonl").write_text("".join(f"{line}\n" for line in lines))
    for repair in (False, True):
        with pytest.raises(SkipbenchError, match=told):
            read_samples(tmp_path / "samples.jsonl", repair)


def test_other_settings_are_refused_as_they_are_stored(tmp_path: Path) -> None:
    for protect in ((0, 1), [0, 1], (0, 1)):
        RunStore(tmp_path, {"protect": protect}).close()
        with pytest.raises(SkipbenchError, match="protect"):
            RunStore(tmp_path, {"protect": [0]})  # and lets go of the folder
    (tmp_path / "config.yaml").write_text("protect: [0")
    with pytest.raises(SkipbenchError, match=r"config\.yaml cannot be read"):
        RunStore(tmp_path, {"protect": (0, 1)})


def test_a_folder_that_cannot_be_written_names_itself(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")  # a path under a regular file: refused to root as well
    with pytest.raises(SkipbenchError, match=r"file/run is not writable.*results="):
        store(tmp_path / "file" / "run")
    with pytest.raises(SkipbenchError, match="results="):
        append_line(tmp_path / "missing" / "samples.jsonl", "{}")


def test_a_second_process_is_refused_and_admitted_after_a_kill(tmp_path: Path) -> None:
    program = (
        "import sys, time; from pathlib import Path; from skipbench.runs.store import RunStore; "
        "s = RunStore(Path(sys.argv[1]), {'seed': 0}); print('held', flush=True); "
        "time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        with pytest.raises(SkipbenchError, match=f"pid {holder.pid}"):
            store(tmp_path)
        holder.kill()
        holder.wait()
    store(tmp_path).close()


WRITER = """
import sys
from pathlib import Path
from skipbench.runs.record import Arm, Sample, Seconds
from skipbench.runs.store import RunStore

run = RunStore(Path(sys.argv[1]), {"seed": 0})
arm = Arm(list(range(400)), [], Seconds(0.1, 0.2, 0.3, 0.0, 0.01), "length")
for index in range(len(run.samples()), 10**6):
    run.append(Sample(index, f"s{index}", "h", 7, [], arm, arm, "identical"))
    print(index, flush=True)
"""


def test_no_sample_is_lost_or_written_twice_when_the_writer_is_killed(tmp_path: Path) -> None:
    rng = random.Random(11)
    done = 0
    for _ in range(8):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            first = writer.stdout.readline()  # it writes
            time.sleep(rng.random() * 0.06)
            writer.kill()
            told = [int(line) for line in [first, *writer.stdout] if line.endswith("\n")]
        assert told == list(range(done, done + len(told))) and told, (
            "the writer did not go on where it was killed"
        )
        store(tmp_path).close()
        indices = [s.index for s in read_samples(tmp_path / "samples.jsonl")]
        assert indices == list(range(len(indices)))
        assert told[-1] < len(indices) <= told[-1] + 2  # one may be written and not told yet
        done = len(indices)


def test_a_full_disk_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_line(path := tmp_path / "samples.jsonl", "{}")
    write = os.write
    monkeypatch.setattr("os.write", lambda handle, data: write(handle, data[:100]))
    with pytest.raises(SkipbenchError, match="free some space"):
        append_line(path, "x" * 500)
    assert path.read_text() == "{}\n"


def test_a_file_is_replaced_as_a_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "status.json"
    for text in ("old", "new"):
        write_atomic(path, text)
        assert (path.read_text(), list(tmp_path.iterdir())) == (text, [path])

    def full(handle: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(SkipbenchError, match=r"status\.json is not writable .no space"):
        write_atomic(path, "newer")
    assert (path.read_text(), list(tmp_path.iterdir())) == ("new", [path])


@pytest.mark.parametrize("mask", [0o077, 0o022])
def test_a_file_is_as_open_as_the_umask_lets_it(mask: int, tmp_path: Path) -> None:
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


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    words = ["method=uniform", "dataset=mini-math", "limit=300", "dataset.max_new_tokens=24"]
    command = [sys.executable, "-m", "skipbench", *words, f"results={tmp_path}"]
    # a shell's background jobs ignore SIGINT, and so would what they start
    listen = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=ROOT, preexec_fn=listen, **pipes)

    def lines() -> int:
        return sum(path.read_bytes().count(b"\n") for path in tmp_path.glob("runs/*/samples.jsonl"))

    while process.poll() is None and lines() < 2:
        time.sleep(0.002)
    process.send_signal(signal.SIGINT)
    output = process.communicate()[0]
    assert process.returncode == 130 and "same command goes on" in output, output
    (folder,) = tmp_path.glob("runs/*")
    status = read_run(folder).status
    assert status.state == "interrupted" and "interrupted" in str(status.error)
    assert len(read_samples(folder / "samples.jsonl")) == lines() >= 2


@pytest.mark.slow
def test_faults_in_short(tmp_path: Path) -> None:
    """Kills and full disks; the script checks by itself that nothing is lost."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "fault_harness.py"), "5", "3"],
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    assert "5 faults in" in done.stdout
