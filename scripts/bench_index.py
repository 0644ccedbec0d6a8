"""Times the index of a results folder: `python scripts/bench_index.py RUN [RUNS SAMPLES]`.

RUN is the folder of a real run; its records are repeated under other indices and settings in a
temporary folder.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

from skipbench.runs.provenance import config_hash, run_name

METHODS, DATASETS = (
    ("self-sd", "swift", "clasp", "knapspec"),
    ("mini-stories", "mini-math", "mini-code", "mini-summary"),
)
BUILD = "import sys; from skipbench.cli.main import main; main()"
ASK = """
import resource, sys, time
from pathlib import Path
began = time.perf_counter()
from skipbench.report.tables.runs import markdown_table
from skipbench.runs.index import read_runs, read_sample_rows, rows_for_table
loaded = time.perf_counter()
runs = read_runs(Path(sys.argv[1]))
chosen = runs[(runs.method == "swift") & (runs.dataset == "mini-math")]
text = markdown_table("one method, one dataset", rows_for_table(chosen))
told = time.perf_counter()
rows = read_sample_rows(Path(sys.argv[1]), ["run", "steps", "accepted", "emitted", "rounds"])
joined = rows.merge(runs[["run", "method", "dataset"]], on="run")
sums = joined.groupby(["method", "dataset"])[["accepted", "steps"]].sum()
pooled = time.perf_counter()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"import {loaded - began:.2f} s, table of {len(chosen)} runs {told - loaded:.2f} s, "
      f"alpha pooled over {len(rows)} samples by {len(sums)} cells {pooled - told:.2f} s; "
      f"peak {peak:.0f} MB")
"""


def make(run: Path, results: Path, runs: int, samples: int) -> None:
    """Run folders that the index takes for real ones."""
    config = yaml.safe_load((run / "config.yaml").read_text())
    metrics = json.loads((run / "metrics.json").read_text())
    status = json.loads((run / "status.json").read_text())
    status.pop("sha256", None)
    lines = [line.split(",", 1)[1] for line in (run / "samples.jsonl").read_text().splitlines()]
    text = "".join(f'{{"index":{i},{lines[i % len(lines)]}\n' for i in range(samples))
    for seed in range(runs):
        config |= {"seed": seed, "limit": samples}
        config["method"] |= {"name": METHODS[seed % 4]}
        config["dataset"] |= {"name": DATASETS[seed // 4 % 4]}
        parts = [config[k]["name"] for k in ("model", "method", "dataset")]
        folder = results / "runs" / run_name(parts, config_hash(config))
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
        (folder / "samples.jsonl").write_text(text)
        shutil.copy(run / "provenance.json", folder)
        # without the digests of the run that was copied
        (folder / "status.json").write_text(json.dumps(status))
        (folder / "metrics.json").write_text(json.dumps(metrics | {"samples": samples}))


def timed(command: list[str]) -> str:
    """Seconds by the clock and of processor time, and the peak of all processes together: each is
    asked for its own once every 0.2 s.
    """
    began, peak, before = time.perf_counter(), 0.0, os.times()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    while process.poll() is None:
        peak = max(peak, memory_mb(process.pid))
        time.sleep(0.2)
    assert process.stdout is not None and process.returncode == 0, process.returncode
    took, after = time.perf_counter() - began, os.times()
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return (
        f"{took:.1f} s ({cpu:.1f} s of processor), peak {peak:.0f} MB; "
        f"{process.stdout.read().strip()}"
    )


def memory_mb(session: int) -> float:
    """Proportional set size of every process of a session, so that shared pages count once."""
    total = 0.0
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and os.getsid(int(entry.name)) == session:
                rollup = (entry / "smaps_rollup").read_text()
                total += (
                    next(
                        int(line.split()[1])
                        for line in rollup.splitlines()
                        if line.startswith("Pss:")
                    )
                    / 1024
                )
        except (OSError, StopIteration):
            continue
    return total


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
    run, (runs, samples) = arguments(__doc__, runs=2000, samples=200)
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder)
        make(run, results, runs, samples)
        size = sum(p.stat().st_size for p in results.glob("runs/*/samples.jsonl"))
        print(
            f"{runs} runs x {samples} samples, {size / 2**20:.0f} MiB of samples, "
            f"{os.cpu_count()} cores"
        )
        command = [sys.executable, "-c", BUILD, "index", f"results={results}"]
        print("from nothing:", timed(command))
        print("nothing changed:", timed(command))
        one = next(results.glob("runs/*/status.json"))
        one.write_text(json.dumps(json.loads(one.read_text()) | {"error": "changed"}))
        print("one run changed:", timed(command))
        kept = sum(p.stat().st_size for p in results.glob("index/*.parquet"))
        print(f"index of {kept / 2**20:.1f} MiB")
        print(
            "asking:",
            subprocess.check_output([sys.executable, "-c", ASK, folder], text=True).strip(),
        )


if __name__ == "__main__":
    main()
