"""What the cells of every experiment have in common: rows that are compared differ in what is
compared, sets run on the engine that they suit, and each cell and rule of a figure is of use.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from conftest import PAPERS

from skipbench.config.catalog import choices, experiment_of, file_of, model_facts
from skipbench.experiments.grid import plan
from skipbench.experiments.plan import without_repeats
from skipbench.report.compared import BASELINE
from skipbench.report.figures.registry import FIGURES, NOT_RUN
from skipbench.report.published import read_paper
from skipbench.report.tables.paper_rows import halves
from skipbench.runs.cell import Cell
from skipbench.runs.run import Run

EXPERIMENTS = choices("experiment")
OF_METHOD = ("method", "stop@method.stop", "search")
TOGETHER: dict[str, list[set[str]]] = {  # keys that two rows may differ in at the same time
    "clasp-figure5": [{"model", "engine"}],  # 405B in 8 bits, which the reference engine has
    "knapspec-figure5": [{"model", "dataset"}],  # a dataset per model
    "knapspec-table2": [{"model", "dataset"}],  # so have its two halves
    "self-sd-figure5": [{"model", "dataset", "dataset.max_new_tokens"}],  # text, and code
    "self-sd-figure6": [{"model", "dataset", "dataset.max_new_tokens"}],
    "self-sd-table14": [{"model", "dataset"}],
    "swift-figure9": [{"model", "dataset", "dataset.prompt", "dataset.max_new_tokens"}],
    # a format of weights with the set that was searched in it; LLM.int8() needs float16
    "self-sd-figure10": [{"model.quantization", "model.dtype", "search", "search.iterations"}],
    "self-sd-table12": [{"model.quantization", "model.dtype", "search", "search.iterations"}],
    "self-sd-table13": [{"model.sparsity", "search", "search.iterations"}],
    # a fixed length, or a fixed threshold, is a threshold that takes no steps
    "self-sd-table3": [{"method.stop.max_steps", "method.stop.threshold", "method.stop.step"}],
    "self-sd-table4": [{"method.stop.threshold", "method.stop.step"}],
    # LayerSkip has a checkpoint of its own
    "swift-table10": [{"model", "method", "method.exit_layer"}],
}


def alike(one: Mapping[str, str], other: Mapping[str, str], together: Iterable[set[str]]) -> bool:
    """Whether two cells differ in one thing: a key, a key that each sets alone, the method with its
    own settings, the way to sample, or keys that are allowed to go together.
    """
    differing = {k for k in one.keys() | other.keys() if one.get(k) != other.get(k)}
    if any(differing <= keys for keys in together):
        return True
    if "method" in differing:
        differing = {k for k in differing if not k.startswith(OF_METHOD)} | {"method"}
    if "decoding.temperature" in differing:
        differing -= {"decoding.top_p", "dataset.samples_per_task"}
    own = [len(differing - each.keys()) for each in (one, other)]
    return len(differing) <= 1 or (len(differing) == 2 and own == [1, 1])


def apart(cells: Iterable[Mapping[str, str]], together: Iterable[set[str]]) -> list[Any]:
    """The cells that no chain of pairs which differ in one thing joins with the first one."""
    first, *left = cells
    found = [first]
    for here in found:
        near = [one for one in left if alike(here, one, together)]
        left = [one for one in left if one not in near]
        found += near
    return left


def planned(name: str, scale: str = "paper") -> list[Cell]:
    return [cell for cell in plan(name, [], scale) if cell.runnable]


def test_rows_of_an_experiment_differ_in_what_it_compares() -> None:
    for name in EXPERIMENTS:
        if cells := [cell.overrides for cell in planned(name)]:
            together = TOGETHER.get(name, [])
            assert apart(cells, together) == [], name
            for keys in together:  # each is needed
                assert apart(cells, [other for other in together if other != keys]), (name, keys)


def published_set(cell: Cell) -> bool:
    """Whether a cell drafts with a set that was published for its model."""
    sets = model_facts(cell.overrides["model"]).get("sets") or {}
    return cell.overrides["method"] in sets and not cell.searches


def test_published_sets_run_on_the_engine_that_they_suit() -> None:
    """Self-SD's were searched where attention was 70 % of a pass, so on `engine=reference`, as what
    stands beside them; rows on the other engine are named by it, and have one here, too.
    """
    found = {name: cells for name in PAPERS if any(map(published_set, cells := planned(name)))}
    assert {"self-sd-table17", "self-sd-figure4", "swift-table10"} <= found.keys()
    for name, cells in found.items():
        engines: dict[bool, set[str]] = {True: set(), False: set()}
        for cell in cells:
            fused = str(cell.keys.get("method")).endswith(", fused engine")
            engines[fused].add(cell.overrides.get("engine", "fused"))
        assert engines[False] == {"reference"} and engines[True] <= {"fused"}, name
        header = file_of("experiment", name).read_text().partition("\nlimit:")[0]
        assert "engine=reference" in header, f"{name} does not say why"


def test_every_cell_of_a_table_has_a_place_in_it() -> None:
    for name in [name for name in PAPERS if "-figure" not in name]:
        paper, _, table = name.rpartition("-")
        parts = halves(read_paper(paper), table)
        labels = {n.keys["subtask"] for part in parts for n in part.numbers if "subtask" in n.keys}
        cells = without_repeats(name, planned(name), "paper")
        split = [{"subtask": one} for one in sorted(labels - {"overall"})]
        if not experiment_of(name).published.groups:
            split = [{}]
        names = {n.method for part in parts for n in part.numbers}
        cells = [c for c in cells if c.runnable and c.keys["method"] in names]
        runs = [Run(keys=cell.keys | own) for cell in cells for own in split]
        for run in runs:
            assert any([part.add(run) for part in parts]), (name, run.keys)
        shown = {id(run) for part in parts for run in part.runs.values()}
        assert not [run.keys for run in runs if id(run) not in shown], name


def test_every_cell_of_a_figure_is_drawn() -> None:
    for name in [name for name in PAPERS if "-figure" in name]:
        cells = planned(name)
        assert BASELINE not in {cell.overrides["method"] for cell in cells}, f"{name} leaves it out"
        assert name in FIGURES or (name in NOT_RUN and not cells), f"nothing reads cells of {name}"
