"""Commands that work on finished runs, disturbed again and again: `python scripts/fault_commands.py
[FAULTS] [SEED]`.

`score`, `index`, `merge`, `table`, `report` and `search` are struck as `fault_harness.py` strikes
runs: SIGKILL and SIGTERM at a random moment, a full disk, a limit on the size of files, read-only
results, a clock set back. After every fault the records are readable and the same; the same command
then ends well, and leaves what an undisturbed one leaves.
"""

import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from scripts.fault_harness import ROOM, Disk, limit, load_once, records, set_back, start, wait

RUN = [
    *("method=uniform", "dataset=mini-code", "limit=3", "dataset.max_new_tokens=24"),
    "engine.warmup=0",
]
SEARCH = [
    *(
        "search",
        "method=self-sd",
        "dataset=mini-math",
        "search.strategy=random",
        "search.iterations=6",
    ),
    *("search.prompts=1", "search.max_new_tokens=8", "engine.warmup=0"),
]
KINDS = ("SIGKILL", "SIGKILL", "SIGTERM", "full", "limit", "read-only", "clock")


def commands(base: Path) -> dict[str, list[str]]:
    return {
        "score": ["score", "all"],
        "index": ["index"],
        "merge": ["merge", str(base)],
        "table": ["table", "tiny", *RUN, "--render-only"],
        "report": ["report"],
        "search": SEARCH,
    }


def left_by(name: str, results: Path) -> Any:
    """What a command leaves, without times."""
    if name == "score":
        found = [json.loads(p.read_text()) for p in sorted(results.glob("runs/*/metrics.json"))]
        return [(m["score"], m["score_equal"]) for m in found]
    if name == "index":
        from skipbench.runs.index import read_runs

        return read_runs(results)[["run", "samples", "M", "alpha", "state"]].to_dict("records")
    if name == "merge":
        return records(results)
    if name == "table":
        return (results / "tables" / "tiny.csv").read_text().replace(str(results), "RESULTS")
    if name == "report":
        return len((results / "report.html").read_text()) > 10_000
    (trace,) = results.glob("search/*/trace.jsonl")
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    return [(line.get("skip"), line.get("value") is None) for line in lines[1:]]


def make(base: Path, name: str, results: Path) -> None:
    """A copy of the finished runs, or an empty folder for a command that makes its own."""
    results.mkdir(parents=True)
    if name not in ("merge", "search"):
        shutil.copytree(base / "runs", results / "runs")


def strike(disk: Disk, results: Path, words: list[str], rng: random.Random, usual_s: float) -> str:
    kind = rng.choice(KINDS)
    if kind in ("SIGKILL", "SIGTERM", "clock"):
        child = start(results, (lambda: set_back(rng)) if kind == "clock" else lambda: None, words)
        if wait(child, rng.random() * usual_s) is None:
            os.kill(child, signal.SIGTERM if kind == "SIGTERM" else signal.SIGKILL)
            wait(child)
    elif kind == "full" and disk.mounted:
        disk.options(f"size={disk.used() + 4096 * rng.randrange(0, 16)}")
        wait(start(results, lambda: None, words))
        disk.options(f"size={ROOM}")
    elif kind in ("full", "limit"):
        size = rng.randrange(200, 30_000)
        wait(start(results, lambda: limit(size), words))
        kind = "limit"
    else:
        if not disk.options("ro"):
            results.chmod(0o555)
        wait(start(results, lambda: None, words))
        if not disk.options(f"rw,size={ROOM}"):
            results.chmod(0o755)
    return kind


def main() -> None:
    faults, seed = (int(a) for a in [*sys.argv[1:], "200", "0"][:2])
    rng, count, began = random.Random(seed), Counter[str](), time.monotonic()
    load_once()
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        assert wait(start(base, lambda: None, RUN)) == 0, "the undisturbed run failed"
        whole, wanted, usual = records(base), {}, {}
        for name, words in commands(base).items():
            make(base, name, alone := Path(folder) / "alone" / name)
            at = time.monotonic()
            assert wait(start(alone, lambda: None, words)) == 0, f"undisturbed {name} failed"
            usual[name], wanted[name] = time.monotonic() - at, left_by(name, alone)
        disk = Disk(Path(folder) / "disk")
        try:
            while sum(count.values()) < faults:
                name = rng.choice([*wanted])
                words = commands(base)[name]
                make(base, name, results := disk.folder / str(sum(count.values())))
                for _ in range(rng.randrange(1, 3)):
                    count[f"{name}: {strike(disk, results, words, rng, usual[name])}"] += 1
                    now = records(results)
                    assert all(now[i] == whole[i] for i in now), "a record has changed"
                    assert name in ("merge", "search") or now.keys() == whole.keys(), "lost"
                assert wait(start(results, lambda: None, words)) == 0, f"{name} does not go on"
                found = left_by(name, results)
                assert found == wanted[name], f"{name} left {found}\nnot {wanted[name]}"
                shutil.rmtree(results)
        finally:
            disk.close()
    told = ", ".join(f"{n} {kind}" for kind, n in sorted(count.items()))
    print(f"{faults} faults ({told}): nothing lost, {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
