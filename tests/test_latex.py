"""LaTeX of every table of the papers, compiled: nothing stands out of the text, nothing is too tall
for a page.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from test_papertable import TABLES, metrics, run

from skipbench.experiments.grid import experiments, plan
from skipbench.report import formats
from skipbench.report.features import feature_table, features_latex
from skipbench.report.latexlayout import PAGE_HEIGHT, blocks, height, pages
from skipbench.report.papergrid import Marks, lines
from skipbench.report.papertable import PaperTable, paper_table
from skipbench.report.published import KEYS, papers, published

LOOSE = 2.0  # points by which a line may stand out: not to be seen


def measured_everywhere(paper: str, table: str) -> PaperTable:
    """With a run for every printed number: the widest and longest that the table can be."""
    rows = [r for r in published(paper) if r["table"] == table and r.get("dataset") != "overall"]
    keys = {repr(k): k for k in ({name: r[name] for name in r if name in KEYS} for r in rows)}
    return paper_table(paper, table, [run(metrics(1.2), **k) for k in keys.values()], "paper")


def embedded(paper: str, table: str) -> PaperTable:
    """With what `scale=embedded` runs."""
    name = f"{paper}-{table}"
    planned = plan(name, [], "embedded") if name in experiments() else []
    runs = [run(metrics(1.2) if c.run else None, c.reason, c.stands_for, **c.keys) for c in planned]
    return paper_table(paper, table, runs, "embedded")


def compiled(tables: dict[str, str], folder: Path) -> str:
    """The log of one document with all tables, each between lines with its name."""
    assert all(
        "\\usepackage{booktabs,graphicx}" in text.splitlines()[0] for text in tables.values()
    )
    body = "\n".join(
        f"\\typeout{{}}\\typeout{{@@ {name}}}\n{text}\\clearpage" for name, text in tables.items()
    )
    head = "\\documentclass{article}\n\\usepackage{booktabs,graphicx}\n\\begin{document}\n"
    (folder / "a.tex").write_text(f"{head}{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "a.tex"]
    done = subprocess.run(command, cwd=folder, capture_output=True, timeout=300)
    log = (folder / "a.log").read_text(errors="replace")
    assert done.returncode == 0, log[-2000:]
    return log


def complaints(log: str) -> list[str]:
    """What TeX says of boxes that do not fit, with the table's name."""
    found, name = [], ""
    for line in log.splitlines():
        name = line[3:] if line.startswith("@@ ") else name
        over = re.search(
            r"Overfull \\[hv]box \(([\d.]+)pt|Float too large for page by ([\d.]+)pt", line
        )
        if over and float(over[1] or over[2]) > LOOSE:
            found.append(f"{name}: {line}")
    return found


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX installation")
@pytest.mark.parametrize("paper", papers())
def test_every_table_compiles_and_fits_the_page(paper: str, tmp_path: Path) -> None:
    texts = {}
    for table in [table for own, table in TABLES if own == paper]:
        texts[f"{table} measured"] = formats.latex(measured_everywhere(paper, table))
        texts[f"{table} embedded"] = formats.latex(embedded(paper, table))
    if paper in ("swift", "knapspec"):
        texts["features"] = features_latex(feature_table(paper))
    assert complaints(compiled(texts, tmp_path)) == []


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX installation")
def test_what_does_not_fit_is_seen(tmp_path: Path) -> None:
    wide = (
        "% \\usepackage{booktabs,graphicx}\n\\begin{table}[p]\\noindent\\mbox{"
        + "wide " * 100
        + "}\\end{table}\n"
    )
    assert complaints(compiled({"wide": wide}, tmp_path))


def test_a_long_table_goes_on_over_pages_under_one_number() -> None:
    shown = formats.latex(measured_everywhere("clasp", "table1"))
    floats = shown.split(r"\begin{table}[p]")[1:]
    assert len(floats) > 2 and shown.count(r"\label{") == 1
    for number, text in enumerate(floats):
        assert (r"\addtocounter{table}{-1}" in text) == ("(continued)" in text) == (number > 0)


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_every_field_stands_in_one_block(paper: str, table: str) -> None:
    for part in measured_everywhere(paper, table).parts:
        whole = lines(part, Marks())
        found = [
            (id(line), i)
            for b in blocks(part.columns, part.keys, whole)
            for line in b.lines
            for i in range(b.first, b.last)
        ]
        assert sorted(found) == sorted(
            (id(line), i) for line in whole for i in range(len(part.columns))
        )
        for block in blocks(part.columns, part.keys, whole):
            assert block.lines[0].first and height(block) <= PAGE_HEIGHT


def test_pages_hold_what_fits() -> None:
    assert pages([PAGE_HEIGHT, 1, PAGE_HEIGHT - 1, 2 * PAGE_HEIGHT, 5]) == [[0], [1, 2], [3], [4]]
    assert pages([]) == []
