"""The noise of this machine: vanilla beside itself, and ratios of a row in two processes.

    python scripts/noise.py --rows 20 limit=8 engine.warmup=1
    python scripts/noise.py --pair prompt-lookup,suffix model=smollm2-135m dataset=tuning limit=24

The first makes small rows, each with a seed, which orders its arms, of its own, and counts the
intervals that hold 1: 19 of 20 are expected to, and 99 of 100 with ten prompts or fewer. The second
tells how far the speedup of each method, and their ratio, in one process are from those in the
other. More words are overrides.
"""

import argparse
import math
import tempfile
from itertools import combinations

from skipbench.config.compose import compose
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.row import run_row
from skipbench.metrics.interval import geometric
from skipbench.runs.measures import Speedup
from skipbench.runs.run import Run


def speedups_of(words: list[str], methods: list[str], load: LastLoaded) -> list[Speedup]:
    """The speedups of the arms of one row."""
    found = []
    for outcome in run_row([compose([*words, f"method={name}"]) for name in methods], load):
        if not isinstance(outcome, Run) or outcome.metrics is None:
            raise SystemExit(f"{words}: {outcome}")
        found.append(outcome.metrics.speedup)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20)
    parser.add_argument("--pair", help="methods with commas, one or more")
    args, words = parser.parse_known_args()
    load, held = LastLoaded(), 0
    with tempfile.TemporaryDirectory() as folder:
        if args.pair:
            names = args.pair.split(",")
            both = [
                [geometric([*each.values()]) for each in s.by_process or []]
                for s in speedups_of([f"results={folder}", "repeats=2", *words], names, load)
            ]
            logs = {
                name: [math.log(r) for r in each] for name, each in zip(names, both, strict=True)
            }
            for a, b in combinations(names, 2):
                logs[f"{a} / {b}"] = [x - y for x, y in zip(logs[a], logs[b], strict=True)]
            for name, (one, two) in logs.items():
                apart = 100 * abs(math.expm1(one - two))
                print(f"{name}: {math.exp(one):.4f}, {math.exp(two):.4f}, apart {apart:.2f} %")
            return
        for row in range(args.rows):
            own = [f"results={folder}/{row}", f"seed={row}", *words]
            ratio, ends = speedups_of(own, ["vanilla"], load)[0].headline[:2]
            held += ends is not None and ends[0] <= 1 <= ends[1]
            print(
                f"row {row + 1}: {ratio:.4f} {ends and [round(end, 4) for end in ends]}", flush=True
            )
    print(f"{held} of {args.rows} intervals hold 1")


if __name__ == "__main__":
    main()
