"""Short rows of the embedded model, five methods by turns, disturbed again and again:
`python scripts/fault_harness.py [FAULTS] [SEED]`.

After every fault the records must be readable, hold what they held, and nothing twice; a run that
is done must equal an undisturbed one in every token and count. Runs are real ones, in processes
forked from this one so that torch is loaded once.

Faults: SIGKILL and SIGTERM at a random moment; a full disk (a small tmpfs where mounting is
allowed, else a limit on the size of files, which gives the same error of the same calls); read-only
results; a clock set back in the run's process; a last line that is torn, garbage or zeros, as a
machine that lost its power may leave it.
"""

import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

# no threads: this process forks
os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"
SAMPLES = 3
METHODS = ("uniform", "swift", "prompt-lookup", "suffix", "conflayers")
"""With and without a state that goes from prompt to prompt."""
WORDS = [
    f"method={','.join(METHODS)}",
    "dataset=mini-math",
    f"limit={SAMPLES}",
    "dataset.max_new_tokens=8",
    "engine.warmup=0",
]
Records = dict[tuple[str, int], Any]
"""By run and prompt."""
Prepare = Callable[[], None]
"""What befalls a process before its command."""
ROOM = "64m"
TRACEBACK = 99
"""Exit status of a command that ended in one."""


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


def nothing() -> None:
    """No fault."""


def start(results: Path, prepare: Prepare = nothing, words: Sequence[str] = WORDS) -> int:
    """A run, or another command, in a process of its own, as the command line starts it; returns
    its process id.
    """
    child = os.fork()
    if child:
        return child
    code = TRACEBACK
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # which the shell ignores in the background
    try:
        aloud, quiet = os.dup(2), os.open(os.devnull, os.O_RDWR)
        for handle in (0, 1, 2):
            os.dup2(quiet, handle)
        prepare()
        from skipbench.cli.main import main

        sys.argv = ["skipbench", *words, f"results={results}"]
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        os.write(aloud, traceback.format_exc().encode())
    finally:
        os._exit(code)


def wait(child: int, seconds: float | None = None) -> int | None:
    """Its exit status (negative: the signal that ended it), None while it runs on after
    `seconds`.
    """
    end = None if seconds is None else time.monotonic() + seconds
    while True:
        found, status = os.waitpid(child, 0 if end is None else os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if end is not None and time.monotonic() > end:
            return None
        time.sleep(0.002)


def until(child: int, results: Path, more: int) -> None:
    """Waits until the run has written so many samples more, or is about to end."""

    def lines() -> int:
        return sum(p.read_bytes().count(b"\n") for p in results.glob("runs/*/samples.jsonl"))

    goal = min(lines() + more, SAMPLES * len(METHODS) - 1)
    ended = os.WEXITED | os.WNOHANG | os.WNOWAIT
    while lines() < goal and os.waitid(os.P_PID, child, ended) is None:
        time.sleep(0.002)


def records(results: Path) -> Records:
    """Every sample without what was measured, and without the order of its turn, in which only the
    arms take part that lack the prompt. Raises what a reader raises.
    """
    import msgspec

    from skipbench.runs.record import MEASURED
    from skipbench.runs.store import read_samples

    found = {}
    for path in results.glob("runs/[!.]*/samples.jsonl"):  # a copy that was stopped is none
        for sample in read_samples(path):
            raw = msgspec.to_builtins(sample)
            for arm in ("vanilla", "method"):
                for measured in MEASURED:
                    del raw[arm][measured]
            del raw["order"]
            raw["trace"].pop("setup_s", None)  # of each process
            found[path.parent.name, sample.index] = raw
    return found


def leftovers(results: Path) -> list[str]:
    """Temporary files, and locks that are held."""
    left = [str(path) for path in results.rglob(".*") if path.name != ".lock"]
    for lock in results.rglob(".lock"):
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                left.append(str(lock))
    return left


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
        own = {index for name, index in now if name == folder.name}
        assert own <= run.completions.keys(), "a text is lost"
        assert not run.done or len(own) == SAMPLES, "done, but samples are missing"
        done += run.done
        if run.settings:
            text = markdown(row_table([run], title="harness"))
            shown = f"{SAMPLES}/{SAMPLES}" in text
            assert shown == (run.metrics is not None), "the table is not of the records"
            assert not shown or len(own) == SAMPLES, "a table of a part"
    return now, done == len(METHODS)


def hurt_tail(results: Path, rng: random.Random, whole: Path) -> str:
    """Damages the end of a `samples.jsonl` as a crash may: of a run that is not done, whose file is
    sealed by its digest.
    """
    from skipbench.runs.state import read_status

    known = sorted(results.glob("runs/*/samples.jsonl"))
    status = "status.json"
    paths = [p for p in known if not (p.with_name(status).exists() and read_status(p.parent).done)]
    if not paths:
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


def states(results: Path) -> set[tuple[Path, str]]:
    """What every `status.json` says; one that was killed before may say running."""
    return {(path, path.read_text()) for path in results.glob("runs/*/status.json")}


def strike(disk: Disk, results: Path, rng: random.Random, whole: Path, usual_s: float) -> str:
    """One run with one fault; returns what it was."""
    kind = rng.choice(
        ["SIGKILL", "SIGKILL", "SIGTERM", "SIGTERM", "full", "limit", "read-only", "clock", "tail"]
    )
    if kind in ("SIGKILL", "SIGTERM", "clock"):
        child = start(results, set_back if kind == "clock" else nothing)
        if rng.random() < 0.7:  # among the samples, rather than while the model is loaded
            until(child, results, rng.randrange(1, SAMPLES * len(METHODS)))
        if wait(child, rng.random() * usual_s * 0.1) is None:
            os.kill(child, signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
            wait(child)
    elif kind == "full" and disk.mounted:
        # statvfs of tmpfs tells whole pages, and so does its size
        disk.options(f"size={max(4096, disk.used() + 4096 * rng.randrange(0, 16))}")  # 0: no limit
        before = states(results)
        code = wait(start(results))
        left = states(results) - before
        disk.options(f"size={ROOM}")
        running = any(json.loads(text)["state"] == "running" for _, text in left)
        assert code == 0 or not running, "a full disk left a state running"
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


def load_once() -> None:
    """Everything that a run imports, also swift's search and the tables, the model's files, and
    what processes keep of settings and sources.
    """
    import bayes_opt  # noqa: F401  # imported ahead
    import pandas  # noqa: F401  # imported ahead
    import torch

    from skipbench.config.catalog import known_models
    from skipbench.config.compose import compose
    from skipbench.models.load import load
    from skipbench.runs.source import method_sha256, package_sha256

    for name in METHODS:
        method_sha256(compose([*WORDS[1:], f"method={name}"]).method)
    package_sha256("fused")
    torch.set_num_threads(1)
    load(compose(WORDS[1:]).model.path)
    known_models()


def told(count: Counter[str]) -> str:
    return ", ".join(f"{n} {kind}" for kind, n in sorted(count.items()))


def arguments() -> tuple[int, int]:
    """FAULTS and SEED of the command line."""
    given = [int(word) for word in sys.argv[1:3]]
    faults, seed = given + [200, 0][len(given) :]
    return faults, seed


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
