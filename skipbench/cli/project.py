"""`project`: a run on another machine, from its records and a latency profile."""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from skipbench.cli.commands import Project
from skipbench.cli.parser import parse
from skipbench.config.architecture import Shape
from skipbench.config.catalog import known_hardware
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.metrics.costs import Costs, Datasheet
from skipbench.metrics.latency_record import LatencyRecord
from skipbench.metrics.loop_costs import LoopCosts
from skipbench.metrics.replay import best_length, measured, project
from skipbench.runs.provenance import PLACES
from skipbench.runs.record import Sample
from skipbench.runs.run import Run, read_run


def run(arguments: list[str]) -> None:
    """Prints tokens/s and speedups as measured and as projected.

    `micro` is the ratio of totals, which a projection has too; `speedup` is the run's own, the
    geometric mean per prompt.

    Without a target it is the run's own machine, by the latency file beside the run, which
    `profile` has written; the run's times of drafting, verification and vanilla are not used then.
    `hardware=DEVICE` takes a datasheet of conf/hardware, `profile=FILE` a latency file of another
    machine, `here=FILE` that of the run's own, by which host work is carried over; `lengths=N`
    adds the best of N fixed draft lengths, `search=N` the N best stop rules and trees.

    Raises:
        SkipbenchError: no such run, device or file, or nothing to project to.
    """
    asked = parse(Project, arguments)
    given = dict(a.split("=", 1) for a in asked.given)
    folder = Path(asked.words[0])
    record = read_run(folder)
    if not record.settings or record.provenance.layers is None:
        raise SkipbenchError(f"{folder} holds no run; results/runs has them")
    samples = record.samples
    there, name = _target(given, record, record.provenance.layers)
    here = _file(given["here"]) if "here" in given else None
    speedup = "-" if record.speedup is None else f"{record.speedup:.3f}x"
    rows = [
        ("measured", record.origin.device or "?", measured(samples), speedup),
        ("projection", name, project(samples, there, here), "-"),
    ]
    show(f"{folder.name}: {len(samples)} samples")
    head = f"{'vanilla tok/s':>14} {'tok/s':>10} {'micro':>8} {'speedup':>8}"
    show(f"{'':<11} {'device':<24} {head}")
    for kind, device, value, speedup in rows:
        show(
            f"{kind:<11} {device:<24} {value.tokens_per_s_vanilla:>14.1f} "
            f"{value.tokens_per_s:>10.1f} {value.micro:>7.3f}x {speedup:>8}"
        )
    show(
        "micro is the ratio of totals, speedup the geometric mean per prompt. A projection is no "
        "measurement: it keeps the run's accepted tokens, sets and rows, and exchanges the seconds "
        "per pass."
    )
    if "lengths" in given:
        ranked = best_length(samples, there, _count(given["lengths"], "lengths"))
        best = ", ".join(f"{length}: {ratio:.3f}x" for length, ratio in ranked[:5])
        show(f"projection by fixed draft length: {best}")
    if "search" in given:
        tree = record.setting("method.tree") or ()
        _search(samples, there, tree, _count(given["search"], "search"))


def _search(samples: Sequence[Sample], costs: Costs, tree: Sequence[int], shown: int) -> None:
    """Prints the best stop rules and trees."""
    from skipbench.experiments.stop_rules import KNOWN, search

    began = time.perf_counter()
    rules = search(samples, costs, tuple(tree))
    seconds = time.perf_counter() - began
    sound = [one for one in rules if one.known >= KNOWN]
    show(
        f"{len(rules)} stop rules and trees replayed, {60 * len(rules) / seconds:,.0f} a minute; "
        f"of {len(sound)} the records hold {KNOWN:.0%} of the rounds or more"
    )
    for one in sound[:shown]:
        show(
            f"{one.speedup:7.3f}x  M {one.M:.2f}  alpha {one.alpha:.3f}  known {one.known:.0%}  "
            f"{one.words}"
        )
    if len(sound) < len(rules):
        show(
            "To replay more of them, decode with stop@method.stop=fixed method.stop.max_steps=25 "
            "method.stop.threshold=1e-6: then the records hold every confidence."
        )


def _target(given: dict[str, str], run: Run, layers: int) -> tuple[Costs, str]:
    if "hardware" in given and "profile" in given:
        raise SkipbenchError("project needs one of hardware=DEVICE and profile=FILE")
    if "profile" in given:
        return _file(given["profile"]), Path(given["profile"]).stem
    if "hardware" not in given:
        return _own(run), "its own machine"
    rated = {n: h for n, h in known_hardware().items() if h.bandwidth}
    if (name := given["hardware"]) not in rated:
        raise SkipbenchError(f"hardware={name}; wanted one of {', '.join(rated)}")
    model = run.settings["model"]
    shape = dataclasses.replace(_shape(model), layers=layers)  # as it ran: some may be added
    return Datasheet(shape, model["dtype"], rated[name]), name


def _own(run: Run) -> Costs:
    """Timed rounds of the run's machine, by the latency file beside the run."""
    assert run.folder is not None
    path = run.folder.parent.parent / "latency" / str(run.provenance.latency)
    costs = _file(str(path)) if path.is_file() else None
    if isinstance(costs, LoopCosts):
        return costs
    raise SkipbenchError(
        f"{path} holds no times of rounds; write them with: python -m skipbench profile "
        f"model={run.model} results={path.parent.parent}, or project to another machine with "
        "hardware=DEVICE or profile=FILE"
    )


def _shape(model: dict[str, Any]) -> Shape:
    """Sizes of the run's model: as recorded, else by the checkpoint's own config.json."""
    if model.get("architecture"):
        return msgspec.convert(model["architecture"], Shape)
    place, sign, rest = str(model["path"]).partition(":")
    folder = PLACES[place]() / rest if sign and place in PLACES else Path(model["path"])
    path = folder / "config.json"
    try:
        own = json.loads(path.read_text())
        return Shape(
            own["num_hidden_layers"], own["hidden_size"], own["num_attention_heads"],
            own["num_key_value_heads"], own["intermediate_size"], own["vocab_size"],
            own["max_position_embeddings"], own.get("head_dim"),
            bool(own.get("tie_word_embeddings")), own["model_type"],
        )  # fmt: skip
    except (OSError, ValueError, KeyError) as error:
        raise SkipbenchError(
            f"the sizes of {model['name']!r} are not recorded and {path} cannot be read "
            f"({type(error).__name__}); give profile=FILE"
        ) from error


def _file(path: str) -> Costs:
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=LatencyRecord).costs()
    except (OSError, ValueError) as error:
        raise SkipbenchError(
            f"{path} is no latency file ({type(error).__name__}); "
            "python -m skipbench profile writes one"
        ) from error


def _count(text: str, key: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SkipbenchError(f"{key}={text}; wanted a number of 1 or more")
    return int(text)
