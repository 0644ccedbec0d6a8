"""`tabular` of every table of the papers and of a table of runs: bare, balanced, and compiled."""

import re
import shutil
import subprocess
from pathlib import Path

import matplotlib
import pytest
from conftest import ROOT
from matplotlib.ft2font import FT2Font
from msgspec.structs import replace
from test_papertable import TABLES, metrics, run

from skipbench.report.definitions import KEYS
from skipbench.report.published import published
from skipbench.report.tables.features import feature_table
from skipbench.report.tables.formats import markdown, tabular, write
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table
from skipbench.report.tables.runs import row_table
from skipbench.report.tables.stored import read_summary, table_of


def measured_everywhere(paper: str, table: str) -> Table:
    """With a run for every printed number: the widest and longest that the table can be."""
    rows = [r for r in published(paper) if r["table"] == table and r.get("dataset") != "overall"]
    keys = {repr(k): k for k in ({name: r[name] for name in r if name in KEYS} for r in rows)}
    return paper_table(paper, table, [run(metrics(1.2), **k) for k in keys.values()])


def runs_of_all_kinds() -> Table:
    """A table of runs that has every column, with long points and reasons."""
    points = ("method.interval=2", "method.skip='attn:1-3,5,7,9,11,13,15;mlp:2,4,6,8,10,12,14'")
    given = {"model": "llama2-13b", "method": "self-sd", "dataset": "cnndm"}
    runs = [run(metrics(1.2 + i), **given, provenance={"commit": f"{i}123abc"}) for i in range(2)]
    runs = [replace(one, label=point) for one, point in zip(runs, points, strict=True)]
    runs.append(run(None, "needs 140 GiB | and a gated model of /a/folder_name", **given))
    return row_table(runs)


MADE = {
    **{
        f"{paper}-{table}": lambda p=paper, t=table: measured_everywhere(p, t)
        for paper, table in TABLES
    },
    "features": lambda: feature_table("swift"),
    "runs": runs_of_all_kinds,
}


@pytest.mark.parametrize("name", MADE)
def test_a_tabular_is_bare_and_whole(name: str) -> None:
    """What a `table` of two columns takes: balanced lines of one environment, notes as comments."""
    made = MADE[name]()
    text = tabular(made)
    unescaped = re.sub(r"\\[{}]", "", text)
    assert text.isascii() and unescaped.count("{") == unescaped.count("}")
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert lines[0].startswith(r"\begin{tabular}{l") and lines[-1] == r"\end{tabular}"
    assert not re.search(r"caption|label|p\{", "\n".join(lines))
    bodies = "\n".join(lines).split(r"\begin{tabular}")[1:]
    for grid, body in zip(made.grids, bodies, strict=True):
        ends = [line for line in body.splitlines() if line.endswith(r"\\")]
        rows = [line for line in ends if "multicolumn" not in line]
        assert len(rows) == 1 + len(grid.rows)
        assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {len(grid.columns) - 1}
        for line in (line for line in ends if line not in rows):
            spans = sum(int(n) for n in re.findall(r"\\multicolumn\{(\d+)\}", line))
            assert grid.labels + spans == len(grid.columns)
    assert all(f"% [{n}] " in text for n, _ in enumerate(made.footnotes, 1))


@pytest.mark.parametrize("name", ["real", "head-to-head"])
def test_a_table_of_runs_fits_a_table_of_two_columns(name: str) -> None:
    """Set in 9 points of Computer Modern, in the 6.75 inches of ICML's page; notes are comments."""
    table = table_of(read_summary(ROOT / f"results/laptop/tables/{name}.json"))
    text, font = (
        write(table, ["tabular.tex"])["tabular.tex"],
        Path(matplotlib.get_data_path(), "fonts/ttf/cmr10.ttf"),
    )
    lines = [line.removesuffix(r" \\").split(" & ") for line in text.splitlines() if " & " in line]
    assert "worst tenth" not in lines[0] and "note" not in lines[0] and lines[0][0] == "method"
    notes = {row.cells[-1].text for row in table.grids[0].rows if "note" in markdown(table)}
    assert all(f": {note}\n" in text for note in notes)
    face = FT2Font(str(font))
    face.set_size(9, 72)

    def width(cell: str) -> float:
        face.set_text(re.sub(r"\\\w+\{(.*?)\}", r"\1", cell).replace("->", "-> "))
        return face.get_width_height()[0] / 64

    columns = [max(map(width, column)) for column in zip(*lines, strict=True)]
    assert sum(columns) + 12 * (len(columns) - 1) <= 6.75 * 72.27


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX installation")
def test_every_tabular_compiles(tmp_path: Path) -> None:
    body = "\n\\clearpage\n".join(tabular(made()) for made in MADE.values())
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    (tmp_path / "a.tex").write_text(f"{head}{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "a.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]
