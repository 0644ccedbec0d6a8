"""The papers' tables: runs joined with the real published numbers, and the four formats."""

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs
from paper_runs import cell, each, metrics, run, swift

from skipbench.report.compared import same_drafts
from skipbench.report.definitions import BY_PAPER, UNITS
from skipbench.report.measured import VALUES, Measured, measure
from skipbench.report.published import Printed, papers, published, read_paper
from skipbench.report.tables.formats import WRITERS, escape, markdown, tabular
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import Number, paper_table
from skipbench.report.tables.paper_notes import same_device
from skipbench.runs.measures import Metrics, Speedup
from skipbench.runs.run import Run

TABLES = [(paper, table) for paper in papers() for table in read_paper(paper).tables]


def swift2(runs: Sequence[Run] = (), *more: Any) -> Table:
    """SWIFT's Table 2."""
    return paper_table("swift", "table2", [*runs], *more)


SPEEDS = {"cnndm": 1.5, "gsm8k": 1.2, "tinystories": 1.8}
THREE = [swift("swift", dataset, metrics(speed)) for dataset, speed in SPEEDS.items()]
CNNDM = {"model": "llama2-13b", "method": "swift", "dataset": "cnndm"}


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_every_number_stands_in_its_table_or_has_a_reason(paper: str, table: str) -> None:
    t = paper_table(paper, table, [])
    rows = [r for r in published(paper) if r["table"] == table]
    printed = sorted(r["value"] for r in rows if r["value"] is not None)
    assert sorted(c.published for c in each(t) if c.published is not None) == printed
    assert all(c.measured is None and c.reason for c in each(t))
    texts = [write(t) for suffix, write in WRITERS.items() if suffix != "csv"]
    assert all(table.lower() in text.replace(" ", "").lower() for text in texts)


def test_numbers_are_shown_as_printed() -> None:
    shown = markdown(paper_table("knapspec", "table2", []))
    assert "| 0.846 " in shown and "0.8460" not in shown  # 84.6 %; a neighbour has a decimal more
    assert "| 0.0750 [" in shown and "| **1.30x** " in shown


def test_what_is_measured_has_two_decimals_beside_a_printed_number_of_one() -> None:
    printed = Printed(keys={}, column="speedup", value=1.4, digits=1)
    number = Number({}, Measured(1.366, (1.314, 1.418)), printed, 1, None)
    assert number.texts == ("1.37x [1.31, 1.42]", "1.4x", "-0.03 (-2 %)")


def test_a_verdict_counts_the_published_speedups_inside_the_measured_intervals() -> None:
    of = {"model": "llama2-13b", "method": "swift"}
    values = {"cnndm": 1.37, "gsm8k": 1.00, "tinystories": 1.90}  # the paper: 1.37, 1.31, 1.53
    runs = [run(metrics(value), **of, dataset=name) for name, value in values.items()]
    counts = "1 measured lower; 1 measured higher; 33 not measured."
    said = f"1 of 3 published speedups inside the measured interval; {counts}"
    assert said in swift2(runs).source
    none = swift2().source
    assert none.endswith("None of the 36 published speedups is measured here.")
    assert "published speedups" not in paper_table("self-sd", "table7", []).source


def test_a_run_stands_beside_its_published_numbers() -> None:
    t = swift2(THREE)
    of = cell(t, "speedup", **CNNDM)
    assert (of.measured, of.published, of.digits) == (1.5, 1.37, 2)
    assert of.percent == pytest.approx(100 * 0.13 / 1.37)
    m = cell(t, "M", **CNNDM)
    assert (m.measured, m.published, m.percent) == (2.5, 4.34, None)
    shown = markdown(t)
    assert "**1.50x [1.45, 1.55]**" in shown and "+0.13 (+9 %) *" in shown and "**1.37x**" in shown
    assert of.published_inside is False and m.published_inside is None
    assert t.provenance[0].startswith("lossless: 12 of 15 greedy")
    assert shown.count("lies outside the measured 95 % interval") == 1
    other = cell(t, "speedup", model="llama2-70b", method="swift", dataset="cnndm")
    assert (other.measured, other.reason) == (None, "not measured")


def test_vanilla_is_the_vanilla_arm_of_another_run() -> None:
    t = swift2(THREE)
    assert cell(t, "tokens_per_s", model="llama2-13b", method="vanilla").measured == 20
    where = {"model": "qwen3-8b", "dataset": "aime24"}
    known, lacks = metrics(1.2, vanilla={"tpt": 25.0}), "not measured"
    for of, shown in (known, (25.0, None)), (metrics(1.2), (None, lacks)):
        t = paper_table("knapspec", "table2", [run(of, method="knapspec", **where)])
        tpt = cell(t, "TPT", method="vanilla", **where)
        assert (tpt.measured, tpt.reason) == shown
    own = swift("vanilla", "cnndm", metrics(1.01))
    of = cell(swift2([*THREE, own]), "speedup", **CNNDM | {"method": "vanilla"})
    assert of.measured == 1.01


def test_overall_is_the_mean_only_of_all_tasks() -> None:
    where = {"model": "llama2-13b", "method": "swift", "dataset": "overall"}
    of = cell(swift2(THREE), "speedup", **where)
    assert of.measured == pytest.approx(1.5) and of.measured_low is None
    of = cell(swift2(THREE[:2]), "speedup", **where)
    assert (of.measured, of.reason) == (None, "not measured")


def test_the_best_measured_and_the_best_published_are_bold_by_model_and_task() -> None:
    large = swift("swift", "cnndm", metrics(1.1), model="llama2-70b")
    t = swift2([*THREE, swift("lookahead", "cnndm", metrics(1.7)), large])
    where = {"model": "llama2-13b", "dataset": "cnndm"}
    ahead, own = (cell(t, "speedup", method=m, **where) for m in ("lookahead", "swift"))
    assert (ahead.bold, own.bold) == (("measured",), ("paper",))
    of = cell(t, "speedup", **CNNDM | {"model": "llama2-70b"})
    assert of.bold == ("measured", "paper")
    assert not any(c.bold for c in each(t) if c.column == "M")
    # which alone has an interval
    assert not any("measured" in c.bold for c in each(t) if c.column != "speedup")
    for suffix, write in WRITERS.items():
        assert write(t).count("fewer than 5 questions; of the paper") == (suffix != "csv")


def test_published_numbers_stand_beside_the_paper_s_own_model_and_dataset_alone() -> None:
    """Another model, or a method of one's own, has a row of ours below the paper's."""
    own = swift("swift", "cnndm", metrics(1.2), model="llama3-8b")
    ours = swift("auto", "gsm8k", metrics(1.4))
    t = swift2([own, ours, swift("swift", "cnndm", None, "gated", model="tiny")])
    assert all(c.measured is None for c in each(replace(t, grids=t.grids[:-1])))
    shown, said = t.grids[-1], markdown(t)
    assert shown.settings == "Runs of no row of the paper's table."
    names = {tuple(cell.text for cell in row.cells[:3]) for row in shown.rows}
    assert names == {("cnndm", "llama3-8b", "swift"), ("gsm8k", "llama2-13b", "auto")}
    assert "belong to no row of this table: model=tiny, method=swift, dataset=cnndm" in said


def test_halves_with_the_same_columns_are_one_part_told_apart_by_a_key() -> None:
    t = paper_table("clasp", "table1", [])
    names = [c.name for c in t.grids[0].columns if c.kind == "label"]
    assert len(t.grids) == 1 and names == ["temperature", "model", "method", ""]
    keys = {"model": "llama3-8b", "method": "clasp", "subtask": "qa"}
    runs = [run(metrics(1.0 + x), dataset="specbench", temperature=x, **keys) for x in (0, 1)]
    t = paper_table("clasp", "table1", runs)
    for temperature in (0, 1):
        of = cell(t, "speedup", temperature=temperature, **keys)
        assert of.measured == 1.0 + temperature
        assert any("paper" in c.bold for c in each(t) if c.temperature == temperature)
    assert len(paper_table("knapspec", "table2", []).grids) == 2


def test_sweeps_are_joined_by_their_keys() -> None:
    given = {"model": "llama2-13b", "method": "self-sd", "dataset": "cnndm", "temperature": 0.0}
    runs = [
        run(metrics(1.1), **given, stop="fixed", max_steps=4),
        run(metrics(1.2), **given, stop="adaptive", max_steps=12),
    ]
    t = paper_table("self-sd", "table3", [*runs, run(metrics(9.0), **given)])
    paper = replace(t, grids=t.grids[:-1])
    assert cell(paper, "speedup", max_steps=4).measured == 1.1
    assert cell(paper, "speedup", stop="adaptive").measured == 1.2
    assert cell(paper, "speedup", max_steps=2).reason == "not measured"
    assert len(t.grids[-1].rows) == 1  # nothing says which K the last run had


def test_every_column_has_a_unit_and_an_empty_record_fills_none() -> None:
    assert {*VALUES} <= {*UNITS}
    assert all(measure(Metrics(), column, "adapt").value is None for column in UNITS)
    assert measure(metrics(1.2), "training_steps").value is None  # what no run measures


def test_derived_values() -> None:
    assert measure(metrics(2.0), "ms_per_token") == (25.0, None, None)
    assert measure(metrics(2.0), "memory_gb") == (2.0, None, None)
    # 0.5 of 4 s; the prefill is no part
    assert measure(metrics(2.0), "share", "adapt") == (0.125, None, None)
    assert measure(metrics(2.0, alpha=None, tau=None), "tau").value is None
    # half of 25 ms is drafting, of which 3 attentions take 3 parts of 12, 4 MLPs 8, the head 1
    profiled = {"attention_s": 1e-3, "mlp_s": 2e-3, "head_s": 1e-3, "layers": 6}
    for part, parts in (("attention", 3), ("mlp", 8)):
        found = measure(metrics(2.0, profiled=profiled), "ms", "draft", part)[0]
        assert found == pytest.approx(12.5 * parts / 12)


def test_latex_is_escaped() -> None:
    assert escape("50 % & pass@1_x #2 $3 {a} \\ ~ ^ < > | [1] \u2014 \u00b1") == (
        r"50 \% \& pass@1\_x \#2 \$3 \{a\} \textbackslash{} \textasciitilde{} "
        r"\textasciicircum{} \textless{} \textgreater{} "
        r"\textbar{} {[}1{]} -- $\pm$"
    )
    bad = r"\input{/etc/passwd}\immediate\write18{id}^^5cinput"
    _, _, shown = tabular(swift2([swift("parallel", "cnndm", None, bad)])).partition("\n")
    assert "passwd" in shown and not re.search(r"\\(input|immediate|write)|\^\^", shown)


def test_rows_and_columns_are_in_the_papers_order_or_in_the_order_given() -> None:
    grid = swift2(THREE).grids[0]
    rows = [[cell.text for cell in r.cells[:2]] for r in grid.rows if r.first][:4]
    assert rows == [["LLaMA-2-13B", m] for m in ("VANILLA", "PARALLEL", "LOOKAHEAD", "SWIFT")]
    shown = [(c.group, c.name) for c in grid.columns[3:6]]
    assert shown == [("CNN/DM", "M"), ("CNN/DM", "speedup"), ("GSM8K", "M")]
    chosen = swift2(THREE, ["speedup", "M"]).grids[0].columns
    assert [c.name for c in chosen[3:6]] == ["speedup", "M", "speedup"]


def test_what_has_no_number_has_a_reason() -> None:
    runs = [
        swift("swift", "cnndm", None, "needs 140 GiB", model="llama2-70b"),
        swift("parallel", "cnndm", None, "gated model"),
        swift("swift", "gsm8k", structs.replace(metrics(1.2), speedup=Speedup(), estimators=None)),
    ]
    t = swift2(runs)
    assert cell(t, "M", **CNNDM | {"model": "llama2-70b"}).reason == "needs 140 GiB"
    assert cell(t, "M", **CNNDM | {"method": "parallel"}).reason == "gated model"
    assert cell(t, "speedup", **CNNDM | {"dataset": "gsm8k"}).reason == "not measured"


def test_device_and_dtype_are_those_of_the_runs_and_told_where_they_are_others() -> None:
    here = {"device": "NVIDIA H100 80GB HBM3", "dtype": "bfloat16"}
    t = swift2([swift("swift", "cnndm", metrics(1.2), dtype="float16", provenance=here)])
    said = "\n".join(t.cautions)
    assert "device: NVIDIA H100 80GB HBM3; the paper's: 4x NVIDIA RTX A6000 (40GB)." in said
    assert "dtype: bfloat16; the paper's: float16." in said
    measured = [r for r in t.records if r["measured"] is not None]
    assert measured and {r["dtype"] for r in measured} == {"bfloat16"}
    assert {r["dtype"] for r in t.records if r["measured"] is None} == {"float16"}
    assert t.grids[0].settings.startswith("dtype bfloat16 (the paper's: float16)")
    large = "NVIDIA A100-SXM4-80GB"
    assert same_device(large, "1x NVIDIA A100-80GB") and not same_device("cpu", "not named")
    assert not same_device(large, "1x NVIDIA A100-40GB")
    assert not same_device(large, "2x NVIDIA A100-80GB")


def test_rows_that_drafted_the_same_tokens_are_named_but_vanilla() -> None:
    runs = [structs.replace(swift("vanilla", d, metrics(1.1)), drafted="v") for d in SPEEDS]
    assert same_drafts(runs) == []
    others = [structs.replace(one, drafted=d) for one, d in zip(THREE, "ssa", strict=True)]
    (line,) = same_drafts([*runs, *others])
    assert line.endswith(": dataset=cnndm | dataset=gsm8k.")
    assert line in swift2(others).remarks


# The paper's own estimator


BY_PAPER_OWN = {"swift": 1.1, "self-sd": 1.2, "knapspec": 1.3, "clasp": 1.4}
ESTIMATORS = {
    paper: {"speedup": x, "ci95": [x - 0.025, x + 0.025], "tokens_per_s": 10.0 * x}
    | {"tokens_per_s_vanilla": 10.0}
    for paper, x in BY_PAPER_OWN.items()
}
NEW = metrics(1.9, estimators=ESTIMATORS, alpha_macro=0.7)
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "swift": ("table2", CNNDM),
    "self-sd": ("table1", {"model": "llama2-13b", "method": "self-sd", "dataset": "cnndm"}),
    "knapspec": ("table2", {"model": "qwen3-8b", "method": "knapspec", "dataset": "aime24"}),
    "clasp": ("table1", {"model": "llama3-8b", "method": "clasp", "subtask": "qa"}),
}


@pytest.mark.parametrize("paper", ROWS)
def test_value_interval_difference_and_star_are_by_the_paper_s_estimator(paper: str) -> None:
    table, keys = ROWS[paper]
    t = paper_table(paper, table, [run(NEW, temperature=0.0, **keys)])
    found, wanted = cell(t, "speedup", temperature=0.0, **keys), BY_PAPER_OWN[paper]
    assert found.measured == wanted
    ends = found.measured_low, found.measured_high
    assert ends == pytest.approx((wanted - 0.025, wanted + 0.025))
    assert found.difference == pytest.approx(wanted - found.published)
    assert found.published_inside == (abs(found.difference) < 0.025)
    said = markdown(t)
    assert f"- *speedup*: {BY_PAPER[paper]['speedup']}" in said
    assert "prefill" in BY_PAPER[paper]["speedup"]


def test_vanilla_s_arm_and_the_other_rates_are_by_it_too() -> None:
    t = swift2([swift("swift", "cnndm", NEW)])
    assert cell(t, "speedup", **CNNDM | {"method": "vanilla"}).measured == 1.0
    given = read_paper("self-sd").tables["table12"].parts[0].numbers[0].keys
    t = paper_table("self-sd", "table12", [run(NEW, **given)])
    own = {c["column"]: c["measured"] for c in t.records if c["measured"] is not None}
    assert (own["alpha"], own["speedup"]) == (0.7, 1.2)
    assert own["ms_per_token"] == pytest.approx(1000 / 12)


def test_alpha_is_pooled_where_the_paper_pools_it() -> None:
    keys = {"model": "codellama-13b", "method": "swift", "dataset": "humaneval"}
    t = paper_table("swift", "table3", [run(NEW, temperature=0.0, **keys)])
    assert {c["measured"] for c in t.records if c["column"] == "alpha"} == {None, 0.9}
    table, keys = ROWS["knapspec"]
    t = paper_table("knapspec", table, [run(NEW, temperature=0.0, **keys)])
    assert cell(t, "alpha", **keys).measured == 0.7
