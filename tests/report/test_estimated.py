"""A paper's table shows the speedup by the paper's own estimator, and says so."""

from typing import Any

import pytest
from test_papertable import cell, metrics, run, swift

from skipbench.report.definitions import BY_PAPER
from skipbench.report.published import read_paper
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.paper import paper_table

SPEEDUPS = {"swift": 1.1, "self-sd": 1.2, "knapspec": 1.3, "clasp": 1.4}
ESTIMATORS = {
    paper: {"speedup": x, "ci95": [x - 0.025, x + 0.025], "tokens_per_s": 10.0 * x}
    | {"tokens_per_s_vanilla": 10.0}
    for paper, x in SPEEDUPS.items()
}
NEW = metrics(1.9, estimators=ESTIMATORS, alpha_macro=0.7)
ROWS: dict[str, tuple[str, dict[str, Any]]] = {
    "swift": ("table2", {"model": "llama2-13b", "method": "swift", "dataset": "cnndm"}),
    "self-sd": ("table1", {"model": "llama2-13b", "method": "self-sd", "dataset": "cnndm"}),
    "knapspec": ("table2", {"model": "qwen3-8b", "method": "knapspec", "dataset": "aime24"}),
    "clasp": ("table1", {"model": "llama3-8b", "method": "clasp", "subtask": "qa"}),
}


@pytest.mark.parametrize("paper", ROWS)
def test_value_interval_difference_and_star_are_by_the_paper_s_estimator(paper: str) -> None:
    table, keys = ROWS[paper]
    t = paper_table(paper, table, [run(NEW, temperature=0.0, **keys)])
    found, wanted = cell(t, "speedup", temperature=0.0, **keys), SPEEDUPS[paper]
    assert found.measured == wanted
    ends = found.measured_low, found.measured_high
    assert ends == pytest.approx((wanted - 0.025, wanted + 0.025))
    assert found.difference == pytest.approx(wanted - found.published)
    assert found.published_inside == (abs(found.difference) < 0.025)
    said = markdown(t)
    assert f"- *speedup*: {BY_PAPER[paper]['speedup']}" in said
    assert "prefill" in BY_PAPER[paper]["speedup"]


def test_vanilla_s_arm_and_the_other_rates_are_by_it_too() -> None:
    t = paper_table("swift", "table2", [swift("swift", "cnndm", NEW)])
    vanilla = {"model": "llama2-13b", "method": "vanilla", "dataset": "cnndm"}
    assert cell(t, "speedup", **vanilla).measured == 1.0
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
