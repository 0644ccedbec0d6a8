"""How well a card of half of the prompts predicts M, tokens per pass, of the other half.

    python scripts/card_halves.py results/laptop/records/*.jsonl.xz

Halves are of each task of the dataset, and the turns of a question stay together. Both halves are
of the same kind, so that the error is what the choice of prompts does: no card can be nearer. By
run: its prompts, the error of every second question, its standard deviation over random halves,
the share of these halves within the bound, and the prompts from which that deviation is the bound.
"""

import random
import sys
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from statistics import pstdev

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


def error(parts: Iterable[list[Request]]) -> float:
    card, held_back = (acceptances(part)[0].M for part in parts)
    return card / held_back - 1


def main() -> None:
    print(f"{'':<52} prompts  error     sd  within bound  prompts for it")
    for name in sys.argv[1:]:
        for run, samples in unpacked(Path(name)).items():
            try:
                made = card_of(Run(id=run, kept_samples=samples), 0, {})
            except SkipbenchError:  # vanilla
                continue
            ordered = sorted(made.requests, key=lambda r: (r.groups.get("task", ""), r.question))
            if len({r.question for r in ordered}) == 1:  # one file with many prompts
                questions = [[request] for request in ordered]
            else:
                questions = [list(turns) for _, turns in groupby(ordered, lambda r: r.question)]
            draw = random.Random(0)
            errors = [error(halves(questions, draw)) for _ in range(SPLITS)]
            tree = any(r.per_step_nodes for r in ordered)
            bound = OTHER if tree or run.split("_")[1] in ADAPT else CHAIN
            sd, within = pstdev(errors), sum(abs(e) < bound for e in errors) / SPLITS
            needed = round(len(ordered) * (sd / bound) ** 2)
            print(
                f"{run[:52]:<52} {len(ordered):>7} {error(halves(questions, None)):>+6.1%} "
                f"{sd:>6.1%} {within:>7.0%} of {bound:.0%} {needed:>14,}"
            )


if __name__ == "__main__":
    main()
