"""`project`: what a run would do on another machine, or with other stop rules."""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from skipbench.cli.command import Command, OneOrMore
from skipbench.config.architecture import Shape
from skipbench.config.catalog import file_of, known_hardware
from skipbench.config.catalog import shape_of as known_shape
from skipbench.config.configurable import typed
from skipbench.config.model import Model
from skipbench.console import show
from skipbench.contrib.artifact.cards import read_cards
from skipbench.contrib.artifact.costs import Costs, LoopCosts, costs_of
from skipbench.contrib.artifact.replay import measured, project
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import datasheet
from skipbench.metrics.prices import Prices
from skipbench.report.published import paper_of
from skipbench.runs.provenance import installed
from skipbench.runs.reading import read_json, readable
from skipbench.runs.record import Sample
from skipbench.runs.run import Run, read_run


class Project(Command):
    """what a run would do on another machine, or with other stop rules, from its records; or what a
    paper's table would hold, by its own acceptance:  project results/runs/RUN hardware=a100-80gb |
    project card=FILE hardware=a100-80gb | project swift-table2 hardware=h100-measured
    """

    SETTINGS = False
    WORDS = 0, 1
    NEEDS = (
        "needs one run, or card=FILE, or a paper's table, and for another machine hardware=DEVICE "
        "or profile=FILE, as in project results/runs/RUN hardware=a100-80gb"
    )
    hardware: Annotated[str | None, "a device of conf/hardware"] = None
    profile: Annotated[str | None, "a latency file of another machine"] = None
    card: Annotated[str | None, "a file of acceptance cards, in place of a run"] = None
    search: Annotated[OneOrMore, "shows so many stop rules and trees"] = None
    results: Annotated[Path, "the folder of predicted tables"] = Path("results")
    json: Annotated[bool, "the run and its projection for machines, and no more"] = False


def run_project(asked: Project) -> None:
    """Prints tokens/s and speedups as measured and as projected.

    Without a target it is the run's own machine, by the latency file beside the run, which
    `profile` has written; the run's times of drafting, verification and vanilla are not used then.
    `--json` prints these two rows alone. A card says of the run's machine only what its phases took
    in passes of vanilla.
    """
    if asked.words and paper_of(asked.words[0]):
        from skipbench.contrib.artifact.predict_command import run_prediction

        run_prediction(asked.words[0], asked.hardware, asked.results, asked.json)
        return
    if bool(asked.words) == (asked.card is not None):
        raise SkipbenchError(f"project {Project.NEEDS}")
    if asked.card is not None:
        for card in read_cards(Path(asked.card)):
            _project(asked, card.run, card.layers, f"{card.method} on {card.model}, {card.dataset}")
        return
    run = read_run(folder := Path(asked.words[0]))
    if not run.settings or run.provenance.layers is None:
        raise SkipbenchError(f"{folder} holds no run; results/runs has them")
    _project(asked, run, run.provenance.layers, folder.name)


def _project(asked: Project, run: Run, layers: int, named: str) -> None:
    samples = run.samples
    there, name = _target(asked, run, layers)
    if there.layers != layers:
        raise SkipbenchError(
            f"{name} has the prices of a model of {there.layers} layers, and the run's has {layers}"
        )
    speedup = "-" if run.speedup is None else f"{run.speedup:.3f}x"
    rows = (
        ("measured", run.origin.device or "?", measured(samples), speedup),
        ("projection", name, project(samples, there), "-"),
    )
    if asked.json:
        record: dict[str, object] = {"run": named, "method": run.method, "model": run.model}
        for kind, device, value, _ in rows:
            rate = {"tokens_per_s": value.tokens_per_s, "vanilla": value.tokens_per_s_vanilla}
            rate = {} if kind == "measured" and asked.card else rate  # a card's: passes of vanilla
            record[kind] = {"device": device, **rate, "micro": value.micro}
        show(json.dumps(record, allow_nan=False))
        return
    show(f"{named}: {len(samples)} samples")
    show(f"{'':<11} {'device':<24} {'vanilla tok/s':>14} {'tok/s':>10} {'micro':>8} {'speedup':>8}")
    for kind, device, value, headline in rows:
        rates = [f"{rate:.1f}" for rate in (value.tokens_per_s_vanilla, value.tokens_per_s)]
        vanilla, ours = ["-", "-"] if kind == "measured" and asked.card else rates
        show(f"{kind:<11} {device:<24} {vanilla:>14} {ours:>10} {value.micro:>7.3f}x {headline:>8}")
    show(
        "micro is the ratio of totals without the prefill, speedup that of tables. A projection is "
        "no measurement: it keeps the run's accepted tokens, sets and rows, and exchanges the "
        "seconds per pass."
    )
    if asked.search:
        _search(samples, there, run.setting("method.tree") or (), asked.search)


def _search(samples: Sequence[Sample], costs: Costs, tree: Sequence[int], shown: int) -> None:
    """Prints the best stop rules and trees."""
    from skipbench.contrib.artifact.replay_rules import KNOWN, search

    began = time.perf_counter()
    rules = search(samples, costs, tuple(tree))
    seconds = time.perf_counter() - began
    sound = [rule for rule in rules if rule.known >= KNOWN]
    show(
        f"{len(rules)} stop rules and trees replayed, {60 * len(rules) / seconds:,.0f} a minute; "
        f"of {len(sound)} the records hold {KNOWN:.0%} of the rounds or more"
    )
    for rule in sound[:shown]:
        show(
            f"micro {rule.speedup:7.3f}x  M {rule.M:.2f}  alpha {rule.alpha:.3f}  known "
            f"{rule.known:.0%}  {rule.words}"
        )
    if len(sound) < len(rules):
        show(
            "To replay more of them, decode with stop@method.stop=fixed method.stop.max_steps=25 "
            "method.stop.threshold=1e-6: then the records hold every confidence."
        )


def _target(asked: Project, run: Run, layers: int) -> tuple[Costs, str]:
    """The costs to project to, and the name of the machine."""
    if asked.hardware is not None and asked.profile is not None:
        raise SkipbenchError("project needs one of hardware=DEVICE and profile=FILE")
    if asked.profile is not None:
        return _costs(asked.profile), Path(asked.profile).stem
    if asked.hardware is not None:
        return _hardware_costs(asked.hardware, run, layers), asked.hardware
    if run.folder is None:
        raise SkipbenchError(
            "a card has no machine of its own; give hardware=DEVICE or profile=FILE"
        )
    results = run.folder.parent.parent
    path = results / "latency" / str(run.provenance.latency)
    if path.is_file() and isinstance(costs := _costs(path), LoopCosts):
        return costs, "its own machine"
    raise SkipbenchError(
        f"{path} holds no times of rounds; write them with: python -m skipbench profile "
        f"model={run.model} results={results}, or project to another machine with "
        "hardware=DEVICE or profile=FILE"
    )


def _hardware_costs(name: str, run: Run, layers: int) -> Costs:
    """The costs of a device of `conf/hardware`: passes that were timed on it, or its datasheet."""
    priced = {k: facts for k, facts in known_hardware().items() if facts.bandwidth or facts.prices}
    if name not in priced:
        raise SkipbenchError(f"hardware={name}; wanted one of {', '.join(priced)}")
    device, shape = priced[name], dataclasses.replace(shape_of(run), layers=layers)  # as it ran
    if device.prices is None:
        return Costs(datasheet(shape, run.setting("model.dtype"), device))
    if device.model is not None and shape.sizes != known_shape(device.model).sizes:
        raise SkipbenchError(
            f"hardware={name} has the prices of {device.model}, and {run.model} has other sizes; "
            "give a datasheet, as hardware=h100-sxm, or profile=FILE of this model"
        )
    return _costs(file_of("hardware", name).parent / device.prices)


def shape_of(run: Run) -> Shape:
    """Sizes of the run's model: recorded, or in its config.json. Raises SkipbenchError without."""
    if known := run.setting("model.architecture"):
        return msgspec.convert(known, Shape)
    if run.folder is None:
        raise SkipbenchError(f"the card has no sizes of {run.model!r}; give profile=FILE")
    from skipbench.models.outline import sized

    recorded = typed(run.setting("model"), Model, "model")
    path, why = str(installed(recorded.path)), "nothing here says them"
    try:
        if shape := sized(dataclasses.replace(recorded, path=path)).architecture:
            return shape
    except (OSError, ValueError, SkipbenchError) as error:  # it may be gone, or damaged
        why = f"it cannot be read ({type(error).__name__})"
    raise SkipbenchError(
        f"the sizes of {run.model!r} are not recorded, and of {path} {why}; give profile=FILE"
    )


def _costs(path: str | Path) -> Costs:
    """The costs in a latency file."""
    record = read_json(Path(path), Prices)
    if record is None or record.model is None:
        raise SkipbenchError(f"no latency file {path}; python -m skipbench profile writes one")
    with readable(Path(path), "python -m skipbench profile writes latency files"):
        return costs_of(record)
