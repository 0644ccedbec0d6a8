"""The one table model: tables of features, of papers and of runs go through the same writers, and
every format shows everything that a table says.
"""

import json
import re
from html import unescape

import pytest
from test_papertable import metrics, run

from skipbench.cli.table import _ranked
from skipbench.report.tables.features import feature_table
from skipbench.report.tables.formats import WRITERS, write
from skipbench.report.tables.latex import breakable, escape
from skipbench.report.tables.model import Table
from skipbench.report.tables.paper import paper_table
from skipbench.report.tables.runs import run_table
from skipbench.report.tables.stored import stored_table, summary

GIVEN = {"model": "tiny", "method": "swift", "dataset": "cnndm", "temperature": 0.0}
RUNS = [
    run(metrics(1.3), "a reason with 5 % & <b>", "mini-summary stands for cnndm", **GIVEN),
    run(None, "needs 140 GiB", **GIVEN | {"model": "llama2-70b"}),
]
TABLES = {
    "features": feature_table("swift"),
    "paper": paper_table("swift", "table2", RUNS, "embedded"),
    "runs": run_table("Experiment methods", RUNS, ["a note_of the caller"]),
}


def texts_of(table: Table) -> set[str]:
    """Every text of a table but the CSV's records."""
    cells = {c.text for grid in table.grids for row in grid.rows for c in row.cells}
    heads = {text for grid in table.grids for c in grid.columns for text in (c.name, c.group)}
    lines = {*table.cautions, *table.footnotes, *table.remarks, *table.provenance}
    terms = {text for definition in table.definitions for text in definition}
    settings = {grid.settings for grid in table.grids}
    return {table.title, table.source, *cells, *heads, *lines, *terms, *settings} - {""}


@pytest.mark.parametrize("kind", TABLES)
def test_every_format_shows_every_text(kind: str) -> None:
    table = TABLES[kind]
    written = write(table)
    assert list(written) == list(WRITERS) == ["md", "tex", "csv", "html"]
    for text in texts_of(table):
        assert " ".join(text.split()).replace("|", "\\|") in written["md"].replace("**", "")
        assert text in unescape(written["html"])
        assert escape(text) in written["tex"] or breakable(text) in written["tex"]
    records = written["csv"].splitlines()
    assert len(records) == len(table.records) + 1
    assert records[0].split(",") == list(dict.fromkeys(n for r in table.records for n in r))


@pytest.mark.parametrize("kind", TABLES)
def test_marks_lead_to_footnotes(kind: str) -> None:
    table = TABLES[kind]
    marks = {c.mark for grid in table.grids for row in grid.rows for c in row.cells} - {None}
    assert marks == set(range(1, len(table.footnotes) + 1))
    written = write(table)
    for n, text in enumerate(table.footnotes, 1):
        assert f"[{n}] {text}" in written["md"]
        assert rf"\textsuperscript{{{n}}} {escape(text)}" in written["tex"]
    notes = re.findall(r"<ol>\n(.*?)\n</ol>", written["html"], re.S)
    assert [unescape(n) for n in re.findall("<li>(.*?)</li>", "".join(notes))] == list(
        table.footnotes
    )


def test_a_stored_table_is_the_table_of_its_runs() -> None:
    assert stored_table(summary("swift-table2", "embedded", RUNS)) == TABLES["paper"]
    other = stored_table(summary("methods", "embedded", RUNS))
    assert other.title == TABLES["runs"].title and other.grids == TABLES["runs"].grids


def test_what_a_table_needs_of_its_runs_is_in_the_summary() -> None:
    """Rank, point and calibration pass through the JSON from which every table is rendered."""
    runs = [
        run(metrics(speedup), method=method) | {"label": f"method={method}"}
        for method, speedup in (("vanilla", 1.0), ("clasp", 0.7), ("swift", 1.6))
    ]
    (grid,) = stored_table(summary("real", "embedded", _ranked(runs))).grids
    assert [row.cells[2].text for row in grid.rows] == ["swift", "vanilla", "clasp"]
    (grid,) = stored_table(summary("real", "embedded", runs)).grids
    assert "point" in [column.name for column in grid.columns]
    sparse = {"sparsity": "wanda-0.5", "calibration": "8 rows of mini-stories"}
    text = summary("self-sd-table13", "embedded", [runs[0] | {"provenance": sparse}])
    assert json.loads(text)["runs"][0]["provenance"] == sparse
