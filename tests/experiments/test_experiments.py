"""Every table and figure of the papers that has an experiment: what its cells are, and what in the
paper they stand for; rows that are compared differ in what is compared.
"""

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from builders import LOAD, SMALL
from conftest import PAPERS
from msgspec.structs import replace

from skipbench.cli.main import dispatch
from skipbench.config.catalog import choices, experiment_of
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.grid import matches, plan, printed_numbers
from skipbench.experiments.plan import composed, once, without_repeats
from skipbench.experiments.row import run_rows
from skipbench.experiments.table_runs import _by_group, run_entry
from skipbench.report.compared import BASELINE
from skipbench.report.definitions import KEYS
from skipbench.report.figures.registry import FIGURES, NOT_RUN
from skipbench.report.published import published, read_paper
from skipbench.report.tables.paper_rows import halves
from skipbench.runs.cell import Cell
from skipbench.runs.reading import run_folders
from skipbench.runs.run import Run, read_run

LABELS = (", our defaults", ", fused engine", ", as the published set")
"""Ends of the names of rows that stand beside the paper's methods."""
LABELLED = {"knapspec-table2", *(f"self-sd-table{n}" for n in (*range(1, 6), 8))}
JOINED = {"clasp-figure4a": 1, "swift-figure2b": 2, "swift-figure11": 3, "self-sd-figure4": 1}
JOINED |= {"knapspec-figure4": 1, "knapspec-figure6": 2, "clasp-section5.1": 3}
"""Cells that agree with printed numbers; all of a table do. Other figures are read off curves."""


def test_every_printed_table_has_an_experiment() -> None:
    papers = ("swift", "clasp", "self-sd", "knapspec")
    left = {f"{paper}-{row['table']}" for paper in papers for row in published(paper)} - set(PAPERS)
    text = sorted(name for name in left if re.search(r"-(table|figure)", name))
    # Features; hyperparameters; other groups' models.
    assert text == ["self-sd-table16", "self-sd-table7", "swift-table1"]


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_every_cell_composes(name: str) -> None:
    """At the papers' scale in `test_every_experiment_plans`."""
    for scale in ("embedded", "laptop"):
        for cell in once(composed(plan(name, [], scale))):
            assert cell.config.method.name == cell.overrides["method"]


@pytest.mark.parametrize("name", PAPERS)
def test_cells_stand_for_printed_rows(name: str) -> None:
    rows, planned = [n.keys for n in printed_numbers(name)], plan(name, [], "paper")
    assert all(set(cell.keys) <= KEYS for cell in planned)
    joined = [cell for cell in planned if any(matches(cell.keys, row) for row in rows)]
    if name in JOINED:
        assert len(joined) == JOINED[name]
    if "-figure" not in name:  # a number that no cell stands for would stay empty for ever
        ours = [c for c in planned if str(c.keys["method"]).endswith(LABELS)]
        assert len(joined) + len(ours) == len(planned) and bool(ours) == (name in LABELLED)
        # a row of vanilla without a cell is the arm beside another method
        beside = [c.keys for c in planned] + [c.keys | {"method": "vanilla"} for c in planned]
        for row in (row for row in rows if row.get("dataset") != "overall"):
            assert any(matches(keys, row) for keys in beside), row
            # two cells for one number would leave it to chance which is shown
            assert len([c for c in planned if matches(c.keys, row)]) <= 1, row
        models = {row["model"] for row in rows if "model" in row}
        assert models == {cell.keys["model"] for cell in planned}


def test_overrides_of_the_command_line_go_first() -> None:
    def methods(*overrides: str, models: tuple[str, ...] = ()) -> list[str]:
        return [c.overrides["method"] for c in plan("swift-table8", overrides, "paper", models)]

    assert methods("method=swift") == ["swift"] * 4
    assert methods(models=("llama2-70b",)) == []
    words = ["model=planted", "limit=7", "dataset=gsm8k"]
    cells = plan("swift-table2", words, "embedded")
    given = {tuple(c.overrides[key] for key in ("model", "limit", "dataset")) for c in cells}
    assert given == {("planted", "7", "gsm8k")}
    large = plan("swift-table2", [], "paper", ["llama2-70b"])
    assert {c.keys["model"] for c in large} == {"llama2-70b"}
    with pytest.raises(SkipbenchError, match="'clasp' is no method of swift-table8"):
        plan("swift-table8", ["method=clasp"], "paper")
    with pytest.raises(SkipbenchError, match="one of paper, embedded, laptop"):
        plan("swift-table8", [], "small")


def test_settings_of_a_search_reach_only_methods_that_take_a_set() -> None:
    words = ["search.iterations=2", "method=uniform,vanilla,self-sd", "dataset=mini-math"]
    configs = [compose(cell.words) for cell in plan("tiny", words, "embedded")]
    searching = [one.method.name for one in configs if one.search_dataset is not None]
    assert len(configs) == 3 and searching == ["self-sd"]


@pytest.mark.slow
def test_a_cell_with_a_search_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["search.iterations=2,3", "search.max_new_tokens=4", *SMALL, "dataset=mini-math"]
    words.append("method.stop.max_steps=3")
    command = ["self-sd-table9", "scale=embedded", f"results={tmp_path}", *words]
    dispatch(["table", *command, "dry_run=true"])
    assert "a search of 3 sets, missing" in capsys.readouterr().out
    dispatch(["table", *command])
    # the longer search went on where the shorter one ended
    (trace,) = tmp_path.glob("search/*/trace.jsonl")
    trials = [json.loads(line) for line in trace.read_text().splitlines()[1:]]
    assert len(trials) == 3
    # the best of them when they were timed again
    again = trace.parent / "retimed.jsonl"
    retimed = [json.loads(line) for line in again.read_text().splitlines()]
    assert [one["iterations"] for one in retimed] == [2, 3]
    for one in retimed:
        assert {*one["sets"]} == {t["skip"] for t in trials[: one["iterations"]]}
    found = [read_run(folder).settings["method"] for folder in run_folders(tmp_path)]
    assert {m["skip"] for m in found if "skip" in m} == {one["best"] for one in retimed}
    assert not list(tmp_path.glob("skip_sets/*"))  # no other run's `stored` has changed


def test_samples_of_groups_are_runs_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    rows = [(n, ("qa", "rag")[n % 2], [f"Why {n}?"]) for n in range(4)]
    names = ("question_id", "category", "turns")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    words = [*SMALL, "model=tiny", "dataset=specbench", f"dataset.path={path}", "method=uniform"]
    run_rows([cell := Cell(compose([*words, f"results={tmp_path}"]))], LOAD)
    run = replace(run_entry(cell), keys={"method": "uniform"})
    turns = run.turns
    group = next(iter(turns[0].groups))
    assert run.provenance.layers == 12
    split = _by_group(run, "subtask", group)
    assert {r.keys["subtask"] for r in split} == {turn.groups[group] for turn in turns}
    assert sum(r.measured.samples for r in split) == len(turns) == run.measured.samples
    assert sum(r.measured.rounds for r in split) == run.measured.rounds


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


def planned(name: str) -> list[Cell]:
    return [cell for cell in plan(name, [], "paper") if cell.runnable]


def test_rows_of_an_experiment_differ_in_what_it_compares() -> None:
    for name in choices("experiment"):
        if cells := [cell.overrides for cell in planned(name)]:
            together = TOGETHER.get(name, [])
            assert apart(cells, together) == [], name
            for keys in together:  # each is needed
                assert apart(cells, [other for other in together if other != keys]), (name, keys)


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
