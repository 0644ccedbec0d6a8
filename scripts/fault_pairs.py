"""Two processes at once on one results folder, disturbed again and again:
`python scripts/fault_pairs.py [FAULTS] [SEED]`.

Two processes run one row, at times a method each, or submit one experiment, at about the same
moment. One or both are killed or interrupted, die within a line, have another name of the machine,
or a clock that jumps; or the disk is full or read-only (a small tmpfs where mounting is allowed,
else a limit on the size of files, which gives an error of the same calls), the last line of a file
is torn, garbage or zeros, as a machine that lost its power may leave it, squeue does not answer, or
sbatch refuses.
After every fault the records are readable, those that were there are there and those of an
undisturbed run, none is twice, tables tell no more, and Slurm has no cell twice, once a job that
its submission did not live to write down is cancelled. A process that
ends by itself ends without a traceback; but for kills and full disks no temporary file and no held
lock is left. Then the same command, alone, ends what is left.
"""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections import Counter
from itertools import chain
from pathlib import Path

from scripts.fault_processes import (
    TRACEBACK,
    Disk,
    Prepare,
    Records,
    leftovers,
    load_once,
    nothing,
    records,
    start,
    wait,
)

SAMPLES, METHODS = 3, ("swift", "prompt-lookup")
RUN = [f"method={','.join(METHODS)}", "dataset=mini-math", f"limit={SAMPLES}"]
RUN += ["dataset.max_new_tokens=8", "engine.warmup=0"]
SUBMIT = ["submit", "tiny", "method=uniform", "hardware=slurm-local"]
OF_SLURM, OF_FILES = ("squeue", "sbatch"), ("line", "full", "read-only", "tail")
KINDS = ("SIGKILL", "SIGINT", "SIGTERM", "renamed", "clock", *OF_SLURM, *OF_FILES)
SBATCH = """#!/bin/sh
[ -e {0}/sbatch.fails ] && exit 1
for script; do :; done
count=$(grep -oE 'array=0-[0-9]+' "$script" | grep -oE '[0-9]+$')
for task in $(seq 0 $count); do echo "$$|$$|$task|PENDING" >> {0}/queue; done
cp "$script" {0}/sent/.$$ && mv {0}/sent/.$$ {0}/sent/$$
echo $$
"""
SQUEUE = """#!/bin/sh
[ -e {0}/squeue.fails ] && exit 1
cat {0}/queue
"""


def prepared(kind: str, rng: random.Random) -> Prepare:
    """What befalls a process before its command."""

    def clock() -> None:
        real, jump = time.time, rng.choice((-1e8, -5000.0, 5000.0, 1e8))
        time.time = lambda: real() + jump

    def renamed() -> None:
        socket.gethostname = lambda: "renamed"

    left, part = rng.randrange(3 * SAMPLES), rng.choice((0.0, rng.random()))

    def line() -> None:
        """Dies at a line of a row: before it, or after a part of it."""
        from skipbench.runs import store

        real, lines = store.append_line, [left]

        def append(path: Path, line: str) -> None:
            if lines[0] == 0:
                with open(path, "a") as file:
                    file.write(line[: int(part * len(line))])
                os.kill(os.getpid(), signal.SIGKILL)
            lines[0] -= 1
            real(path, line)

        store.append_line = append

    return {"renamed": renamed, "clock": clock, "line": line}.get(kind, nothing)


def hurt_tail(results: Path, rng: random.Random, whole: Path) -> None:
    """Damages the end of a row's turns or texts, as a crash may."""
    for hurt in rng.sample(paths := sorted(results.glob("runs/*/t*s.jsonl")), min(1, len(paths))):
        line = rng.choice((whole / hurt.relative_to(results)).read_bytes().splitlines())
        torn, zeros = line[: rng.randrange(1, len(line))], bytes(rng.randrange(1, 5000))
        garbage = rng.randbytes(rng.randrange(1, 300)).replace(b"\n", b" ")
        escapes = b"\x1b[2J{not json " + rng.randbytes(40).hex().encode() + b"\n"
        with hurt.open("ab") as file:
            file.write(rng.choice((torn, zeros, garbage, escapes)))


class Slurm:
    """sbatch and squeue on the PATH, and what they were given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "sent").mkdir(parents=True)
        (folder / "queue").touch()
        for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
            (folder / name).write_text(text.format(folder))
            (folder / name).chmod(0o755)

    def fail(self, kind: str, fails: bool) -> None:
        if kind in OF_SLURM:
            path = self.folder / f"{kind}.fails"
            path.touch() if fails else path.unlink()

    def answers(self) -> bool:
        """Whether an sbatch is at work, which may outlive its caller."""
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with contextlib.suppress(OSError):  # over meanwhile
                if str(self.folder / "sbatch").encode() in path.read_bytes():
                    return True
        return False

    def cells(self) -> list[str]:
        """The cells of all scripts that sbatch took."""
        from skipbench.launch.manifest import read_row
        from skipbench.runs.provenance import config_hash

        cells = []
        for text in (path.read_text() for path in self.folder.glob("sent/[0-9]*")):
            rows, first = re.findall(r"array=0-(\d+)|\$\(\((\d+) \+", text)
            path = re.findall(r" runrow (\S+) ", text)[0]
            numbers = range(int(first[1]), int(first[1]) + int(rows[0]) + 1)
            found = [cell for n in numbers for cell in read_row(Path(path), n)]
            cells += [config_hash(cell.config.record()) for cell in found]
        return cells


def settle(results: Path, slurm: Slurm) -> None:
    """What a user does where a submission ended before it wrote the job down: cancels the job."""
    while slurm.answers():
        time.sleep(0.01)
    files = [path.read_text().splitlines() for path in results.glob("submit/*/jobs.jsonl")]
    known = {json.loads(line)["job"] for line in chain(*files)}
    for path in slurm.folder.glob("sent/[0-9]*"):
        if path.name not in known:
            path.unlink()
    queue = slurm.folder / "queue"
    lines = queue.read_text().splitlines(keepends=True)
    queue.write_text("".join(line for line in lines if line.partition("|")[0] in known))


def strike(results: Path, words: list[str], kind: str, rng: random.Random, usual_s: float) -> None:
    """Two processes of one command, or of a method each, one of them or both disturbed."""
    both, least, before = rng.random() < 0.5, rng.randrange(2), leftovers(results)
    children, apart = [], words is RUN and rng.random() < 0.5
    for number, method in enumerate(METHODS):
        own = [f"method={method}", *words[1:]] if apart else words
        fault = prepared(kind, rng) if both or number == least else nothing
        children.append(start(results, own, fault))
        time.sleep(rng.choice((0.0, rng.random() * usual_s / 2)))
    codes: list[int | None] = [None, None]
    if kind.startswith("SIG"):
        time.sleep(rng.random() * usual_s)
        for number, child in enumerate(children):
            if (both or number == least) and (code := wait(child, 0)) is None:
                os.kill(child, getattr(signal, kind))
            else:
                codes[number] = code if both or number == least else None
    codes = [wait(c) if code is None else code for c, code in zip(children, codes, strict=True)]
    assert TRACEBACK not in codes, f"{words[0]} ended in a traceback: {kind}"
    left = {*leftovers(results)} - {*before}
    assert kind in ("SIGKILL", "line", "full") or not left, (kind, left)


def check_tables(results: Path, now: Records) -> None:
    """What runs and their tables tell is that of the records."""
    from skipbench.report.tables.formats import markdown
    from skipbench.report.tables.runs import row_table
    from skipbench.runs.reading import run_folders
    from skipbench.runs.run import read_run

    for run in map(read_run, run_folders(results)):
        own = {index for name, index in now if name == run.id}
        assert own <= run.texts.keys(), "a text is lost"
        assert not run.done or len(own) == SAMPLES, "done, but turns are missing"
        if run.settings:
            shown = f"{SAMPLES}/{SAMPLES}" in markdown(row_table([run], title="faults"))
            assert shown == (run.metrics is not None), "the table is not of the records"
            assert not shown or len(own) == SAMPLES, "a table of a part"


def undisturbed(results: Path, path: str) -> float:
    """Both commands in this process, which then has loaded what they need; seconds of a run."""
    from skipbench.cli.main import main

    slurm = Slurm(results.with_name("alone"))
    os.environ["PATH"] = f"{slurm.folder}:{path}"
    for words in (SUBMIT, RUN):
        sys.argv = ["skipbench", *words, f"results={results}"]
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            main()
    began = time.monotonic()
    assert wait(start(results, RUN)) == 0 and len(slurm.cells()) == 4
    return time.monotonic() - began


def campaign(folder: Path, faults: int, seed: int) -> Counter[str]:
    """Plants the faults; raises AssertionError for what must not be."""
    rng, count, path = random.Random(seed), Counter[str](), os.environ["PATH"]
    disk = Disk(folder / "disk")
    try:
        usual_s = undisturbed(folder / "whole", path)
        whole, number = records(folder / "whole"), 0
        while count.total() < faults:
            number += 1
            results, slurm = disk.folder / f"r{number}", Slurm(folder / f"slurm{number}")
            os.environ["PATH"] = f"{slurm.folder}:{path}"
            for _ in range(rng.randrange(2, 6)):
                kind = rng.choice(KINDS)
                submits = kind in OF_SLURM or (kind not in OF_FILES and rng.random() < 0.4)
                words, before = SUBMIT if submits else RUN, records(results)
                if kind == "tail":
                    hurt_tail(results, rng, folder / "whole")
                slurm.fail(kind, True)
                with disk.failing(kind, rng):
                    strike(results, words, kind, rng, usual_s)
                slurm.fail(kind, False)
                settle(results, slurm)
                count[f"{words[0].partition('=')[0]}: {kind}"] += 1
                now, cells = records(results), slurm.cells()
                assert before.keys() <= now.keys(), f"{kind}: lost"
                assert all(now[key] == whole[key] for key in now), f"{kind}: changed"
                assert len(set(cells)) == len(cells), f"{kind}: sent twice"
                check_tables(results, now)
            for words in (RUN, SUBMIT):
                assert wait(start(results, words)) == 0, f"{words[0]} does not go on"
            cells = slurm.cells()
            assert records(results) == whole and len(set(cells)) == len(cells) == 4, cells
            shutil.rmtree(results)
    finally:
        os.environ["PATH"] = path
        disk.close()
    return count


def main() -> None:
    given, began = [int(word) for word in sys.argv[1:3]], time.monotonic()
    faults, seed = given + [200, 0][len(given) :]
    load_once()
    with tempfile.TemporaryDirectory() as folder:
        count = campaign(Path(folder), faults, seed)
    seconds = time.monotonic() - began
    told = ", ".join(f"{n} {kind}" for kind, n in sorted(count.items()))
    print(f"{count.total()} faults ({told}): nothing lost, nothing twice, {seconds:.0f} s")


if __name__ == "__main__":
    main()
