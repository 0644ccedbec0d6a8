"""`project`: what a run would do on another machine, from its records and a latency profile."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec

from skipbench.config.architecture import Shape
from skipbench.config.catalog import known_hardware
from skipbench.errors import SkipbenchError
from skipbench.metrics.replay import (
    DatasheetCosts,
    MeasuredCosts,
    PassCosts,
    best_length,
    measured,
    project,
)
from skipbench.report.console import show
from skipbench.runs.provenance import PLACES
from skipbench.runs.store import load_run, read_samples

KEYS = ("hardware", "profile", "here", "lengths")


def run(arguments: list[str]) -> None:
    """Prints tokens/s and speedup as measured and as projected.

    `hardware=DEVICE` takes a datasheet of conf/hardware, `profile=FILE` a latency file of another
    machine, `here=FILE` that of the run's own, by which host work is carried over; `lengths=N`
    adds the best of N fixed draft lengths.

    Raises:
        SkipbenchError: no such run, device or file, or nothing to project to.
    """
    names = [a for a in arguments if "=" not in a]
    given = dict(a.split("=", 1) for a in arguments if "=" in a)
    if len(names) != 1 or set(given) - set(KEYS):
        raise SkipbenchError(
            "project needs one run and hardware=DEVICE or profile=FILE, as in "
            "project results/runs/RUN hardware=a100-80gb; keys: " + ", ".join(KEYS)
        )
    folder = Path(names[0])
    state = load_run(folder)
    if not state["config"] or not state["provenance"]:
        raise SkipbenchError(f"{folder} holds no run; list them with: python -m skipbench index")
    samples = read_samples(folder / "samples.jsonl")
    layers = int(state["provenance"]["layers"])
    there, name = _target(given, state["config"]["model"], layers)
    here = _file(given["here"]) if "here" in given else None
    own, far = measured(samples), project(samples, there, here)
    origin = state["provenance"]
    rows = [
        ("measured", str(origin.get("device", "?")), own),
        ("projection", name, far),
    ]
    show(f"{folder.name}: {len(samples)} samples")
    show(f"{'':<11} {'device':<24} {'vanilla tok/s':>14} {'tok/s':>10} {'speedup':>8}")
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
        ranked = best_length(samples, there, _count(given["lengths"]))
        best = ", ".join(f"{length}: {speedup:.3f}x" for length, speedup in ranked[:5])
        show(f"projection by fixed draft length: {best}")


def _target(given: dict[str, str], model: dict[str, Any], layers: int) -> tuple[PassCosts, str]:
    if ("hardware" in given) == ("profile" in given):
        raise SkipbenchError("project needs one of hardware=DEVICE and profile=FILE")
    if "profile" in given:
        return _file(given["profile"]), Path(given["profile"]).stem
    rated = {n: h for n, h in known_hardware().items() if h.bandwidth}
    if given["hardware"] not in rated:
        raise SkipbenchError(f"hardware={given['hardware']}; wanted one of {', '.join(rated)}")
    shape = dataclasses.replace(_shape(model), layers=layers)  # as it ran: some may be added
    costs = DatasheetCosts(shape, model["dtype"], rated[given["hardware"]])
    return costs, given["hardware"]


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


def _file(path: str) -> MeasuredCosts:
    try:
        return MeasuredCosts(json.loads(Path(path).read_text()))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise SkipbenchError(
            f"{path} is no latency file ({type(error).__name__}); "
            "python -m skipbench profile writes one"
        ) from error


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SkipbenchError(f"lengths={text}; wanted a number of 1 or more")
    return int(text)
