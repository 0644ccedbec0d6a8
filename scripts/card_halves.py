"""How well a card of half of the prompts predicts M, tokens per pass, of the other half.

    python scripts/card_halves.py results/laptop/records/*.jsonl.xz

Halves are of each task of the dataset, and the turns of a question stay together. Both halves are
of the same kind, so that the error is what the choice of prompts does: no card can be nearer. By
run: its prompts, the error of every second question, its standard deviation over random halves,
the share of these halves within the bound, the share within the cards' own 95 % intervals, and the
prompts from which that deviation is the bound.
"""

import math
import random
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from statistics import fmean, pstdev

from scripts.pack_records import unpacked
from skipbench.errors import SkipbenchError
from skipbench.metrics.card import Request, acceptances, card_of
from skipbench.runs.run import Run

SPLITS = 200
CHAIN, OTHER = 0.02, 0.04
ADAPT = {"swift", "clasp", "knapspec", "leap", "asd", "conflayers", "cas-spec", "auto"}


def halves(questions: list[list[Request]], draw: random.Random | None) -> Iterator[list[Request]]:
    """Two halves of questions, which come by task; every second one without `draw`."""
    parts: tuple[list[Request], list[Request]] = ([], [])
    turn = 0
    for _, same in groupby(questions, lambda turns: turns[0].groups.get("task")):
        listed = list(same)
        if draw:
            draw.shuffle(listed)
            turn = draw.randrange(2)
        for turns in listed:
            parts[turn % 2].extend(turns)
            turn += 1
    yield from parts


def error(parts: Iterable[list[Request]]) -> tuple[float, bool]:
    """The relative error of M, and whether both halves' intervals together allow it."""
    card, held_back = (acceptances(part)[0] for part in parts)
    ends = [part.M_ci95 or (math.inf, math.inf) for part in (card, held_back)]
    half = math.hypot(
        *(math.log(high / low) / 2 if high < math.inf else high for low, high in ends)
    )
    return card.M / held_back.M - 1, abs(math.log(card.M / held_back.M)) < half


def main() -> None:
    print(f"{'':<52} prompts  error     sd  within bound  interval  prompts for it")
    for name in sys.argv[1:]:
        for run, samples in unpacked(Path(name)).items():
            try:
                made = card_of(Run(id=run, kept_samples=samples), 0, {})
            except SkipbenchError:  # vanilla
                continue
            ordered = sorted(made.requests, key=lambda r: (r.groups.get("task", ""), r.question))
            questions = [list(turns) for _, turns in groupby(ordered, lambda r: r.question)]
            draw = random.Random(0)
            pairs = [error(halves(questions, draw)) for _ in range(SPLITS)]
            errors, covered = [e for e, _ in pairs], fmean(inside for _, inside in pairs)
            tree = any(r.per_step_nodes for r in ordered)
            bound = OTHER if tree or run.split("_")[1] in ADAPT else CHAIN
            sd, within = pstdev(errors), sum(abs(e) < bound for e in errors) / SPLITS
            needed = round(len(ordered) * (sd / bound) ** 2)
            print(
                f"{run[:52]:<52} {len(ordered):>7} {error(halves(questions, None))[0]:>+6.1%} "
                f"{sd:>6.1%} {within:>6.0%} in {bound:.0%} {covered:>9.0%} {needed:>15,}"
            )


if __name__ == "__main__":
    main()
