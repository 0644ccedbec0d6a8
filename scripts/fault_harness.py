"""Short rows of the embedded model, five methods by turns, disturbed again and again:
`python scripts/fault_harness.py [FAULTS] [SEED]`.

After every fault the records must be readable, hold what they held, and nothing twice; a run that
is done must equal an undisturbed one in every token and count. Runs are real ones, in processes
forked from this one so that torch is loaded once; some are two at once, each with some of the
methods of one row.

Faults: SIGKILL and SIGTERM at a random moment; a process that dies within a line, or between the
texts of a turn and the turn; a full disk (a small tmpfs where mounting is
allowed, else a limit on the size of files, which gives the same error of the same calls); read-only
results; a clock set back in the run's process; a last line that is torn, garbage or zeros, as a
machine that lost its power may leave it.
"""

import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.fault_processes import (
    METHODS,
    SAMPLES,
    SETTINGS,
    TRACEBACK,
    Prepare,
    Records,
    arguments,
    load_once,
    nothing,
    records,
    start,
    told,
    wait,
)

ROOM = "64m"


def mount(*words: str | Path) -> bool:
    return subprocess.run(["mount", *words], capture_output=True).returncode == 0


class Disk:
    """The folder of results: on a small file system of its own where that is allowed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.mounted = mount("-t", "tmpfs", "-o", f"size={ROOM}", "tmpfs", folder)

    def options(self, text: str) -> bool:
        """Whether the file system could be given other options."""
        return self.mounted and mount("-o", f"remount,{text}", self.folder)

    def used(self) -> int:
        found = os.statvfs(self.folder)
        return (found.f_blocks - found.f_bfree) * found.f_frsize

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", "-l", self.folder], check=True)


def until(child: int, results: Path, more: int) -> None:
    """Waits until the run has written so many turns more, or is about to end."""

    def lines() -> int:
        return sum(p.read_bytes().count(b"\n") for p in results.glob("runs/*/turns.jsonl"))

    goal = lines() + more
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while lines() < goal and os.waitid(os.P_PID, child, ended) is None:
        time.sleep(0.002)


def check(results: Path, before: Records, whole: Records) -> tuple[Records, bool]:
    """The records, and whether all runs are done; asserts that nothing is lost, changed, or told by
    a table that is not so.
    """
    from skipbench.report.tables.formats import markdown
    from skipbench.report.tables.runs import row_table
    from skipbench.runs.reading import run_folders
    from skipbench.runs.run import read_run

    now, done = records(results), 0
    assert before.keys() <= now.keys(), f"lost: {sorted(before.keys() - now.keys())}"
    for key, record in now.items():
        other = {name: (v, whole[key][name]) for name, v in record.items() if v != whole[key][name]}
        assert not other, f"{key}: not the record of an undisturbed run: {other}"
    for folder in run_folders(results):
        run = read_run(folder)
        own = {index for name, index in now if name == run.id}
        assert own <= run.texts.keys(), "a text is lost"
        assert not run.done or len(own) == SAMPLES, "done, but turns are missing"
        done += run.done
        if run.settings:
            text = markdown(row_table([run], title="harness"))
            shown = f"{SAMPLES}/{SAMPLES}" in text
            assert shown == (run.metrics is not None), "the table is not of the records"
            assert not shown or len(own) == SAMPLES, "a table of a part"
    return now, done == len(METHODS)


def hurt_tail(results: Path, rng: random.Random, whole: Path) -> str:
    """Damages the end of a row's turns or texts, as a crash may."""
    if not (paths := sorted(results.glob("runs/*/t*s.jsonl"))):
        return "tail: nothing there"
    hurt = rng.choice(paths)
    real = whole / hurt.relative_to(results)
    line = real.read_bytes().split(b"\n")[rng.randrange(SAMPLES)]
    kinds = {
        "torn": line[: rng.randrange(1, len(line))],
        "garbage": rng.randbytes(rng.randrange(1, 300)).replace(b"\n", b" "),
        "garbage line": b"\x1b[2J{not json " + rng.randbytes(40).hex().encode() + b"\n",
        "zeros": bytes(rng.randrange(1, 5000)),
    }
    kind = rng.choice(list(kinds))
    with open(hurt, "ab") as file:
        file.write(kinds[kind])
    return f"tail: {kind}"


def dying(rng: random.Random) -> Prepare:
    """The process kills itself at a line of a row: before it or after a part of it."""
    left, part = rng.randrange(2 * SAMPLES), rng.choice((0.0, rng.random()))

    def prepare() -> None:
        from skipbench.runs import store

        real, lines = store.append_line, [left]

        def append(path: Path, line: str) -> None:
            if lines[0] == 0:
                with open(path, "a") as file:
                    file.write(line[: int(part * len(line))])
                os.kill(os.getpid(), signal.SIGKILL)
            lines[0] -= 1
            real(path, line)

        store.append_line = append  # its own name of it

    return prepare


def pair(results: Path, rng: random.Random, usual_s: float) -> None:
    """Two processes at about the same moment, with other methods of one row; one or both die."""
    methods = rng.sample(METHODS, len(METHODS))
    cut, both = rng.randrange(1, len(METHODS)), rng.random() < 0.3
    children = []
    for number, names in enumerate((methods[:cut], methods[cut:])):
        fault = dying(rng) if number == 0 or both else nothing
        children.append(start(results, fault, [f"method={','.join(names)}", *SETTINGS]))
        time.sleep(rng.choice((0.0, rng.random() * usual_s / 4)))
    for child in children:
        assert wait(child) != TRACEBACK, "a traceback"


def set_back() -> None:
    """In the run's process the time of day is years ago, and goes further back whenever it is asked
    for.
    """
    now = [1e9]

    def earlier() -> float:
        now[0] -= 3600
        return now[0]

    class Back(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "datetime":
            return datetime.fromtimestamp(earlier(), tz or UTC)

    from skipbench.runs import provenance, store

    time.time = earlier
    store.datetime = provenance.datetime = Back  # type: ignore[attr-defined]  # the planted clock


def strike(disk: Disk, results: Path, rng: random.Random, whole: Path, usual_s: float) -> str:
    """One run with one fault; returns what it was."""
    kinds = ["SIGKILL", "SIGKILL", "SIGTERM", "SIGTERM", "at a line", "at a line", "pair", "pair"]
    kind = rng.choice([*kinds, "full", "limit", "read-only", "clock", "tail"])
    if kind == "pair":
        pair(results, rng, usual_s)
    elif kind == "at a line":
        wait(start(results, dying(rng)))
    elif kind in ("SIGKILL", "SIGTERM", "clock"):
        child = start(results, set_back if kind == "clock" else nothing)
        if rng.random() < 0.7:  # among the turns, rather than while the model is loaded
            until(child, results, rng.randrange(1, SAMPLES))
        if wait(child, rng.random() * usual_s * 0.1) is None:
            os.kill(child, signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
            wait(child)
    elif kind == "full" and disk.mounted:
        # statvfs of tmpfs tells whole pages, and so does its size
        disk.options(f"size={max(4096, disk.used() + 4096 * rng.randrange(0, 16))}")  # 0: no limit
        wait(start(results))
        disk.options(f"size={ROOM}")
    elif kind in ("full", "limit"):
        size, hard = rng.randrange(200, 30_000), resource.RLIM_INFINITY
        wait(start(results, lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))))
        kind = "limit"
    elif kind == "read-only":
        if not disk.options("ro"):
            results.chmod(0o555)
        wait(start(results))
        if not disk.options(f"rw,size={ROOM}"):
            results.chmod(0o755)
    else:
        return hurt_tail(results, rng, whole)
    return kind


def main() -> None:
    faults, seed = arguments()
    rng = random.Random(seed)
    load_once()
    with tempfile.TemporaryDirectory() as folder:
        whole = Path(folder) / "whole"
        began = time.monotonic()
        assert wait(start(whole)) == 0, "the undisturbed run failed"
        usual_s = time.monotonic() - began
        wanted = records(whole)
        assert len(wanted) == SAMPLES * len(METHODS)
        disk = Disk(Path(folder) / "disk")
        try:
            count, ends = campaign(disk, rng, whole, wanted, usual_s, faults)
        finally:
            disk.close()
    print(
        f"{faults} faults in {ends} rows of {len(METHODS)} methods and {SAMPLES} prompts "
        f"({told(count)}); "
        f"{'tmpfs' if disk.mounted else 'no mount allowed'}: nothing "
        f"lost, nothing twice, every record readable, {time.monotonic() - began:.0f} s"
    )


def campaign(
    disk: Disk, rng: random.Random, whole: Path, wanted: Records, usual_s: float, faults: int
) -> tuple[Counter[str], int]:
    """Runs, one after another, each struck until it is done or six times; then finished without a
    fault and compared.
    """
    count: Counter[str] = Counter()
    ends = 0
    while count.total() < faults:
        ends += 1
        results = disk.folder / str(ends)
        results.mkdir()
        held: Records = {}
        for _ in range(6):
            if count.total() >= faults:
                break
            count[strike(disk, results, rng, whole, usual_s)] += 1
            held, done = check(results, held, wanted)
            if done:
                break
        assert wait(start(results)) == 0, "the same command did not finish the run"
        held, done = check(results, held, wanted)
        assert done and held == wanted, (done, sorted(held))
        print(f"{count.total()} faults, {ends} rows as the whole one", file=sys.stderr)
    return count, ends


if __name__ == "__main__":
    main()
