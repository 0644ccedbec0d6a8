"""Every table and figure of the papers that has an experiment: what its cells are, and what in the
paper they stand for.
"""

import json
import re
from pathlib import Path
from statistics import stdev
from typing import Any

import pytest
from builders import SMALL
from conftest import PAPERS
from msgspec.structs import replace

from skipbench.bench.arm import ArmRunner
from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.grid import matches, plan, printed_numbers
from skipbench.experiments.plan import composed, once
from skipbench.experiments.row import run_rows
from skipbench.experiments.table_runs import _by_group, run_entry, table_runs
from skipbench.report.definitions import KEYS
from skipbench.report.published import published
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.paper import paper_table
from skipbench.runs.cell import Cell
from skipbench.runs.measures import Metrics
from skipbench.runs.reading import run_folders
from skipbench.runs.record import VANILLA
from skipbench.runs.run import read_run

TABLES = {
    "swift": range(2, 13),
    "clasp": [1],
    "self-sd": [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 15, 17],
    "knapspec": [2],
}
# Cells that agree with printed numbers, at the papers' scale. Figures whose numbers are read off
# curves have fewer than cells.
LABELS = (", our defaults", ", fused engine", ", as the published set")
"""Ends of the names of rows that stand beside the paper's methods."""
LABELLED = {"knapspec-table2", *(f"self-sd-table{n}" for n in (*range(1, 6), 8))}
JOINED = {
    "swift-table2": 27, "swift-table3": 8, "swift-table4": 18, "swift-table5": 24,
    "swift-table6": 12, "swift-table7": 8, "swift-table8": 5, "swift-table9": 4,
    "swift-table10": 4, "swift-table11": 3, "swift-table12": 5, "clasp-table1": 24,
    "clasp-section5.1": 3, "self-sd-table1": 24, "self-sd-table2": 4, "self-sd-table3": 5,
    "self-sd-table4": 5, "self-sd-table5": 2, "self-sd-table6": 7, "self-sd-table8": 5,
    "self-sd-table9": 5, "self-sd-table10": 5, "self-sd-table11": 5, "self-sd-table12": 4,
    "self-sd-table13": 4, "self-sd-table14": 6, "self-sd-table15": 4, "self-sd-table17": 4,
    "knapspec-table2": 120, "clasp-figure4a": 1, "swift-figure2b": 2, "swift-figure11": 3,
    "self-sd-figure4": 1, "knapspec-figure4": 1, "knapspec-figure6": 2,
}  # fmt: skip


def test_every_listed_table_has_an_experiment() -> None:
    wanted = {f"{paper}-table{number}" for paper, numbers in TABLES.items() for number in numbers}
    assert wanted == {name for name in PAPERS if "-table" in name}
    left = {f"{paper}-{row['table']}" for paper in TABLES for row in published(paper)} - set(PAPERS)
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
        assert all(
            any(matches(keys, r) for keys in beside) for r in rows if r.get("dataset") != "overall"
        )
        for row in rows:  # two cells for one number would leave it to chance which is shown
            alike = [c.keys for c in planned if matches(c.keys, row)]
            assert len(alike) <= 1 or row.get("dataset") == "overall", (row, alike)
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
    dispatch(["table", *command, "--render-only"])
    table = tmp_path / "tables" / "self-sd-table9.embedded.md"
    assert "its search of 3 sets is not done yet" in table.read_text()
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


def test_self_sd_s_table_5_has_its_own_n_and_deviations_in_both_halves(tmp_path: Path) -> None:
    given = [f"results={tmp_path}", *SMALL, "limit=3", "method=self-sd"]
    cell, *_ = composed(plan("self-sd-table5", given, "embedded"))
    run_rows([cell])
    (run,) = table_runs(cell, False)
    assert run.paper_samples is None and run.lengths["max_new_tokens"] == "8"
    own = {"model": "llama2-13b", "dataset": "cnndm"}
    beside = replace(run, keys=run.keys | own, paper_samples=10)
    table = paper_table("self-sd", "table5", [beside])
    ours = {
        (r["phase"], r["part"], r["method"]): (r["measured"], r["measured_spread"])
        for r in table.records
        if r["model"] == "llama2-13b" and r["column"] == "ms"
    }
    rates = [1000 * (arm.s_per_token or 0.0) for arm in run.arms]
    assert len(rates) == 3 and ours["latency", "all", "self-sd"][1] == pytest.approx(stdev(rates))
    rates = [1000 * (turn.arms[VANILLA].s_per_token or 0.0) for turn in run.sound]
    value, spread = ours["latency", "all", "vanilla"]  # of the arm beside the method's
    assert spread == pytest.approx(stdev(rates)) and min(rates) <= value <= max(rates)
    draft, attention = ours["draft", "all", "self-sd"][1], ours["draft", "attention", "self-sd"][1]
    assert draft and attention and attention < draft
    text = markdown(table)
    assert f" {value:.2f} \u00b1 {spread:.2f} " in text and "25.5 \u00b1 1.1" in text
    assert "n (samples per cell): 3; the paper's: 10." in text


def test_what_was_decoded_is_said_of_the_run_not_of_the_paper() -> None:
    (run,) = table_runs(*composed(plan("clasp-table1", ["limit=1"], "paper")[:1]), True)
    assert run.keys["max_length"] == 1024  # the paper's
    assert run.lengths["max_length"] == "none, up to 1024 new tokens"
    measured = replace(run, metrics=Metrics(samples=1, tau=4.5, tau_draft=3.6, alpha=0.5))
    measured = replace(measured, keys=run.keys | {"method": "clasp", "subtask": "qa"})
    table = paper_table("clasp", "table1", [measured])
    said = "\n".join(table.cautions)
    assert "max_length: none, up to 1024 new tokens; the paper's: 1024." in said
    assert "batch" not in said and "in the paper max_length 1024" in table.grids[0].settings
    for column, value, theirs in (("tau", 4.5, 5.37), ("tau_draft", 3.6, None)):
        where = {"column": column, "subtask": "qa", "method": "clasp", "temperature": 0}
        where["model"] = "llama3-70b"
        (one,) = (r for r in table.records if r.items() >= where.items())
        assert (one["measured"], one["published"]) == (value, theirs)
    assert "tau_draft" in dict(table.definitions)


def test_samples_of_groups_are_runs_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "question.jsonl"
    rows = [(n, ("qa", "rag")[n % 2], [f"Why {n}?"]) for n in range(4)]
    names = ("question_id", "category", "turns")
    path.write_text("".join(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows))
    words = [*SMALL, "model=tiny", "dataset=specbench", f"dataset.path={path}", "method=uniform"]
    run_rows([cell := Cell(compose([*words, f"results={tmp_path}"]))])
    run = replace(run_entry(cell), keys={"method": "uniform"})
    turns = run.turns
    group = next(iter(turns[0].groups))
    assert run.provenance.layers == 12
    split = _by_group(run, "subtask", group)
    assert {r.keys["subtask"] for r in split} == {turn.groups[group] for turn in turns}
    assert sum(r.measured.samples for r in split) == len(turns) == run.measured.samples
    assert sum(r.measured.rounds for r in split) == run.measured.rounds


@pytest.mark.slow
def test_a_cell_that_fails_stops_no_other_and_stands_in_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decode = ArmRunner.decode

    def failing(self: ArmRunner, method: Any, *more: Any) -> Any:
        if self.config.method.name == "uniform" and method is self.method:
            raise RuntimeError("out of luck")
        return decode(self, method, *more)

    monkeypatch.setattr(ArmRunner, "decode", failing)
    words = ["table", "swift-table2", "scale=embedded", f"results={tmp_path}", *SMALL]
    with pytest.raises(SystemExit) as ended:
        dispatch([*words, "method=uniform,middle", "dataset=mini-math"])
    assert ended.value.code == 1 and "out of luck" in capsys.readouterr().err
    # three models of the paper are one here
    states = {f.name.split("_")[0]: read_run(f).status.state for f in run_folders(tmp_path)}
    assert states == {"uniform": "failed", "middle": "done"}
    assert "out of luck" in (tmp_path / "tables" / "swift-table2.embedded.md").read_text()
