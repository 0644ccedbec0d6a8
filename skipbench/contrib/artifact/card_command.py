"""`card`: acceptance cards of runs."""

import json
from pathlib import Path
from typing import Annotated

import msgspec

from skipbench.cli.command import Command, Names
from skipbench.cli.results import run_folder
from skipbench.console import say, show
from skipbench.contrib.artifact import cards
from skipbench.contrib.artifact.project_command import shape_of
from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import conditional_acceptance
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import run_folders
from skipbench.runs.run import Run, read_run

RARE = 0.01  # share of the verifications below which a draft length has no line
SHOWN = 10  # positions on a line


class Card(Command):
    """what a run's drafts had accepted, in the names of AIPerf and vLLM, and the flags by which
    engines simulate it:  card RUN [--json FILE] | card results=FOLDER arm=swift
    """

    SETTINGS = False
    WORDS = 0, None
    BARE = ("json",)
    results: Annotated[Path, "the results folder; without RUN all runs in it"] = Path("results")
    arm: Annotated[Names, "only runs of these methods"] = ()
    json: Annotated[str | None, "writes the cards, one a line; without a file prints them"] = None


def run_card(asked: Card) -> None:
    """Prints or writes the cards of `RUN [RUN ...]`, or of all runs of a folder but vanilla's."""
    named = [run_folder(name, asked.results) for name in asked.words]
    runs = [read_run(folder) for folder in named or run_folders(asked.results)]
    runs = [run for run in runs if run.method in asked.arm or not asked.arm]
    if not named:
        runs = [run for run in runs if run.metrics and run.metrics.alpha is not None]
    if not runs:
        of = f" of {', '.join(asked.arm)}" if asked.arm else ""
        raise SkipbenchError(
            f"no run{of} in {asked.results} has drafted; card needs RUN or results="
        )
    made = [_card(run) for run in runs]
    lines = "".join(f"{msgspec.json.encode(card).decode()}\n" for card in made)
    if asked.json:
        write_atomic(Path(asked.json), lines)
        say(f"written: {asked.json} ({len(made)} cards)")
    elif asked.json is None:
        show("\n\n".join(_text(card) for card in made))
    else:
        for card in made:
            show(json.dumps(msgspec.to_builtins(card)))


def _card(run: Run) -> cards.AcceptanceCard:
    """Raises SkipbenchError for a run without samples, or without a draft."""
    if run.provenance.layers is None:
        raise SkipbenchError(f"{run.folder} has no samples yet; run its command again")
    model = {"dtype": run.setting("model.dtype"), "architecture": None}
    try:
        model["architecture"] = msgspec.to_builtins(shape_of(run))
    except SkipbenchError as error:
        say(f"without sizes of the model, for hardware=: {error}")
    settings = {"model": model, "method": {"tree": run.setting("method.tree")}}
    return cards.card_of(run, run.provenance.layers, settings)


def _text(card: cards.AcceptanceCard) -> str:
    whole = card.acceptance[0]
    interval = "" if whole.M_ci95 is None else " [{:.2f}, {:.2f}]".format(*whole.M_ci95)
    lines = [
        f"{card.method} on {card.model}, {card.dataset}: {whole.requests} requests, "
        f"{whole.num_spec_steps} verifications, M {whole.M:.3f}{interval}",
        f"{'':<22} {'steps':>6} {'drafted':>8} {'accepted':>8}  accepted at position 1, 2, ...",
    ]
    for one in card.acceptance:
        drafted, accepted = one.num_draft_tokens, one.num_accepted_draft_tokens
        lines.append(
            _row(one.category, one.num_spec_steps, drafted, accepted, one.conditional_acceptance)
        )
    rare = 0
    for length, counts in whole.acceptance_histogram_by_draft_length.items():
        steps, accepted = sum(counts), sum(n * count for n, count in enumerate(counts))
        if steps < RARE * whole.num_spec_steps:
            rare += steps
            continue
        drafts = ((length, n) for n, count in enumerate(counts) for _ in range(count))
        shares = [there / came for came, there in conditional_acceptance(drafts)]
        lines.append(_row(f"draft length {length}", steps, length * steps, accepted, shares))
    lines += [f"{'others, in --json':<22} {rare:>6}"] if rare else []
    lines.append("the same acceptance, simulated:")
    vllm, *variables = whole.simulate.values()
    lines.append(f"  vllm serve MODEL --speculative-config '{json.dumps(vllm)}'")
    for names in variables:
        lines.append("  " + " ".join(f"{name}={value}" for name, value in names.items()))
    return "\n".join(lines)


def _row(name: str, steps: int, drafted: int, accepted: int, shares: list[float]) -> str:
    """Drafted and accepted tokens per verification, and the shares by position."""
    each = " ".join(f"{share:.2f}" for share in shares[:SHOWN])
    each += " ..." * (len(shares) > SHOWN)
    return (
        f"{name:<22} {steps:>6} {drafted / steps:>8.2f} {accepted / steps:>8.2f}  {each}".rstrip()
    )
