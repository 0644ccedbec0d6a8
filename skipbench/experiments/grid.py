"""The cells of an experiment: its axes and cases, at a scale, and what in the paper each of them
stands for.
"""

import functools
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from skipbench.config.catalog import axes, choices, paper_side
from skipbench.config.paths import CONF
from skipbench.errors import SkipbenchError
from skipbench.report.compared import BASELINE
from skipbench.report.definitions import KEYS
from skipbench.report.published import paper_of, published

SCALES = ("paper", "embedded", "laptop")
KEY_OF = {  # an override, and the key under which `published` has it
    "model": "model",
    "dataset": "dataset",
    "method": "method",
    "decoding.temperature": "temperature",
    "decoding.top_p": "top_p",
    "dataset.max_new_tokens": "max_new_tokens",
    "model.dtype": "dtype",
    "method.stop.max_steps": "max_steps",
    "method.stop.threshold": "threshold",
    "method.stop.target": "target",
    "method.interval": "interval",
    "method.window": "window",
    "method.tau": "tau_pruning",
    "search.iterations": "search_steps",
    "search.on": "set_from",
}
NOISE_PER = ("model", "dataset", "decoding.temperature", "decoding.top_p", "engine")
NOISE_LIMIT = "20"
OF_METHOD = ("method", "stop", "search")
"""Beginnings of overrides that vanilla does not have."""
Keys = dict[str, Any]


@dataclass(frozen=True)
class PlannedCell:
    """One cell: `overrides` compose it; without `run` it is not run, and `reason` says why."""

    overrides: dict[str, str]
    keys: Keys = field(default_factory=dict)
    """What it stands for in the paper, in the ids of `published`."""
    stands_for: str | None = None
    reason: str | None = None
    run: bool = True
    noise: bool = False
    """Vanilla against itself, which is no row of the paper's table."""

    @property
    def searches(self) -> bool:
        """Whether its skip set comes from a search of its own."""
        return self.run and any(
            o in ("search", "search.iterations", "search.on") for o in self.overrides
        )

    def words(self, experiment: str) -> list[str]:
        own = ["search.own=true"] if self.searches else []
        return [
            f"experiment={experiment}",
            *(f"{key}={value}" for key, value in self.overrides.items()),
            *own,
        ]

    @property
    def name(self) -> str:
        """Its overrides, in a line."""
        return " ".join(f"{key}={value}" for key, value in self.overrides.items())


@functools.cache
def printed_rows(experiment: str) -> list[dict[str, Any]]:
    """The numbers that the paper prints in the table of `experiment`; none for figures that print
    none.
    """
    paper, table = paper_of(experiment) or (None, None)
    return [row for row in published(paper) if row["table"] == table] if paper else []


def plan(
    experiment: str, overrides: Sequence[str], scale: str, models: Sequence[str] = ()
) -> list[PlannedCell]:
    """The cells of `experiment`, in its order, those that become the same once.

    Args:
        overrides: of the command line; one of an axis replaces the experiment's values, and may
            hold several.
        scale: `paper`, `embedded` or `laptop`; an experiment of no paper has only one.
        models: of the paper's models only these; all where empty.

    Raises:
        SkipbenchError: an unknown scale, or an override that leaves no cell.
    """
    if scale not in SCALES:
        raise SkipbenchError(f"scale={scale}; wanted one of {', '.join(SCALES)}")
    given = dict(_pair(o) for o in overrides)
    own = paper_of(experiment)
    rows = printed_rows(experiment)
    cells = []
    for point, case in _points(experiment, given):
        if models and point.get("model") not in models:
            continue
        keys = _keys(point, case, rows) if own else {}
        cell = PlannedCell(
            point, keys, None, case.get("reason") or case.get("note"), "reason" not in case
        )
        cells += (
            _scaled(cell, given, rows, scale, experiment) if own and scale != "paper" else [cell]
        )
    if not cells and not models:
        raise SkipbenchError(
            f"{experiment} has no cell with {' '.join(overrides)}; leave one of them out"
        )
    unique: list[PlannedCell] = []
    for cell in cells:
        if cell not in unique:
            unique.append(cell)
    return unique


def noise_cells(
    experiment: str, cells: Sequence[PlannedCell], overrides: Sequence[str]
) -> list[PlannedCell]:
    """Vanilla against itself for each model, dataset and decoding of a table of speedups whose
    `cells` have none, on few samples.

    None where the command line chooses methods, or for an experiment of no paper.
    """
    own, given = paper_of(experiment), dict(_pair(o) for o in overrides)
    timed = any(row["column"] == "speedup" for row in printed_rows(experiment))
    methods = {cell.overrides.get("method") for cell in cells}
    if own is None or not own[1].startswith("table") or not timed or {"method"} & given.keys():
        return []
    found: dict[tuple[str | None, ...], PlannedCell] = {}
    for cell in cells:
        kept = {k: v for k, v in cell.overrides.items() if not k.startswith(OF_METHOD)}
        few = {} if {"limit"} & {*kept, *given} else {"limit": NOISE_LIMIT}
        keys = {k: v for k, v in cell.keys.items() if k in NOISE_PER} | {"method": BASELINE}
        if cell.run and BASELINE not in methods:
            one = PlannedCell(kept | {"method": BASELINE} | few, keys, cell.stands_for, noise=True)
            found.setdefault(tuple(cell.overrides.get(axis) for axis in NOISE_PER), one)
    return list(found.values())


def without_repeats(experiment: str, cells: Sequence[PlannedCell], scale: str) -> list[PlannedCell]:
    """The cells of a paper's table without those of vanilla alone where another method runs on the
    same: its record holds vanilla's arm, from which the table fills vanilla's row. Those of other
    scales and of figures stay.
    """

    def rest(cell: PlannedCell) -> tuple[tuple[str, str], ...]:
        own = {k: v for k, v in cell.overrides.items() if not k.startswith(("method", "search"))}
        return tuple(sorted(own.items()))

    if scale != "paper" or "-table" not in experiment:
        return list(cells)
    covered = {rest(c) for c in cells if c.run and c.overrides.get("method") != "vanilla"}
    return [
        cell
        for cell in cells
        if not (cell.run and cell.overrides.get("method") == "vanilla" and rest(cell) in covered)
    ]


def _points(
    experiment: str, given: Mapping[str, str]
) -> list[tuple[dict[str, str], dict[str, Any]]]:
    """Every point of the grid with the case that it belongs to; a case is a grid of its own over
    the common axes.
    """
    common, found = axes(experiment), []
    cases = paper_side(experiment).get("cases") or [{}]
    named = {axis for case in cases for axis in case} | set(common)
    rest = {key: value for key, value in given.items() if key not in named}
    for case in cases:
        values = common | {
            k: _text(v) for k, v in case.items() if k not in ("keys", "reason", "note", "share")
        }
        lists = {axis: _split(found) for axis, found in values.items()}
        for axis in given.keys() & lists.keys():
            # What else a case says fits its methods only; an axis that a case lacks is none of its
            # own.
            wanted = _split(given[axis])
            lists[axis] = (
                [v for v in lists[axis] if v in wanted]
                if axis == "method" and axis in case
                else wanted
            )
        for point in itertools.product(*lists.values()):
            settings = dict(zip(lists, point, strict=True)) | rest
            found.append((settings | _fewer(settings, case.get("share")), case))
    return found


def _fewer(point: Mapping[str, str], share: float | None) -> dict[str, str]:
    """The limit of a case that takes a share of the prompts of the others."""
    limit = point.get("limit", "null")
    if share is None or limit == "null":
        return {}
    return {"limit": str(max(1, round(share * int(limit))))}


def _keys(
    point: Mapping[str, str], case: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]
) -> Keys:
    """Of the keys by which the paper's table tells its rows apart, those that the point fixes."""
    used = {key for row in rows for key in row if key in KEYS} | {"model", "dataset", "method"}
    keys: Keys = {
        KEY_OF[axis]: yaml.safe_load(value)
        for axis, value in point.items()
        if KEY_OF.get(axis) in used
    }
    if "temperature" in used:
        keys.setdefault("temperature", 0.0)  # conf/decoding: greedy, unless something else is said
    keys |= case.get("keys", {})
    return keys | _constants(keys, rows)


def _constants(keys: Keys, rows: Sequence[Mapping[str, Any]]) -> Keys:
    """What all printed rows of these keys have in common, such as the paper's number format."""
    matching = [row for row in rows if matches(keys, row)]
    fixed = {}
    for key in sorted({key for row in matching for key in row if key in KEYS} - keys.keys()):
        values = {row.get(key) for row in matching}
        if len(values) == 1:
            fixed[key] = values.pop()
    return fixed


def matches(keys: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Whether a printed row agrees with a cell in every key that both have."""
    return all(row[key] == value for key, value in keys.items() if key in row)


def _scaled(
    cell: PlannedCell,
    given: Mapping[str, str],
    rows: Sequence[Mapping[str, Any]],
    name: str,
    experiment: str,
) -> list[PlannedCell]:
    """The cell with the model and the dataset of a smaller scale in it; one per subtask where each
    has its own.
    """
    scale = _scale(name)
    if experiment in scale["long"]["experiments"]:
        own = {key: scale[key] | scale["long"][key] for key in ("overrides", "methods")}
        scale = {**scale, **own, "datasets": {}}
    point, keys = dict(cell.overrides), dict(cell.keys)
    if "model.quantization" in point and "model.quantization" not in given:
        keys["model"] = scale["model"]
        return [
            replace(
                cell,
                keys=keys,
                run=False,
                reason=(
                    f"bitsandbytes is no part of the {name} scale; give "
                    "model.quantization=nf4 engine=reference to a run"
                ),
            )
        ]
    for axis in [
        a
        for a in point
        if a not in given and a not in scale["keep"] and a.startswith(tuple(scale["drop"]))
    ]:
        del point[axis]
    if "model" not in given:
        point["model"] = keys["model"] = scale["model"]
    for axis, factor in scale["times"].items():
        if axis in point and axis not in given:
            value = int(point[axis])
            point[axis] = str(max(min(2, value), round(value * factor)))  # 0 is none, and stays
    own = {k: v for k, v in scale["methods"].get(point["method"], {}).items() if k not in point}
    settings = {k: str(v) for k, v in (scale["overrides"] | own).items() if k not in given}
    if not cell.searches:  # no run depends on it
        settings = {k: v for k, v in settings.items() if not k.startswith("search")}
    if "search.on" in point and "search.on" not in given:
        point["search.on"] = _main(scale["datasets"].get(point["search.on"], scale["other"]), scale)
    dataset = point.get("dataset", "")
    own_name = scale["datasets"].get(dataset) == dataset
    if "dataset" in given or dataset.startswith("mini-") or own_name:
        return [replace(cell, overrides=point | settings, keys=keys)]
    found = scale["datasets"].get(dataset, scale["other"])
    parts = (
        found
        if isinstance(found, dict) and any("subtask" in row for row in rows)
        else {None: _main(found, scale)}
    )
    return [
        replace(
            cell,
            overrides=point | {"dataset": other} | settings,
            keys=keys if part is None else keys | {"subtask": part},
            stands_for=f"{other} stands for {dataset}" + (f", {part}" if part else ""),
        )
        for part, other in parts.items()
    ]


@functools.cache
def _scale(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CONF / "scale" / f"{name}.yaml").read_text())
    return found


def _main(found: Any, scale: Mapping[str, Any]) -> str:
    return str(scale["other"] if isinstance(found, dict) else found)


def _pair(override: str) -> tuple[str, str]:
    key, sign, value = override.partition("=")
    if not sign:
        raise SkipbenchError(f"{override!r} is no override; wanted KEY=VALUE")
    return key, value


def _split(values: str) -> list[str]:
    """At commas, but not inside brackets, braces or quotes."""
    return [
        v.strip() for v in re.findall(r"(?:\[[^\]]*\]|\{[^}]*\}|\"[^\"]*\"|'[^']*'|[^,])+", values)
    ]


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return (
        str(value).lower() if isinstance(value, bool) else "null" if value is None else str(value)
    )


def experiments(prefix: str = "") -> list[str]:
    """Names of experiments of the papers that begin with `prefix`."""
    return [name for name in choices("experiment") if paper_of(name) and name.startswith(prefix)]
