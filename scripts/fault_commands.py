"""Commands on finished runs, disturbed again and again: `python scripts/fault_commands.py
[FAULTS] [SEED]`.

`score`, `merge`, `table`, `report`, `search` and `submit` are struck as `fault_harness.py` strikes
runs: SIGKILL, SIGTERM and SIGINT at a random moment, a full disk, a limit on the size of files,
read-only results, a clock set back. After every fault the records are readable and the same, what a
command had made before is as it was, and no command that ended by itself left a traceback, a
temporary file or a lock that is held. A command that ended well in spite of a disk, a limit or a
signal counts as no fault. Then the same command ends well, and leaves what an undisturbed one
leaves. `submit` runs its cells here, by the launcher of this machine, and hands them to an sbatch
of a few lines, which keeps the scripts that it accepted, as Slurm does. A submission that ended
before sbatch had answered is settled as its message asks.

The embedded model, short runs, and processes that are forked from this one, so that torch is loaded
once.
"""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.fault_harness import (
    ROOM,
    Disk,
    leftovers,
    limit,
    load_once,
    records,
    set_back,
    start,
    wait,
)

RUN = ["method=uniform", "dataset=mini-code", "limit=2", "dataset.max_new_tokens=12"]
RUN += ["engine.warmup=0"]
SEARCH = ["method=self-sd", "dataset=mini-math", "search.strategy=random", "search.iterations=4"]
SEARCH += ["search.prompts=1", "search.max_new_tokens=4", "engine.warmup=0"]
KINDS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT", "full", "limit", "read-only", "clock")
REMADE = ("table", "report")
"""Commands that make a file anew: until the new one is whole, the old one is there."""
KILLED = ("SIGKILL", "clock")
"""After which temporary files may be there, also of a cell that runs on without its launcher."""
FROM_NOTHING = ("merge", "search", "submit here", "submit")
TRACEBACK = 99
SBATCH = """#!/bin/sh
mkdir -p "$ACCEPTED"
for script; do :; done
number=$(($(ls "$ACCEPTED" | wc -l) + 1))
sleep 0.1
cp "$script" "$ACCEPTED/.new" && mv "$ACCEPTED/.new" "$ACCEPTED/$number" || exit 1
sleep 0.1
echo $number
"""
SQUEUE = """#!/bin/sh
for number in $(ls "$ACCEPTED"); do echo "$number|$number|0|PENDING"; done
"""


class Forked:
    """`subprocess.Popen` for a process of skipbench, without the seconds that torch takes to load:
    a process of its own all the same, in its own session, with handlers as after exec.
    """

    __class_getitem__ = classmethod(types.GenericAlias)

    def __init__(self, command: Sequence[str], env: Mapping[str, str], **how: Any) -> None:
        self.code: int | None = None
        self.waiting = threading.Lock()
        self.pid = os.fork()
        if self.pid:
            return
        code = TRACEBACK
        try:
            for number in (signal.SIGTERM, signal.SIGUSR2):
                signal.signal(number, signal.SIG_DFL)
            if how.get("start_new_session"):
                os.setsid()
            for handle in {1: how.get("stdout"), 2: how.get("stderr")}.items():
                if handle[1] is not None:
                    os.dup2(handle[1].fileno(), handle[0])
            os.environ.update(env)
            sys.argv = ["skipbench", *command[3:]]
            from skipbench.cli.main import main

            main()
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            os._exit(code)

    def wait(self) -> int:
        with self.waiting:  # of several threads, one is told
            if self.code is None:
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def send_signal(self, number: int) -> None:
        if self.code is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


def prepare(folder: Path) -> None:
    """Slurm's commands on the PATH, and cells that are forked."""
    (tools := folder / "tools").mkdir()
    for name, text in (("sbatch", SBATCH), ("squeue", SQUEUE)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    os.environ["PATH"] = f"{tools}:{os.environ['PATH']}"
    from skipbench.launch import local

    forking: Any = types.SimpleNamespace(**vars(subprocess) | {"Popen": Forked})
    local.subprocess = forking  # a fake module


def commands(base: Path) -> dict[str, list[str]]:
    return {
        "score": ["score", "all"],
        "merge": ["merge", str(base)],
        "table": ["table", "tiny", *RUN, "--render-only"],
        "report": ["report"],
        "search": ["search", *SEARCH],
        "submit here": ["submit", "tiny", *RUN, "hardware=local", "hardware.workers=1"],
        "submit": ["submit", "tiny", *RUN, "hardware=slurm-local"],
    }


def left_by(name: str, results: Path) -> Any:
    """What a command leaves, without times."""
    from skipbench.launch.manifest import read_row, tasks
    from skipbench.runs.provenance import config_hash

    if name == "score":
        found = [json.loads(p.read_text()) for p in sorted(results.glob("runs/*/metrics.json"))]
        return [(m["score"], m["score_equal"]) for m in found]
    if name in ("merge", "submit here"):
        states = [json.loads(p.read_text())["state"] for p in results.glob("runs/*/status.json")]
        return records(results), states
    if name == "table":
        places = rf"{tempfile.gettempdir()}/[\w/.-]+"
        return re.sub(places, "RESULTS", (results / "tables" / "tiny.csv").read_text())
    if name == "report":
        return len((results / "report.html").read_text()) > 10_000
    if name == "search":
        lines = [json.loads(line) for line in trials(results)]
        return [(line.get("skip"), line.get("value") is None) for line in lines[1:]]
    manifests = [re.findall(r" cell (\S+) ", text)[0] for text in scripts(accepted_in(results))]
    cells = [config_hash(read_row(Path(path), 0)[0].record()) for path in manifests]
    return sorted(tasks(results)), sorted(cells)  # one twice is none that was wanted


def trials(results: Path) -> list[str]:
    """Whole lines of a search's trace."""
    paths = results.glob("search/*/trace.jsonl")
    return [line for path in paths for line in path.read_text().split("\n")[:-1]]


def accepted_in(results: Path) -> Path:
    return results.with_name(f"{results.name}.accepted")


def scripts(accepted: Path) -> dict[str, str]:
    """The scripts that sbatch took, and their jobs."""
    return {path.read_text(): path.name for path in accepted.glob("[0-9]*")}


def settle(results: Path, accepted: Path) -> int:
    """What a user does where a submission ended before sbatch had answered: looks which jobs there
    are, a second later if need be, as sbatch may outlive the process that called it. Returns the
    number of such submissions.
    """
    settled = 0
    for path in results.glob("submit/*/jobs.jsonl"):
        if not (lines := path.read_text().splitlines()):
            continue  # killed before the first
        last, starts = json.loads(lines[-1]), {json.loads(line)["first"] for line in lines}
        if not last["job"]:
            script = (path.parent / f"{len(starts) - 1}.sh").read_text()
            until = time.monotonic() + 1
            while script not in (taken := scripts(accepted)) and time.monotonic() < until:
                time.sleep(0.01)
            answer = [json.dumps(last | {"job": taken[script]})] if script in taken else []
            path.write_text("".join(f"{line}\n" for line in [*lines[:-1], *answer]))
            settled += 1
    return settled


def make(source: Path, name: str, results: Path) -> None:
    """A copy of finished runs, or an empty folder for a command that makes its own."""
    if name in FROM_NOTHING:
        results.mkdir(parents=True)
    else:
        shutil.copytree(source, results)
    os.environ["ACCEPTED"] = str(accepted_in(results))


def strike(
    disk: Disk, results: Path, words: list[str], rng: random.Random, usual_s: float
) -> tuple[str, bool]:
    """What was planted, and whether it was a fault: not if the command ended well all the same, as
    what was left of a disk was enough, or a signal came too late.
    """
    kind, code = rng.choice(KINDS), None
    if kind.startswith("SIG") or kind == "clock":
        child = start(results, (lambda: set_back(rng)) if kind == "clock" else lambda: None, words)
        code = wait(child, rng.random() * usual_s)
        if code is None:
            os.kill(child, getattr(signal, kind, signal.SIGKILL))
            code = wait(child)
    elif kind == "full" and disk.mounted:
        free_bytes = 4096 * rng.randrange(0, 8)
        for _ in range(100):  # cells whose launcher was killed write on
            if disk.options(f"size={max(4096, disk.used() + free_bytes)}"):  # 0: no limit
                break
        else:
            raise AssertionError("the disk is not full")
        code = wait(start(results, lambda: None, words))
        assert disk.options(f"size={ROOM}")
    elif kind in ("full", "limit"):
        size = rng.randrange(200, 30_000)
        code = wait(start(results, lambda: limit(size), words))
        kind = "limit"
    else:
        if not disk.options("ro"):
            results.chmod(0o555)
        code = wait(start(results, lambda: None, words))
        if not disk.options(f"rw,size={ROOM}"):
            results.chmod(0o755)
    assert code != TRACEBACK, f"{words[0]} ended in a traceback: {kind}"
    return kind, kind == "clock" or code != 0


def end(name: str, results: Path, words: list[str], wanted: Any) -> None:
    """The same command, without a fault.

    A cell whose launcher was killed runs on by itself, and refuses a second one meanwhile.
    """
    until = time.monotonic() + 60
    while True:
        code = wait(start(results, lambda: None, words))
        left = left_by(name, results) if code == 0 else None
        if left == wanted or name != "submit here" or time.monotonic() > until:
            break
    assert code == 0, f"{name} does not go on"
    assert left == wanted, f"{name} left {left}\nnot {wanted}"


def main() -> None:
    faults, seed = (int(a) for a in [*sys.argv[1:], "200", "0"][:2])
    rng, began = random.Random(seed), time.monotonic()
    count, enough, settled = Counter[str](), Counter[str](), 0
    load_once()
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        base, alone = Path(folder) / "base", Path(folder) / "alone"
        assert wait(start(base, lambda: None, RUN)) == 0, "the undisturbed run failed"
        whole, wanted, usual = records(base), {}, {}
        for name, words in commands(base).items():
            make(base, name, alone / name)
            at = time.monotonic()
            assert wait(start(alone / name, lambda: None, words)) == 0, f"{name} failed"
            usual[name], wanted[name] = time.monotonic() - at, left_by(name, alone / name)
        disk = Disk(Path(folder) / "disk")
        try:
            while sum(count.values()) < faults:
                name = rng.choice([*wanted])
                words = commands(base)[name]
                again = name in REMADE and rng.random() < 0.5
                results = disk.folder / str(sum((count + enough).values()))
                make(alone / name if again else base, name, results)
                for number in range(rng.randrange(1, 3)):
                    before = trials(results)
                    kind, struck = strike(disk, results, words, rng, usual[name])
                    settled += settle(results, accepted_in(results))
                    kind = f"{name}: {kind}"
                    (count if struck else enough)[kind] += 1
                    now = records(results)
                    assert all(now[i] == whole[i] for i in now), f"{kind}: a record has changed"
                    assert name in FROM_NOTHING or now.keys() == whole.keys(), f"{kind}: lost"
                    assert number or kind.endswith(KILLED) or not leftovers(results), (
                        f"{kind}: {leftovers(results)}"
                    )
                    assert struck or left_by(name, results) == wanted[name], f"{kind}: half done"
                    assert trials(results)[: len(before)] == before, f"{kind}: a trial is lost"
                    assert not again or left_by(name, results) == wanted[name], (
                        f"{kind}: half a file"
                    )
                end(name, results, words, wanted[name])
                shutil.rmtree(results, ignore_errors=True)  # a cell may still write its table
        finally:
            disk.close()
            print(f"{sum(count.values())} faults planted", file=sys.stderr)
    told = ", ".join(f"{n} {kind}" for kind, n in sorted(count.items()))
    told += f"; {sum(enough.values())} more that came too late, or left enough room; "
    told += f"{settled} times sbatch had not answered"
    place, seconds = "tmpfs" if disk.mounted else "no mount allowed", time.monotonic() - began
    print(f"{faults} faults ({told}; {place}): nothing lost, {seconds:.0f} s")


if __name__ == "__main__":
    main()
