"""Locks of folders, also where the file system has none."""

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from builders import sample

from skipbench.errors import SkipbenchError
from skipbench.runs import lock
from skipbench.runs.lock import held
from skipbench.runs.store import RunStore

ADDS = """
import errno, fcntl, os, sys, time
from pathlib import Path
from skipbench.errors import SkipbenchError
from skipbench.runs.lock import held
def none(handle, how):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))
fcntl.flock = none
folder, count, times = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
for _ in range(times):
    try:
        with held(folder, wait=len(sys.argv) > 4):
            number = int(count.read_text())
            time.sleep(0.01)
            count.write_text(str(number + 1))
            print("held", flush=True)
    except SkipbenchError as error:
        print(error, flush=True)
"""


@pytest.fixture
def no_flock(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(handle: int, how: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(lock.fcntl, "flock", flock)


def claims(folder: Path) -> list[Path]:
    return [*folder.glob(".lock.*")]


def elsewhere(folder: Path) -> Path:
    """The claim of a process on another machine."""
    folder.mkdir(exist_ok=True)
    path = folder / ".lock.0123abcd"
    path.write_text("holds another-boot/pid:[1] 7 100 node3")
    return path


@pytest.mark.parametrize(("count", "times", "waits"), [(4, 5, True), (2, 40, False)])
def test_processes_take_turns_without_flock(
    count: int, times: int, waits: bool, tmp_path: Path
) -> None:
    """What each did not do, as it does not wait, it said; at least one goes on."""
    (counter := tmp_path / "count").write_text("0")
    words = [sys.executable, "-c", ADDS, tmp_path / "a", counter, str(times), *["wait"] * waits]
    running = [subprocess.Popen(words, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    said = [line for process in running for line in process.communicate(timeout=120)[0].split("\n")]
    done, every = said.count("held"), count * times
    refused = sum("is being written by another process (pid " in line for line in said)
    assert 0 < done == int(counter.read_text()) and done + refused == every
    assert not waits or (done == every and not claims(tmp_path / "a"))


@pytest.mark.usefixtures("no_flock")
def test_a_folder_is_held_once_and_leaves_nothing(tmp_path: Path) -> None:
    with (
        held(tmp_path),
        pytest.raises(SkipbenchError, match=r"another process \(pid \d+ on "),
        held(tmp_path),
    ):
        raise AssertionError
    with pytest.raises(KeyboardInterrupt), held(tmp_path):
        raise KeyboardInterrupt
    assert not claims(tmp_path)
    with held(tmp_path):
        pass


@pytest.mark.usefixtures("no_flock")
def test_a_killed_process_of_this_machine_holds_nothing(tmp_path: Path) -> None:
    """Nor does one that has its number since."""
    ended = subprocess.Popen(["true"])
    ended.wait()
    for pid in (ended.pid, os.getpid()):
        text = f"holds {lock._place()} {pid} 1 renamed"
        (tmp_path / ".lock.0123abcd").write_text(text)
        with held(tmp_path):
            assert len(claims(tmp_path)) == 1  # the dead one's is gone


@pytest.mark.usefixtures("no_flock")
def test_a_process_elsewhere_holds_while_its_time_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By changes alone: its clock, or the server's, may be set to any time."""
    path, end = elsewhere(tmp_path), threading.Event()

    def beats() -> None:
        for jump in range(1, 1000):
            if end.wait(0.3):
                return
            os.utime(path, (0, 1e9 * (jump % 3)))

    other = threading.Thread(target=beats)
    other.start()
    try:
        with pytest.raises(SkipbenchError, match="pid 7 on node3"), held(tmp_path):
            raise AssertionError
    finally:
        end.set()
        other.join()
    monkeypatch.setattr(lock, "DEAD_S", 0.5)
    began = time.monotonic()
    with held(tmp_path):
        assert time.monotonic() - began > 0.5 and not path.exists()


@pytest.mark.usefixtures("no_flock")
def test_who_stood_still_writes_nothing_more(tmp_path: Path) -> None:
    """A laptop slept, and another machine went on with its run."""
    store = RunStore(tmp_path / "r", {"seed": 0})
    store.append(sample(0))
    (mine,) = claims(tmp_path / "r")
    mine.unlink()  # as who takes over does
    elsewhere(tmp_path / "r")
    before = (tmp_path / "r" / "samples.jsonl").read_bytes()
    for write in (lambda: store.append(sample(1)), lambda: store.status("done")):
        with pytest.raises(SkipbenchError, match="taken over by another process"):
            write()
    store.close()
    assert (tmp_path / "r" / "samples.jsonl").read_bytes() == before


@pytest.mark.usefixtures("no_flock")
@pytest.mark.parametrize("text", ["", "holds", "\x1b[2J", "holds x 99999999999999999999 1 h"])
def test_whatever_a_claim_holds_it_is_refused_or_taken_over(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock, "DEAD_S", 0.3)
    (tmp_path / ".lock.0123abcd").write_text(text)
    with held(tmp_path):
        pass
    (tmp_path / ".lock.0123abcd").mkdir()
    with pytest.raises(SkipbenchError) as caught, held(tmp_path):
        pass
    assert str(caught.value).isprintable()


def test_a_lock_without_a_name_is_one(tmp_path: Path) -> None:
    """As on a full disk."""
    with held(tmp_path):
        (tmp_path / ".lock").write_text("")
        with pytest.raises(SkipbenchError, match="it has the lock"), held(tmp_path):
            raise AssertionError
