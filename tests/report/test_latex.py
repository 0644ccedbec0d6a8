"""LaTeX of every table of the papers and of a table of runs, compiled: nothing stands out of the
text.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import PAPERS
from msgspec.structs import replace
from test_papertable import TABLES, metrics, run

from skipbench.experiments.grid import plan
from skipbench.report.definitions import KEYS
from skipbench.report.published import papers, published
from skipbench.report.tables.features import feature_table
from skipbench.report.tables.latex import column_blocks, latex, tabular
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table
from skipbench.report.tables.runs import row_table

LOOSE = 2.0  # points by which a line may stand out: not to be seen


def measured_everywhere(paper: str, table: str) -> Table:
    """With a run for every printed number: the widest and longest that the table can be."""
    rows = [r for r in published(paper) if r["table"] == table and r.get("dataset") != "overall"]
    keys = {repr(k): k for k in ({name: r[name] for name in r if name in KEYS} for r in rows)}
    return paper_table(paper, table, [run(metrics(1.2), **k) for k in keys.values()], "paper")


def embedded(paper: str, table: str) -> Table:
    """With what `scale=embedded` runs."""
    name = f"{paper}-{table}"
    planned = plan(name, [], "embedded") if name in PAPERS else []
    runs = [run(metrics(1.2) if c.run else None, c.reason, c.stands_for, **c.keys) for c in planned]
    return paper_table(paper, table, runs, "embedded")


def runs_of_all_kinds() -> Table:
    """A table of runs that has every column, with long points and reasons."""
    points = ("method.interval=2", "method.skip='attn:1-3,5,7,9,11,13,15;mlp:2,4,6,8,10,12,14'")
    given = {"model": "llama2-13b", "method": "self-sd", "dataset": "cnndm"}
    runs = [run(metrics(1.2 + i), **given, provenance={"commit": f"{i}123abc"}) for i in range(2)]
    runs = [replace(one, label=point) for one, point in zip(runs, points, strict=True)]
    runs.append(run(None, "needs 140 GiB | and a gated model of /a/folder_name", **given))
    return row_table(runs)


def compiled(tables: dict[str, str], folder: Path) -> str:
    """The log of one document with all tables, each between lines with its name."""
    packages = "\\usepackage{array,booktabs,longtable}"
    assert all(packages in text.splitlines()[0] for text in tables.values())
    marked = r"\typeout{{}}\typeout{{@@ {}}}" "\n{}" r"\clearpage"
    body = "\n".join(marked.format(*table) for table in tables.items())
    head = f"\\documentclass{{article}}\n{packages}\n\\begin{{document}}\n"
    (folder / "a.tex").write_text(f"{head}{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "a.tex"]
    for _ in range(3):  # the widths of a longtable are known from the second on
        done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    log = (folder / "a.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    assert "Table widths have changed" not in log
    return log


def complaints(log: str) -> list[str]:
    """What TeX says of boxes that do not fit, with the table's name."""
    found, name = [], ""
    for line in log.splitlines():
        name = line[3:] if line.startswith("@@ ") else name
        over = re.search(r"Overfull \\[hv]box \(([\d.]+)pt", line)
        if over and float(over[1]) > LOOSE:
            found.append(f"{name}: {line}")
    return found


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX installation")
@pytest.mark.parametrize("paper", papers())
def test_every_table_compiles_and_fits_the_page(paper: str, tmp_path: Path) -> None:
    texts = {}
    for table in [table for own, table in TABLES if own == paper]:
        texts[f"{table} measured"] = latex(measured_everywhere(paper, table))
        texts[f"{table} embedded"] = latex(embedded(paper, table))
    if paper in ("swift", "knapspec"):
        texts["features"] = latex(feature_table(paper))
    texts["runs"] = latex(runs_of_all_kinds())
    assert complaints(compiled(texts, tmp_path)) == []


@pytest.mark.parametrize("table", [("swift", "table2"), None])
def test_a_tabular_is_bare_and_whole(table: tuple[str, str] | None) -> None:
    """What a `table` of two columns takes: balanced lines of one environment, notes as comments."""
    made = measured_everywhere(*table) if table else runs_of_all_kinds()
    text = tabular(made)
    lines = [line for line in text.splitlines() if not line.startswith("%")]
    assert lines[0].startswith(r"\begin{tabular}{l") and lines[-1] == r"\end{tabular}"
    assert not re.search(r"longtable|caption|label|p\{", "\n".join(lines))
    grid = made.grids[0]
    body = lines[: lines.index(r"\end{tabular}")]
    rows = [line for line in body if line.endswith(r"\\") and "multicolumn" not in line]
    assert len(rows) == 1 + len(grid.rows)
    assert {len(re.findall(r"(?<!\\)&", line)) for line in rows} == {len(grid.columns) - 1}
    assert all(f"% [{n}] " in text for n, _ in enumerate(made.footnotes, 1))


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX installation")
def test_what_does_not_fit_is_seen(tmp_path: Path) -> None:
    packages = "% \\usepackage{array,booktabs,longtable}"
    wide = f"{packages}\n\\begin{{longtable}}{{l}}{'wide ' * 100}\\end{{longtable}}\n"
    assert complaints(compiled({"wide": wide}, tmp_path))


def test_all_blocks_of_a_table_have_one_number_and_every_page_its_head() -> None:
    shown = latex(measured_everywhere("clasp", "table1"))
    blocks = shown.split(r"\begin{longtable}")
    assert len(blocks) > 2 and shown.count(r"\label{") == 1
    assert shown.count(r"\addtocounter{table}{-1}") == len(blocks) - 2
    for number, text in enumerate(blocks[1:]):
        first, head, _ = re.split(r"\\endfirsthead|\\endhead", text)
        assert ("(continued)" in first) == (number > 0) and "(continued)" in head
        assert first.split("\\toprule")[1] == head.split("\\toprule")[1]


def test_the_lines_of_a_row_stay_on_one_page() -> None:
    body = latex(measured_everywhere("swift", "table2")).split(r"\endfoot")[1].splitlines()
    lines = [line for line in body if " & " in line]
    assert lines[0].endswith(r"\\*") and " paper " in lines[1] and lines[1].endswith(r"\\*")
    assert " difference " in lines[2] and not lines[2].endswith("*")


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_every_column_stands_in_one_block(paper: str, table: str) -> None:
    for grid in measured_everywhere(paper, table).grids:
        labels = sum(column.kind == "label" for column in grid.columns)
        found = [i for _, first, last in column_blocks(grid) for i in range(first, last)]
        assert found == list(range(labels, len(grid.columns)))


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_latex_is_balanced_and_its_rows_are_as_wide_as_its_head(paper: str, table: str) -> None:
    """Also where no TeX is installed."""
    shown = latex(measured_everywhere(paper, table))
    bare = re.sub(r"\\[{}]", "", shown)
    assert shown.isascii() and bare.count("{") == bare.count("}")
    assert re.findall(r"\\begin\{(\w+)\}", shown) == re.findall(r"\\end\{(\w+)\}", shown)
    wrapped = r">\{\\raggedright\\arraybackslash\}p\{\d+pt\}"
    tables = re.findall(r"\\begin\{longtable\}(.*?)\\end\{longtable\}", shown, re.S)
    assert tables
    for text in tables:
        spec = re.match(r"\{([lr]+)\}", re.sub(wrapped, "l", text))
        ends = (line for line in text.splitlines() if line.endswith((r"\\", r"\\*")))
        lines = [line for line in ends if not line.startswith(r"\caption")]
        more = [sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", x)) for x in lines]
        widths = [len(re.findall(r"(?<!\\)&", line)) + 1 for line in lines]
        assert spec and {a + b for a, b in zip(widths, more, strict=True)} == {len(spec[1])}
