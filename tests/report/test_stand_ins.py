"""At a smaller scale one run stands for several of the paper's datasets; it is printed once."""

from typing import Any

import pytest
from msgspec.structs import replace
from test_papertable import metrics, run

from skipbench.experiments.grid import plan
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table

CASES = {
    ("knapspec", "table2", "laptop"): [["stdlib-code"], ["pydoc-summary"]],
    ("clasp", "table1", "laptop"): [["pydoc-summary", "stdlib-code"]],
    ("swift", "table2", "laptop"): [["pydoc-summary", "stdlib-code"]],
    ("swift", "table2", "embedded"): [["mini-summary", "mini-math", "mini-stories"]],
}


def made(paper: str, table: str, scale: str) -> Table:
    """The table of all planned cells; each folder has a speedup of its own."""
    runs, speedups = [], dict[str, float]()
    for cell in plan(f"{paper}-{table}", [], scale):
        speedup = speedups.setdefault(cell.name, 1 + len(speedups) / 100)
        keys: dict[str, Any] = {**cell.keys}
        one = run(metrics(speedup), stands_for=cell.stands_for, **keys)
        runs.append(replace(one, id=cell.name, dataset=cell.overrides["dataset"]))
    return paper_table(paper, table, runs, scale)


@pytest.mark.parametrize(("paper", "table", "scale"), CASES)
def test_a_run_stands_under_one_heading(paper: str, table: str, scale: str) -> None:
    t = made(paper, table, scale)
    apart = [g for g in t.grids if any(row.kind == "measured" for row in g.rows)]
    assert all(row.kind == "measured" for grid in apart for row in grid.rows)
    headings = [
        list(dict.fromkeys(c.group for c in grid.columns if c.kind != "label")) for grid in apart
    ]
    assert headings == CASES[paper, table, scale]
    speedups = [n for n in t.records if n["column"] == "speedup" and n["method"] != "vanilla"]
    measured = [n["measured"] for n in speedups if n["measured"]]
    assert len(set(measured)) == len(measured)  # none twice, and no mean of them
    assert {n.get("dataset") for n in t.records if n["measured"]}.isdisjoint({"aime24", "cnndm"})
    assert "overall" not in {n.get("subtask") for n in t.records if n["measured"]}


def test_what_it_stands_for_is_said_once() -> None:
    said = markdown(made("knapspec", "table2", "laptop"))
    (line,) = [line for line in said.splitlines() if " stands for " in line]
    assert "pydoc-summary stands for govreport, pg19, booksum; " in line
    assert "stdlib-code stands for aime24, aime25, mmlu-pro: not a replication." in line
