"""The cells of an experiment: its axes and cases, at a scale, each with its row in the paper."""

import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import yaml

from skipbench.config.catalog import Case, experiment_of
from skipbench.config.explain import did_you_mean
from skipbench.config.paths import CONF
from skipbench.errors import SkipbenchError
from skipbench.report.published import Printed, numbers_of, paper_of
from skipbench.runs.cell import Cell

SCALES = ("paper", "embedded", "laptop")
SHARED = "model dataset method decoding.temperature decoding.top_p dataset.max_new_tokens"
SHARED += " model.dtype method.stop.max_steps method.stop.threshold method.stop.target"
SHARED += " method.interval method.window"
OTHER = {"method.tau": "tau_pruning", "search.iterations": "search_steps", "search.on": "set_from"}
KEY_OF = {key: key.rpartition(".")[2] for key in SHARED.split()} | OTHER  # keys of `published`


class _Long(msgspec.Struct, frozen=True):
    """Changes of a scale for the experiments that need long texts."""

    overrides: dict[str, object]
    methods: dict[str, dict[str, object]]
    experiments: list[str]


class _Scale(msgspec.Struct, frozen=True):
    """A file of `conf/scale`: replacements of the paper's model and datasets, and settings."""

    overrides: dict[str, object]
    methods: dict[str, dict[str, object]]
    model: str
    datasets: dict[str, str | dict[str, str]]
    other: str
    long: _Long
    times: dict[str, float]
    drop: list[str]
    keep: list[str]

    def dataset(self, name: str) -> str:
        """The dataset that replaces one of the paper's."""
        other = self.datasets.get(name, self.other)
        return other if isinstance(other, str) else self.other


@functools.cache
def _scale(name: str, experiment: str) -> _Scale:
    plain = yaml.safe_load((CONF / "scale" / f"{name}.yaml").read_text())
    scale = msgspec.convert(plain, _Scale, strict=False)
    if experiment not in scale.long.experiments:
        return scale
    overrides = scale.overrides | scale.long.overrides
    methods = scale.methods | scale.long.methods
    return msgspec.structs.replace(scale, overrides=overrides, methods=methods, datasets={})


printed_numbers = functools.cache(numbers_of)
"""The numbers that the paper prints in the table of an experiment, if any."""


def check_filter(
    names: Sequence[str], axis: str, wanted: Sequence[str], overrides: Sequence[str] = ()
) -> None:
    """Raises SkipbenchError for a wanted model or method that none of the experiments has."""
    given = dict(pair(o) for o in overrides)
    points = [point for name in names for point, _ in _points(name, given)] if wanted else []
    known = list(dict.fromkeys(point[axis] for point in points if axis in point))
    for word in wanted:
        if word not in known:
            allowed = ", ".join(known) or f"none; {axis}={word} sets it"
            raise SkipbenchError(
                f"{word!r} is no {axis} of {', '.join(names)}.{did_you_mean(word, known)} "
                f"Allowed here: {allowed}"
            )


def plan(
    experiment: str,
    overrides: Sequence[str],
    scale: str,
    models: Sequence[str] = (),
    methods: Sequence[str] = (),
) -> list[Cell]:
    """The cells of `experiment`, in its order, without duplicates; where named, only those of some
    models and methods. An override of an axis replaces its values, and may hold several. Raises
    SkipbenchError for an unknown scale, or an override that leaves no cell.
    """
    if scale not in SCALES:
        raise SkipbenchError(f"scale={scale}; wanted one of {', '.join(SCALES)}")
    given, of_paper = dict(pair(o) for o in overrides), paper_of(experiment) is not None
    cells = list[Cell]()
    for point, case in _points(experiment, given):
        if models and point.get("model") not in models:
            continue
        if methods and point.get("method") not in methods:
            continue
        keys = _keys(point, case, printed_numbers(experiment)) if of_paper else {}
        cell = Cell(
            experiment=experiment,
            scale=scale,
            overrides=point,
            keys=keys,
            reason=case.reason or case.note,
            runnable=case.reason is None,
        )
        smaller = of_paper and scale != "paper"
        for one in _scaled(cell, given) if smaller else [cell]:
            # the paper's datasets may have one in their place
            twice = smaller and any(one.runnable and one.overrides == c.overrides for c in cells)
            cells += [one] if one not in cells and not twice else []
    if not cells and not models and not methods:
        for axis in ("model", "method"):
            wanted = _split(given.get(axis, ""))
            check_filter([experiment], axis, wanted, [o for o in overrides if pair(o)[0] != axis])
        raise SkipbenchError(
            f"{experiment} has no cell with {' '.join(overrides)}; leave one of them out"
        )
    return cells


def _points(experiment: str, given: Mapping[str, str]) -> Iterator[tuple[dict[str, str], Case]]:
    """Every point of the grid with its case; a case is a grid over its own and the common axes."""
    facts = experiment_of(experiment)
    common, cases = facts.axes, facts.published.cases or [Case()]
    known = {*common, *(axis for case in cases for axis in case.axes)}
    rest = {k: v for k, v in given.items() if k not in known}
    for case in cases:
        own = {k: _text(v) for k, v in case.axes.items()}
        lists = {axis: _split(values) for axis, values in (common | own).items()}
        for axis in given.keys() & lists.keys():
            wanted = _split(given[axis])
            if axis == "method" and axis in case.axes:  # the rest of the case fits its methods only
                wanted = [v for v in lists[axis] if v in wanted]
            lists[axis] = wanted
        for point in itertools.product(*lists.values()):
            yield dict(zip(lists, point, strict=True)) | rest, case


def _keys(point: Mapping[str, str], case: Case, printed: Sequence[Printed]) -> dict[str, object]:
    """The keys of the paper's table that the point has a value of."""
    used = {key for number in printed for key in number.keys} | {"model", "dataset", "method"}
    keys = {KEY_OF[k]: yaml.safe_load(v) for k, v in point.items() if KEY_OF.get(k) in used}
    if "temperature" in used:
        keys.setdefault("temperature", 0.0)  # conf/decoding: greedy, unless something else is said
    keys |= case.keys
    method = {"method": point["method"]} if "method" in point else {}
    # what all printed numbers of these keys have in common, such as the paper's number format
    alike = [number.keys for number in printed if matches(keys | method, number.keys)]
    for key in sorted({key for row in alike for key in row} - keys.keys()):
        values = {row.get(key) for row in alike}
        if len(values) == 1:
            keys[key] = values.pop()
    return keys


def matches(keys: Mapping[str, object], row: Mapping[str, object]) -> bool:
    """True if the keys of a printed number agree with those of a cell where both have them."""
    return all(row[key] == value for key, value in keys.items() if key in row)


def _scaled(cell: Cell, given: Mapping[str, str]) -> list[Cell]:
    """The cell at its smaller scale; one per dataset where subtasks have datasets of their own."""
    name, experiment, point = cell.scale, cell.experiment, dict(cell.overrides)
    scale = _scale(name, experiment)
    keys = {k: v for k, v in cell.keys.items() if k not in ("model", "dataset", "subtask")}
    if "model.quantization" in point and "model.quantization" not in given:
        reason = (
            f"bitsandbytes is no part of the {name} scale; give model.quantization=nf4 "
            "engine=reference to a run"
        )
        point |= {"model": scale.model}
        return [replace(cell, overrides=point, keys=keys, runnable=False, reason=reason)]
    for axis in point.keys() - given.keys():
        if axis not in scale.keep and axis.startswith(tuple(scale.drop)):
            del point[axis]
        elif axis in scale.times:  # 0 is none, and stays
            value = int(point[axis])
            point[axis] = str(max(min(2, value), round(value * scale.times[axis])))
    if "model" not in given:
        point["model"] = scale.model
    own = {k: v for k, v in scale.methods.get(point["method"], {}).items() if k not in point}
    settings = {
        k: str(v)
        for k, v in (scale.overrides | own).items()
        if k not in given and (cell.searches or not k.startswith("search"))
    }
    if "search.on" in point and "search.on" not in given:
        point["search.on"] = scale.dataset(point["search.on"])
    dataset = point.get("dataset", "")
    parts = scale.datasets.get(dataset, scale.other)
    if "dataset" in given or dataset.startswith("mini-") or parts == dataset:
        return [replace(cell, overrides=point | settings, keys=keys)]
    tasks = yaml.safe_load(cell.overrides.get("dataset.tasks", "[]"))
    if isinstance(parts, str) or not any("subtask" in n.keys for n in printed_numbers(experiment)):
        parts = {"": scale.dataset(dataset)}
    others = (other for part, other in parts.items() if not tasks or part in tasks or not part)
    return [
        replace(cell, overrides=point | {"dataset": other} | settings, keys=keys)
        for other in dict.fromkeys(others)
    ]


def pair(override: str) -> tuple[str, str]:
    """Key and value of an override."""
    key, _, value = override.partition("=")
    return key, value


def _split(values: str) -> list[str]:
    """Splits at commas outside of brackets, braces and quotes."""
    parts = re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|'[^']*'|[^,])+", values)
    return [part.strip() for part in parts]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return json.dumps(value) if value is None or isinstance(value, bool) else str(value)
