"""How well a card predicts M, tokens per pass: of its own prompts, and half of them the other half.

    python scripts/card_halves.py results/laptop/records/*.jsonl.xz
    python scripts/card_halves.py results/runs/*

`lengths` and `positions` are the errors of a card as such: what its histogram by draft length, and
its acceptance by position alone, make of M of the same prompts. The rest is what the choice of
prompts does. Halves are of each task of the dataset, and the turns of a question stay together;
both are of the same kind, so that no card can be nearer. By run: its prompts, the error of every
second question and that of the first half in time for the second (a method that learns may drift),
both with half of their 95 % intervals; over random halves the standard deviation of the error, the
share within the bound and that within the cards' own 95 % intervals; and the prompts from which
two deviations are the bound (95 % of the halves).
"""

import argparse
import math
import random
from collections.abc import Iterable, Iterator
from itertools import accumulate, groupby
from operator import mul
from pathlib import Path
from statistics import fmean, pstdev

from scripts.pack_records import unpacked
from skipbench.contrib.artifact.cards import Acceptance, Request, card_of, tokens_per_round
from skipbench.errors import SkipbenchError
from skipbench.runs.run import Run, read_run

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


def error(parts: Iterable[list[Request]]) -> tuple[float, float]:
    """The relative error of M, and half of its 95 % interval by those of both halves."""
    (card, *ends), (held_back, *others) = map(tokens_per_round, parts)
    half = math.hypot(*(math.log(e[1] / e[0]) / 2 if e else math.inf for e in (ends[0], others[0])))
    return card / held_back - 1, half


def shown(value: float, half: float) -> str:
    return f"{value:>+6.1%} ±{half:>5.1%}"


def by_position(card: Acceptance) -> float:
    """Tokens per pass as if a draft's acceptance did not depend on its length."""
    accepted = [0.0, *accumulate(accumulate(card.conditional_acceptance, mul))]
    lengths = {k: sum(n) for k, n in card.acceptance_histogram_by_draft_length.items()}
    rounds = sum(lengths.values())
    return 1 + sum(n * accepted[min(k, len(accepted) - 1)] for k, n in lengths.items()) / rounds


def runs_of(place: Path) -> Iterator[Run]:
    """Of a folder of a run, or of a file of samples."""
    if place.is_dir():
        yield read_run(place)
        return
    for name, samples in unpacked(place).items():
        yield Run(id=name, kept_samples=samples)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("places", type=Path, nargs="+", help="folders of runs, files of samples")
    places = parser.parse_args().places
    print(
        f"{'':<44} prompts lengths positions        error        later    sd  within bound  "
        "interval  prompts for it"
    )
    for place in places:
        for run in runs_of(place):
            try:
                made = card_of(run, 0, {})
            except SkipbenchError:  # vanilla
                continue
            card, id = made.acceptance[0], run.id
            ordered = sorted(made.requests, key=lambda r: (r.groups.get("task", ""), r.question))
            questions = [list(turns) for _, turns in groupby(ordered, lambda r: r.question)]
            draw = random.Random(0)
            pairs = [error(halves(questions, draw)) for _ in range(SPLITS)]
            errors = [e for e, _ in pairs]
            covered = fmean(abs(math.log1p(e)) < half for e, half in pairs)
            in_time = [list(turns) for _, turns in groupby(made.requests, lambda r: r.question)]
            middle = len(in_time) // 2
            parts = in_time[:middle], in_time[middle:]
            split = ([r for turns in part for r in turns] for part in parts)
            tree = any(r.per_step_nodes for r in ordered)
            bound = OTHER if tree or id.split("_")[1] in ADAPT else CHAIN
            sd, within = pstdev(errors), sum(abs(e) < bound for e in errors) / SPLITS
            needed = round(len(ordered) * (2 * sd / bound) ** 2)
            print(
                f"{id[:44]:<44} {len(ordered):>7} "
                f"{card.mean_acceptance_length / card.M - 1:>+7.1%} "
                f"{by_position(card) / card.M - 1:>+9.1%} "
                f"{shown(*error(halves(questions, None)))} {shown(*error(split))} "
                f"{sd:>5.1%} {within:>6.0%} in {bound:.0%} {covered:>9.0%} {needed:>15,}"
            )


if __name__ == "__main__":
    main()
