"""`project`: what a run would do on another machine, from its records and a latency profile."""

import dataclasses
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from skipbench.config.architecture import Shape
from skipbench.config.catalog import known_hardware
from skipbench.errors import SkipbenchError
from skipbench.metrics.costs import Costs, DatasheetParts, MeasuredParts, PassCosts
from skipbench.metrics.loop_costs import LoopCosts
from skipbench.metrics.replay import best_length, measured, project
from skipbench.report.console import show
from skipbench.runs.provenance import PLACES
from skipbench.runs.record import Sample
from skipbench.runs.run import Run, read_run

KEYS = ("hardware", "profile", "here", "lengths", "search")


def run(arguments: list[str]) -> None:
    """Prints tokens/s and the speedup over all tokens (`micro`), as measured and as projected.

    Without a target it is the run's own machine, by the latency file beside the run, which
    `profile` has written; the run's times of drafting, verification and vanilla are not used then.
    `hardware=DEVICE` takes a datasheet of conf/hardware, `profile=FILE` a latency file of another
    machine, `here=FILE` that of the run's own, by which host work is carried over; `lengths=N`
    adds the best of N fixed draft lengths, `search=N` the N best stop rules and trees.

    Raises:
        SkipbenchError: no such run, device or file, or nothing to project to.
    """
    names = [a for a in arguments if "=" not in a]
    given = dict(a.split("=", 1) for a in arguments if "=" in a)
    if len(names) != 1 or set(given) - set(KEYS):
        raise SkipbenchError(
            "project needs one run, and for another machine hardware=DEVICE or profile=FILE, as in "
            "project results/runs/RUN hardware=a100-80gb; keys: " + ", ".join(KEYS)
        )
    folder = Path(names[0])
    record = read_run(folder)
    if not record.settings or record.provenance.layers is None:
        raise SkipbenchError(f"{folder} holds no run; results/runs has them")
    samples = record.samples
    there, name = _target(given, record, record.provenance.layers)
    here = _file(given["here"]) if "here" in given else None
    own, far = measured(samples), project(samples, there, here)
    rows = [
        ("measured", record.origin.device or "?", own),
        ("projection", name, far),
    ]
    show(f"{folder.name}: {len(samples)} samples")
    show(f"{'':<11} {'device':<24} {'vanilla tok/s':>14} {'tok/s':>10} {'micro':>8}")
    for kind, device, value in rows:
        show(
            f"{kind:<11} {device:<24} {value.tokens_per_s_vanilla:>14.1f} "
            f"{value.tokens_per_s:>10.1f} {value.speedup:>7.3f}x"
        )
    show(
        "A projection is no measurement: it keeps the run's accepted tokens, sets and rows, and "
        "exchanges the seconds per pass."
    )
    if "lengths" in given:
        ranked = best_length(samples, there, _count(given["lengths"], "lengths"))
        best = ", ".join(f"{length}: {speedup:.3f}x" for length, speedup in ranked[:5])
        show(f"projection by fixed draft length, micro: {best}")
    if "search" in given:
        _search(samples, there, record.settings["method"], _count(given["search"], "search"))


def _search(samples: Sequence[Sample], costs: Costs, method: dict[str, Any], most: int) -> None:
    """Prints the best stop rules and trees."""
    from skipbench.experiments.stop_rules import KNOWN, search

    began = time.perf_counter()
    rules = search(samples, costs, tuple(method.get("tree") or ()))
    seconds = time.perf_counter() - began
    sound = [one for one in rules if one.known >= KNOWN]
    show(
        f"{len(rules)} stop rules and trees replayed, {60 * len(rules) / seconds:,.0f} a minute; "
        f"of {len(sound)} the records hold {KNOWN:.0%} of the rounds or more"
    )
    for one in sound[:most]:
        show(
            f"micro {one.speedup:7.3f}x  M {one.M:.2f}  alpha {one.alpha:.3f}  "
            f"known {one.known:.0%}  {one.words}"
        )
    if len(sound) < len(rules):
        show(
            "To replay more of them, decode with stop@method.stop=fixed method.stop.max_steps=25 "
            "method.stop.threshold=1e-6: then the records hold every confidence."
        )


def _target(given: dict[str, str], run: Run, layers: int) -> tuple[Costs, str]:
    if "hardware" in given and "profile" in given:
        raise SkipbenchError("project needs one of hardware=DEVICE and profile=FILE")
    model = run.settings["model"]
    if "hardware" not in given and "profile" not in given:
        assert run.folder is not None
        own = run.folder.parent.parent / "latency" / str(run.provenance.latency)
        return _own(own, model["name"]), "its own machine"
    if "profile" in given:
        return _file(given["profile"]), Path(given["profile"]).stem
    rated = {n: h for n, h in known_hardware().items() if h.bandwidth}
    if given["hardware"] not in rated:
        raise SkipbenchError(f"hardware={given['hardware']}; wanted one of {', '.join(rated)}")
    shape = dataclasses.replace(_shape(model), layers=layers)  # as it ran: some may be added
    parts = DatasheetParts(shape, model["dtype"], rated[given["hardware"]])
    return PassCosts(parts), given["hardware"]


def _own(path: Path, model: str) -> Costs:
    costs = _file(str(path)) if path.is_file() else None
    if isinstance(costs, LoopCosts):
        return costs
    raise SkipbenchError(
        f"{path} holds no times of rounds; write them with: python -m skipbench profile "
        f"model={model} results={path.parent.parent}, or project to another machine with "
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
        record = json.loads(Path(path).read_text())
        return LoopCosts(record) if record.get("rounds") else PassCosts(MeasuredParts(record))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SkipbenchError(
            f"{path} is no latency file ({type(error).__name__}); "
            "python -m skipbench profile writes one"
        ) from error


def _count(text: str, key: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SkipbenchError(f"{key}={text}; wanted a number of 1 or more")
    return int(text)
