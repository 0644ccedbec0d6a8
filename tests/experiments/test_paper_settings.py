"""What the cells of every experiment compose to is what the papers print: the settings in the rows
of their own tables, and those of the papers' lists of hyperparameters.
"""

from collections.abc import Iterator
from typing import Any

import pytest
from conftest import PAPERS, rest_slow

from skipbench.config.run_config import RunConfig
from skipbench.experiments.grid import KEY_OF, matches, plan, printed_numbers
from skipbench.experiments.plan import composed, once
from skipbench.report.published import Printed, paper_of, read_paper
from skipbench.runs.cell import Cell

EVERY_DAY = (
    "self-sd-table11",
    "self-sd-table13",
    "swift-table10",
    "clasp-figure4a",
    "knapspec-figure3",
)
STOP = ("max_steps", "threshold", "target", "step", "beta1", "beta2")
METHOD = ("interval", "window", "history", "steps", "beta", "patience", "max_score", "ratio")
LISTS = {  # tables of settings, by method: of its model and dataset, where a row names these
    "self-sd": ("self-sd", ["table7"]),
    "swift": ("swift", ["sectionB.2"]),
    "knapspec": ("knapspec", ["section3"]),
    "clasp": ("clasp", ["figure4c"]),
}
DATA = {"swift": "sectionB.1", "self-sd": "section4.1"}
SAMPLED = ("top_p", "temperature")  # of Self-SD's Table 7: those of random sampling
FORMATS = {"fp8": "int8", "fp4": "fp4", "nf4": "nf4", "int8": "int8"}
SPARSITIES = {"dense": "none", "unstructured": "wanda-0.5", "4:8": "wanda-4:8", "2:4": "wanda-2:4"}
NO_SETTING = object()  # of a cell, such as the phase of a time
NOT_RUN = ("clasp-figure3b", "self-sd-figure9", "self-sd-table10")  # their files say why
LARGE = 10e9  # parameters from which KnapSpec's interval is another (section 5)


def value(config: RunConfig, key: str, printed: Any) -> Any:
    """The composed value of a setting of a paper, in the paper's form, or NO_SETTING."""
    method, stop, model = config.method.node, config.method.node.get("stop", {}), config.model
    if key in STOP and key in stop:
        return stop[key]
    if key in METHOD and key in method:
        return method[key]
    match key:
        case "temperature" | "top_p":
            return getattr(config.decoding, key)
        case "model" | "dataset":  # LayerSkip has a checkpoint of its own
            return getattr(config, key).name.removeprefix("layerskip-")
        case "max_new_tokens" | "max_length":
            return config.dataset.max_new_tokens
        case "samples":
            return config.dataset.size
        case "shots":
            return config.dataset.node["shots"]
        case "ratio" if config.method.name == "layerskip":
            return round(config.method.factory()(layers=40).skip.ratio, 2)
        case "ratio" if config.search_dataset is not None:
            return config.search.ratio
        case "search_steps":
            return config.search.iterations if config.search_dataset is not None else NO_SETTING
        case "set_from":
            return config.search_dataset and config.search_dataset.name
        case "tau_pruning":
            return method["tau"]
        case "stop":
            return "adaptive" if stop["_target_"].endswith("Adaptive") and stop["step"] else "fixed"
        case "skipped_layers":
            return config.method.factory()(layers=80).skipped
        case "sparsity":
            return next(k for k, v in SPARSITIES.items() if v == model.sparsity)
        case "dtype" if model.quantization != "none":
            return printed if FORMATS.get(printed) == model.quantization else model.quantization
        case "dtype":
            return model.dtype
    return NO_SETTING


def of_its_table(name: str, cell: Cell) -> Iterator[tuple[str, Any]]:
    """The settings in the rows of the experiment's own table or figure that the cell stands for."""
    for number in printed_numbers(name):
        if matches(cell.keys, number.keys):
            yield from number.keys.items()
            if number.column == "ratio":
                yield number.column, number.value


def of_its_lists(name: str, cell: Cell, config: RunConfig) -> Iterator[tuple[str, Any]]:
    """What the papers list for the cell's method, model and dataset, and what its own paper says of
    all its tables, if the cell does not ablate that.
    """
    given = {KEY_OF.get(key, key.rpartition(".")[2]) for key in cell.overrides}
    sampled = config.decoding.temperature > 0

    def wanted(numbers: list[Printed]) -> Iterator[tuple[str, Any]]:
        for n in numbers:
            ours = {"model": config.model.name, "dataset": config.dataset.name}
            same = all(n.keys.get(key, of) == of for key, of in ours.items())
            if same and n.column not in given and (sampled or n.column not in SAMPLED):
                yield n.column, n.value

    paper, tables = LISTS.get(config.method.name, ("", []))
    for table in tables:
        if "stop@method.stop" not in cell.overrides:
            yield from wanted(numbers_in(paper, table))
    if config.method.name == "knapspec" and "interval" not in given:
        (small, large) = (n.value for n in numbers_in("knapspec", "section5"))
        shape = config.model.architecture
        yield "interval", small if shape and shape.parameters < LARGE else large
    of = paper_of(name)
    if of:
        whole = read_paper(of[0]).settings.items()
        yield from ((k, v) for k, v in whole if k not in given | cell.keys.keys())
    if of and of[0] in DATA and config.limit is None and config.dataset.name != "stream":
        yield from wanted(numbers_in(of[0], DATA[of[0]]))


def numbers_in(paper: str, table: str) -> list[Printed]:
    return [n for part in read_paper(paper).tables[table].parts for n in part.numbers]


@pytest.mark.parametrize("name", rest_slow(PAPERS, EVERY_DAY.__contains__))
def test_what_is_composed_is_what_the_paper_prints(name: str) -> None:
    cells, compared = once(composed(plan(name, [], "paper"))), 0
    for cell in cells:
        for key, printed in {*of_its_table(name, cell), *of_its_lists(name, cell, cell.config)}:
            ours = value(cell.config, key, printed)
            assert ours in (printed, NO_SETTING), f"{cell.name}: {key} is {ours}, not {printed}"
            compared += ours is not NO_SETTING
    print(f"{name}: {compared} values of {len(cells)} cells")  # noqa: T201 (pytest -rP)
    assert bool(compared) == bool(cells) == (name not in NOT_RUN)
