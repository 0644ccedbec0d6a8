"""Measured speedup against what `project` computes from a run's records and the machine's round
costs, for every method on one model and dataset.

    python scripts/replayed.py --model tiny --limit 6

The costs of draft steps and verifications are measured apart from the runs, behind every one or
every so many and in their process; of every kind of round the median counts. From a run's record
come the counts of every round, and the time of what no pass tells, in passes of vanilla:
adaptation, tokens that are looked up, and the loop's own work.

A method's row is printed as soon as its run has ended, with the costs so far; the last table has
the costs of all timings. Runs and timings that are in the results folder are not made again, so
that a script that was stopped goes on; every repeat has a folder in it.
"""

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from skipbench.bench.round_costs import measure_rounds
from skipbench.config.catalog import choices
from skipbench.config.compose import compose
from skipbench.contrib.artifact.replay import measured, project
from skipbench.errors import SkipbenchError
from skipbench.experiments.cell import resolve_cell
from skipbench.experiments.last_loaded import LastLoaded
from skipbench.experiments.row import run_cell
from skipbench.metrics.loop_costs import LoopCosts, TimedRound
from skipbench.profile import clock
from skipbench.runs.record import Sample
from skipbench.runs.state import read_status
from skipbench.runs.store import read_samples

LEFT_OUT = ("fixed", "self-sd-c")  # a set by hand, or one that is not stored
ADAPT = ("swift", "clasp", "knapspec", "del", "conflayers", "leap", "cas-spec", "auto")


def median_points(measurements: Sequence[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Per kind of round, the median of its measurements, each over that of one row."""
    ones = [points[0]["verify_s"] for points in measurements]
    return [
        {
            **same[0],
            **{
                k: statistics.median(p[k] / one for p, one in zip(same, ones, strict=True))
                for k in ("draft_s", "verify_s", "behind_s")
            },
        }
        for same in zip(*measurements, strict=True)
    ]


def line(
    name: str, samples: Sequence[Sample], costs: LoopCosts, halves: Sequence[LoopCosts]
) -> dict[str, Any]:
    """A row of the table; `draft` and `verify` are predicted over measured, in vanilla's time.

    `runs +-` is a standard error of what the prediction is off, over prompts and repeats; `costs
    +-` what it owes to the timings of rounds: half of what `halves` of them differ by.
    """
    own, far = measured(samples), project(samples, costs)
    each = [math.log(project([s], costs).micro / measured([s]).micro) for s in samples]
    error = statistics.stdev(each) / math.sqrt(len(each)) if len(each) > 1 else math.nan
    a, b = (math.log(project(samples, half).micro) for half in halves)
    scale = far.vanilla_pass_s / own.vanilla_pass_s
    phases = {
        phase: getattr(far, f"{phase}_s") / getattr(own, f"{phase}_s") / scale
        for phase in ("draft", "verify")
    }
    ratio = far.micro / own.micro
    return {
        "method": name,
        "measured": round(own.micro, 3),
        "predicted": round(far.micro, 3),
        "off": f"{100 * (ratio - 1):+.1f} %",
        "runs +-": f"{100 * error:.1f} %",
        "costs +-": f"{50 * abs(a - b):.1f} %",
        **{k: round(v, 3) for k, v in phases.items()},
        "from the record": f"{100 * (own.adapt_s + own.other_s) / own.decode_s:.0f} %",
        "bar": "5 %" if name in ADAPT else "3 %",
        "held": abs(ratio - 1) <= (0.05 if name in ADAPT else 0.03),
    }


def table(rows: Sequence[dict[str, Any]], head: bool = True) -> None:
    if head and rows:
        print("| " + " | ".join(rows[0]) + " |\n" + "|---" * len(rows[0]) + "|")
    for row in rows:
        print("| " + " | ".join(map(str, row.values())) + " |", flush=True)


def row_of(name: str, samples: Sequence[Sample], points: Sequence[Any], layers: int) -> Any:
    """The method's row with the costs of `points`, timings of every kind of round."""

    def costs_of(measurements: Sequence[Any]) -> LoopCosts:
        rounds = median_points([p["rounds"] for p in measurements])
        return LoopCosts(layers, msgspec.convert(rounds, list[TimedRound]))

    halves = [costs_of(points[i::2] or points) for i in (0, 1)]
    return line(name, samples, costs_of(points), halves)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--dataset", default="mini-stories")
    parser.add_argument("--limit", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--visits", type=int, default=3, help="per kind of round and method")
    parser.add_argument("--every", type=int, default=1, help="rounds are timed behind so many runs")
    parser.add_argument("--repeats", type=int, default=1, help="of all runs, in turns")
    parser.add_argument("--levers", nargs="*", default=["int8"], help="timed in drafts")
    parser.add_argument("--results", default="results/replayed")
    parser.add_argument(
        "--methods",
        nargs="+",
        default=choices("method"),
        help="""names, or settings: "fixed method.skip='window:512'" """,
    )
    parser.add_argument(
        "--cpu-seconds",
        action="store_true",
        help="time of the one thread on its core, for a busy machine",
    )
    args = parser.parse_args()
    if args.cpu_seconds:
        clock.Clock.__init__.__defaults__ = (time.thread_time,)
    base = [
        *(f"model={args.model}", f"dataset={args.dataset}", f"limit={args.limit}"),
        *(f"dataset.max_new_tokens={args.tokens}", f"engine.warmup={args.warmup}"),
    ]
    first = compose([*base, "method=vanilla"])
    load = LastLoaded(always=True)
    lm, found = load(first.model, first.engine)[0], dict[str, list[Sample]]()
    kept = Path(args.results) / "rounds.json"
    points = json.loads(kept.read_text()) if kept.exists() else []
    names = [name for name in args.methods if name not in LEFT_OUT]
    runs = itertools.product(range(args.repeats), names)
    for number, (repeat, name) in enumerate(runs):
        try:
            words = f"method={name} results={args.results}/{repeat}".split()
            config = compose([*base, *words])
            cell = resolve_cell(config)
            done = read_status(cell.folder).done
            if not done:
                run_cell(config, print_table=False, load=load)
        except SkipbenchError as error:
            print(f"{name}: {error}", flush=True)
            continue
        samples = read_samples(cell.folder / "samples.jsonl")
        found.setdefault(name, []).extend(samples)
        if len(points) < 2 if done else number % args.every == 0 or not points:
            prompts = [s.prompt_tokens for s in samples]
            contexts = [min(prompts), max(prompts) + args.tokens]
            contexts = points[0]["contexts"] if points else contexts
            rounds = measure_rounds(lm, contexts, args.visits, lambda: None, set(args.levers))
            points.append({"contexts": contexts, "rounds": msgspec.to_builtins(rounds)})
            kept.write_text(json.dumps(points))
        table([row_of(name, found[name], points, lm.layers)], head=not number)
    print("\nwith all timings:")
    table([row_of(name, samples, points, lm.layers) for name, samples in found.items()])


if __name__ == "__main__":
    main()
