"""The one table model: tables of features, of papers and of runs go through the same writers, and
every format shows everything that a table says.
"""

import csv as stdlib_csv
import io
import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import msgspec
import pytest
from conftest import ROOT
from msgspec import structs
from paper_runs import metrics, run

from skipbench.cli.main import main
from skipbench.errors import SkipbenchError
from skipbench.report.compared import ranked
from skipbench.report.published import papers, read_paper
from skipbench.report.tables.features import feature_table
from skipbench.report.tables.formats import WRITERS, escape, html, markdown, tabular, write
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table
from skipbench.report.tables.runs import row_table
from skipbench.report.tables.stored import Summary, read_summary, table_of
from skipbench.runs.run import Origin

GIVEN = {"model": "llama2-13b", "method": "swift", "dataset": "cnndm", "temperature": 0.0}
RUNS = [
    run(metrics(1.3), "a reason with 5 % & <b>", **GIVEN),
    run(None, "needs 140 GiB", **GIVEN | {"model": "llama2-70b"}),
]
TABLES = {
    "features": feature_table("swift"),
    "paper": paper_table("swift", "table2", RUNS),
    "runs": row_table(RUNS, title="Experiment methods", notes=["a note_of the caller"]),
}
OTHER = GIVEN | {"method": "clasp"}
TABLES["groups"] = row_table(
    [
        structs.replace(run(metrics(1.3), **GIVEN), rank=1),
        structs.replace(run(metrics(1.5), **OTHER), rank=0),
        structs.replace(run(metrics(2.0), **GIVEN), group={"subtask": "qa"}),
        structs.replace(run(metrics(1.0), **OTHER), group={"subtask": "rag"}),
    ]
)


def texts_of(table: Table) -> set[str]:
    """Every text of a table beside its cells and the CSV's records."""
    heads = {text for grid in table.grids for c in grid.columns for text in (c.name, c.group)}
    lines = {*table.cautions, *table.footnotes, *table.remarks, *table.provenance}
    terms = {text for definition in table.definitions for text in definition}
    settings = {grid.settings for grid in table.grids}
    return {table.title, table.source, *heads, *lines, *terms, *settings} - {""}


@pytest.mark.parametrize("kind", TABLES)
def test_every_format_shows_every_text(kind: str) -> None:
    table = TABLES[kind]
    written = write(table, [*WRITERS])
    more = [f"tabular-{n}.tex" for n in range(2, len(table.grids) + 1)]
    others = [*more] if kind == "features" else ["all.csv", *more]
    assert list(written) == ["md", "csv", "html", "tabular.tex", *others]
    tabulars = [text for suffix, text in written.items() if suffix.startswith("tabular")]
    assert all(text.count(r"\begin{tabular}") == 1 for text in tabulars)
    for text in texts_of(table):
        shown = " ".join(text.split()).replace("|", "\\|")
        assert shown in written["md"].replace("**", "")
        assert text in unescape(written["html"])


def test_runs_of_a_group_are_columns_of_a_second_grid() -> None:
    whole, by_group = TABLES["groups"].grids
    assert [row.cells[2].text for row in whole.rows] == ["clasp", "swift"]  # by rank
    heads = [(c.group, c.name) for c in by_group.columns[3:]]
    assert heads == [("subtask", "qa"), ("subtask", "rag")]
    shown = [[cell.text for cell in row.cells[2:]] for row in by_group.rows]
    assert [row[0] for row in shown] == ["clasp", "swift"]
    assert shown[0][1] == "—" and shown[0][2].startswith("1.00x")
    assert shown[1][2] == "—" and shown[1][1].startswith("2.00x")


Shown = list[tuple[str, bool, int | None]]  # of a row: text, bold and mark of each cell


def rows_of(table: Table) -> list[Shown]:
    """The cells of the rows of every grid."""
    return [
        [(" ".join(c.text.split()), c.bold, c.mark) for c in row.cells]
        for grid in table.grids
        for row in grid.rows
    ]


def marked(text: str, bold: str, mark: str) -> tuple[str, bool, int | None]:
    """A cell without its markup, which two expressions tell."""
    number = re.search(f"{mark}$", text := text.strip())
    text = text[: number.start()] if number else text
    plain = re.fullmatch(bold, text)
    return plain[1] if plain else text, plain is not None, int(number[1]) if number else None


@pytest.mark.parametrize("kind", TABLES)
def test_markdown_has_the_cells(kind: str) -> None:
    lines = re.findall(r"^\| (.*) \|$", markdown(TABLES[kind]), re.MULTILINE)
    split = [re.split(r"(?<!\\) \| ", unescape(line)) for line in lines]
    plain = [[text.replace(r"\|", "|") for text in cells] for cells in split]
    found = [[marked(c, r"\*\*(.*)\*\*", r" \[(\d+)\]") for c in cells] for cells in plain]
    heads = [
        [(f"{c.group}: {c.name}" if c.group else c.name, False, None) for c in grid.columns]
        for grid in TABLES[kind].grids
    ]
    wanted = rows_of(TABLES[kind])
    assert [row for row in found if row not in heads] == wanted
    assert len(found) == len(wanted) + len(heads)


@pytest.mark.parametrize("kind", TABLES)
def test_html_has_the_cells(kind: str) -> None:
    bodies = re.findall("<tbody>(.*?)</tbody>", html(TABLES[kind]), re.DOTALL)
    rows = [row for body in bodies for row in re.findall("<tr[^>]*>(.*?)</tr>", body)]
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row) for row in rows]
    found = [[marked(c, "<b>(.*)</b>", r"<sup>(\d+)</sup>") for c in row] for row in cells]
    plain = [[(" ".join(unescape(text).split()), *rest) for text, *rest in row] for row in found]
    assert plain == rows_of(TABLES[kind])


@pytest.mark.parametrize("kind", TABLES)
def test_latex_has_the_cells(kind: str) -> None:
    text = tabular(TABLES[kind])
    plain = [line for line in text.splitlines() if not line.startswith("%")]
    braces = re.findall("[{}]", re.sub(r"\\[{}]", "", text))
    assert text.isascii() and braces.count("{") == braces.count("}")
    assert plain[0].startswith(r"\begin{tabular}{l") and plain[-1] == r"\end{tabular}"
    bodies = re.findall(r"\\midrule\n(.*?)\\bottomrule", text, re.DOTALL)
    lines = [line for line in "\n".join(bodies).splitlines() if line.endswith("\\\\")]
    split = [re.sub(r" ?\\\\$", "", line).split(" & ") for line in lines]
    bold, mark = r"\\textbf\{(.*)\}", r"\\textsuperscript\{(\d+)\}"
    found = [[marked(c, bold, mark) for c in cells] for cells in split]
    wanted = rows_of(TABLES[kind])
    assert found == [[(escape(text), *rest) for text, *rest in row] for row in wanted]


@pytest.mark.parametrize("kind", TABLES)
def test_csv_has_the_records(kind: str) -> None:
    table, written = TABLES[kind], write(TABLES[kind])
    for suffix, records in (("csv", table.lines), ("all.csv", table.records)):
        found = list(stdlib_csv.DictReader(io.StringIO(written.get(suffix, ""))))
        names = dict.fromkeys(name for record in records for name in record)
        for line, record in zip(found, records, strict=True):
            known = {name: record.get(name) for name in names}
            assert line == {name: "" if v is None else str(v) for name, v in known.items()}


@pytest.mark.parametrize("kind", TABLES)
def test_marks_lead_to_footnotes(kind: str) -> None:
    table = TABLES[kind]
    marks = {c.mark for grid in table.grids for row in grid.rows for c in row.cells} - {None}
    assert marks == set(range(1, len(table.footnotes) + 1))
    written = write(table, [*WRITERS])
    for n, text in enumerate(table.footnotes, 1):
        assert f"[{n}] {text}" in written["md"]
        assert f"% [{n}] {escape(text)}" in written["tabular.tex"]
    notes = re.findall(r"<ol>\n(.*?)\n</ol>", written["html"], re.S)
    items = re.findall("<li>(.*?)</li>", "".join(notes))
    assert [unescape(item) for item in items] == [*table.footnotes]


def kept(*of: Any) -> Summary:
    """The summary, stored and read again."""
    return msgspec.json.decode(Summary(*of).text, type=Summary)


def test_a_stored_table_is_the_table_of_its_runs() -> None:
    assert table_of(kept("swift-table2", "paper", RUNS)) == TABLES["paper"]
    other = table_of(kept("methods", "embedded", RUNS))
    assert other.title == TABLES["runs"].title and other.grids == TABLES["runs"].grids


@pytest.mark.parametrize("scale", ["embedded", "laptop"])
def test_no_published_number_stands_beside_another_model(scale: str) -> None:
    """At a smaller scale a paper's table has our rows alone, and says so."""
    table = table_of(kept("swift-table2", scale, RUNS))
    assert table.grids == TABLES["runs"].grids and table.records == TABLES["runs"].records
    assert f"scale={scale}: another model and other data" in table.remarks[0]
    assert "1.37" in markdown(TABLES["paper"]) and "1.37" not in markdown(table)


def test_what_a_table_needs_of_its_runs_is_in_the_summary() -> None:
    """Rank, point and calibration pass through the JSON from which every table is rendered."""
    runs = [
        structs.replace(run(metrics(speedup), method=method), label=f"method={method}")
        for method, speedup in (("vanilla", 1.0), ("clasp", 0.7), ("swift", 1.6))
    ]
    (grid,) = table_of(kept("real", "embedded", ranked(runs))).grids
    assert [row.cells[2].text for row in grid.rows] == ["swift", "vanilla", "clasp"]
    (grid,) = table_of(kept("real", "embedded", runs)).grids
    assert "point" in [column.name for column in grid.columns]
    sparse = {"sparsity": "wanda-0.5", "calibration": "8 rows of mini-stories"}
    pruned = structs.replace(runs[0], origin=Origin(**sparse))
    text = Summary("self-sd-table13", "embedded", [pruned]).text
    assert json.loads(text)["runs"][0]["provenance"] == sparse


def test_a_stored_table_may_be_over_another_method() -> None:
    stored = read_summary(ROOT / "results/laptop/tables/head-to-head.json")
    table = table_of(stored, over="prompt-lookup")
    assert "over prompt-lookup" in [column.name for column in table.grids[0].columns]
    assert "over METHOD" in dict(table.definitions)
    with pytest.raises(SkipbenchError, match=r"over=promt-lookup\. Did you mean prompt-lookup"):
        table_of(stored, over="promt-lookup")
    swift = [run(metrics(x), **GIVEN | {"method": m}) for m, x in (("swift", 1.3), ("clasp", 1.1))]
    paper = table_of(kept("swift-table2", "paper", swift), over="swift")
    assert sum(line.startswith("over swift, paired") for line in paper.remarks) == 1


@pytest.mark.slow
def test_a_table_at_another_scale_is_another_file_and_a_cluster_is_of_the_papers(
    tmp_path: Path,
) -> None:
    words = ["table", "swift-table2", "models=llama2-13b", "method=swift", "dataset=cnndm"]
    words += ["--render-only", f"results={tmp_path}"]
    main([*words, "hardware=slurm-a100"])
    folder = tmp_path / "tables"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    main([*words, "hardware=slurm-a100", "hardware.gpus=0"])
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert "swift-table2.paper.md" in before and "swift-table2.embedded.md" in after
    assert after.items() > before.items() and len(after) == 2 * len(before)


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no TeX installation")
def test_every_tabular_compiles(tmp_path: Path) -> None:
    printed = [paper_table(p, name, []) for p in papers() for name in read_paper(p).tables]
    body = "\n\\clearpage\n".join(tabular(made) for made in [*TABLES.values(), *printed])
    head = "\\documentclass{article}\n\\usepackage{booktabs}\n\\begin{document}\n"
    (tmp_path / "a.tex").write_text(f"{head}{body}\n\\end{{document}}\n")
    command = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "a.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stdout[-2000:]


# Tables of features


@pytest.mark.parametrize("paper", ["swift", "knapspec"])
def test_every_row_of_the_paper_has_ours_below(paper: str) -> None:
    t = feature_table(paper)
    (grid,) = t.grids
    texts = [[cell.text for cell in row.cells] for row in grid.rows]
    assert {len(row) for row in texts} == {len(grid.columns)} and all(map(all, texts))
    assert [row[0] for row in texts[::2]] == [row[0] for row in texts[1::2]]
    assert list(t.lines[0]) == ["method", "source", *(c.name for c in grid.columns[2:])]
    for row, line in zip(grid.rows, t.lines, strict=True):
        whole = [t.footnotes[cell.mark - 1] if cell.mark else cell.text for cell in row.cells]
        assert whole == list(line.values())
