"""KnapSpec's Eq. 1 held against the measured M of runs: the median of Eq. 1 / M by method.

    python scripts/eq1.py results/*/figures/*.json results/runs/*

Takes figures' records and run folders. Every run counts once. Eq. 1 takes the tokens of a draft to
be accepted independently of one another and of where the draft ends: where a stop rule ends drafts
at doubtful tokens, it gives less than M.
"""

import argparse
import statistics
from collections.abc import Iterator
from pathlib import Path

from skipbench.metrics.acceptance import expected_M
from skipbench.report.figures.runs import read_runs
from skipbench.runs.record import Round
from skipbench.runs.run import read_run


def rounds_of(paths: list[Path]) -> Iterator[tuple[str, list[Round]]]:
    """Method and rounds of every run, those that stand in several files once."""
    seen: set[str] = set()
    for path in paths:
        for run in [read_run(path)] if path.is_dir() else read_runs(path)[1]:
            if str(run.id) not in seen:
                seen.add(str(run.id))
                yield run.method, [r for s in run.samples for r in s.method.rounds]


def ratios(paths: list[Path]) -> dict[str, list[float]]:
    """By method, Eq. 1 over M of every run that drafted."""
    by_method: dict[str, list[float]] = {}
    for method, rounds in rounds_of(paths):
        expected = expected_M(rounds)
        if expected is not None and any(r.steps for r in rounds):
            measured = statistics.fmean(r.emitted for r in rounds)
            by_method.setdefault(method, []).append(expected / measured)
    return by_method


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("paths", nargs="+", type=Path)
    print("| method | runs | median of Eq. 1 / M | least | most |\n|---|---|---|---|---|")
    for method, found in sorted(ratios(parser.parse_args().paths).items()):
        middle = statistics.median(found)
        print(f"| {method} | {len(found)} | {middle:.2f} | {min(found):.2f} | {max(found):.2f} |")


if __name__ == "__main__":
    main()
