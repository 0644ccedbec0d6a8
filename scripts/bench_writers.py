"""Many processes on one results folder: `python scripts/bench_writers.py RUN [CELLS PROCESSES
PAUSE_MS]`.

RUN is the folder of a real run; a cell writes its records under other settings and decodes nothing,
so that what is timed is the store alone. Cells are taken by each process in the same order: the
second on a cell leaves it with a message, and goes on. One more process renders a table all the
while. Printed is the store's time per cell, by one process and by many, against the seconds that
the real run decoded. Without a pause the writers do nothing but write, which tests what they keep;
more of them than processors then also wait for a processor. With PAUSE_MS each cell sleeps so long
in all, as one does that decodes on a device of its own.
"""

import argparse
import json
import multiprocessing
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.runs import row_table
from skipbench.runs.provenance import config_hash, run_name
from skipbench.runs.reading import run_folders
from skipbench.runs.run import Run, read_run
from skipbench.runs.state import read_status
from skipbench.runs.store import RunStore

Told = dict[str, Any]


def write_cells(
    run: Path, results: Path, cells: int, share: int, pause_s: float, pipe: Any
) -> None:
    """Takes every cell that nobody has; tells how many, how many another process had, and the
    seconds in the store.
    """
    real = read_run(run)
    told: Counter[str] = Counter()
    spent, processor = 0.0, 0.0
    pipe.recv()  # all begin at once
    # The first cells are fought for by all; from there on each begins elsewhere, as tasks of an
    # array do.
    order = [*range(min(20, cells)), *(range(share, cells)), *range(share)]
    for seed in order:
        settings = real.settings | {"seed": seed}
        folder = results / "runs" / run_name(["tiny", "cell"], config_hash(settings))
        began, busy = time.perf_counter(), time.process_time()
        try:
            if read_status(folder).done:
                told["done already"] += 1
                continue
            slept = write(folder, settings, real, pause_s)
        except SkipbenchError as error:
            if "another process" not in str(error):
                raise
            told["held by another"] += 1
            continue
        told["written"] += 1
        spent, processor = (
            spent + time.perf_counter() - began - slept,
            processor + time.process_time() - busy,
        )
    pipe.send((dict(told), spent, processor))


def write(folder: Path, settings: Told, real: Run, pause_s: float) -> float:
    """All that a run asks of its folder; returns the seconds slept."""
    slept = 0.0
    store = RunStore(folder, settings, real.provenance)
    try:
        there = {s.index for s in store.samples()}
        if read_status(folder).done:
            return slept
        store.status("running")
        for sample in real.samples:
            if sample.index not in there:
                slept += nap(pause_s / len(real.samples))
                store.append(sample)
        store.write_metrics(real.measured)
        store.status("done")
    finally:
        store.close()
    return slept


def nap(seconds: float) -> float:
    """Sleeps, and returns how long it was; without a pause it does not even hand on the
    processor.
    """
    began = time.perf_counter()
    if seconds:
        time.sleep(seconds)
    return time.perf_counter() - began


def render(results: Path, pipe: Any) -> None:
    """Tables while others write; every row is a whole one or has no numbers."""
    tables = 0
    while not pipe.poll():
        if run_folders(results):
            runs = [read_run(folder) for folder in run_folders(results)]
            text = markdown(row_table(runs, title="writers"))
            assert text.count("not run") + text.count("| tiny") >= len(runs)
            assert all(run.measured.M for run in runs if run.done)
            tables += 1
    pipe.send(tables)


def campaign(
    run: Path, results: Path, cells: int, processes: int, pause_s: float
) -> tuple[Counter[str], float, float, float, int]:
    """What the writers tell, summed; seconds in the store by the clock and of processor; seconds in
    all; tables rendered.
    """
    context = multiprocessing.get_context("spawn")
    ends = [context.Pipe() for _ in range(processes + 1)]
    jobs = [
        context.Process(
            target=write_cells,
            args=(run, results, cells, i * cells // processes, pause_s, ends[i][1]),
        )
        for i in range(processes)
    ]
    jobs.append(context.Process(target=render, args=(results, ends[-1][1])))
    for job in jobs:
        job.start()
    for _, far in ends:
        far.close()  # so that the death of a process is noticed
    began = time.perf_counter()
    for end, _ in ends[:-1]:
        end.send("go")
    told, spent, processor = Counter[str](), 0.0, 0.0
    for end, _ in ends[:-1]:
        counts, seconds, busy = end.recv()
        told, spent, processor = told + Counter(counts), spent + seconds, processor + busy
    took = time.perf_counter() - began
    ends[-1][0].send("stop")
    tables = ends[-1][0].recv()
    for job in jobs:
        job.join()
    return told, spent, processor, took, tables


def check(run: Path, results: Path, cells: int) -> None:
    """Nothing lost, nothing twice, every cell done."""
    wanted = read_run(run).samples
    folders = run_folders(results)
    assert len(folders) == cells, f"{len(folders)} of {cells} cells"
    for folder in folders:
        assert read_status(folder).done, folder
        found = read_run(folder).samples  # each names its own run
        own = [replace(sample, config_hash=found[0].config_hash) for sample in wanted]
        assert found == own, folder
    assert len(run_folders(results)) == cells


def arguments(usage: str | None, **sizes: int) -> tuple[Path, list[int]]:
    """A finished run's folder and numbers with their defaults, from the command line."""
    parser = argparse.ArgumentParser(
        description=usage, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a run that is done")
    for name, default in sizes.items():
        parser.add_argument(name, type=int, nargs="?", default=default)
    args = parser.parse_args()
    if not (args.run / "samples.jsonl").exists():
        parser.error(f"{args.run} holds no samples.jsonl; run a cell first: python -m skipbench")
    return args.run, [getattr(args, name) for name in sizes]


def main() -> None:
    run, (cells, processes, pause_ms) = arguments(__doc__, cells=500, processes=8, pause_ms=0)
    decoded = sum(s.vanilla.seconds.total + s.method.seconds.total for s in read_run(run).samples)
    each = {}
    for writers in (1, processes):
        with tempfile.TemporaryDirectory() as folder:
            told, spent, processor, took, tables = campaign(
                run, Path(folder), cells, writers, pause_ms / 1000
            )
            check(run, Path(folder), cells)
        each[writers] = spent / cells, processor / cells
        print(
            f"{writers} processes: {cells} cells in {took:.1f} s, {json.dumps(told)}, {tables} "
            f"tables meanwhile; in the store {1000 * spent / cells:.1f} ms per cell by the clock, "
            f"{1000 * processor / cells:.1f} ms of processor"
        )
    more = [many - one for one, many in zip(each[1], each[processes], strict=True)]
    print(
        f"a real cell decodes for {decoded:.2f} s: {processes} processes cost "
        f"{100 * more[0] / decoded:.2f} % of it more by the clock, {100 * more[1] / decoded:.2f} % "
        "more of the processor"
    )


if __name__ == "__main__":
    main()
