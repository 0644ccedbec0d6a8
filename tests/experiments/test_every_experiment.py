"""Every experiment of the papers, run for real at scale=embedded with two short samples per cell,
then its table or figure.

A tier of its own: `make test-experiments`. Each worker has one folder of results, so that cells
which experiments share run once in it.
"""

import csv
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PAPERS, ROOT

from skipbench.cli.main import dispatch
from skipbench.experiments.grid import plan
from skipbench.report.figures.registry import FIGURES
from skipbench.report.figures.style import FORMATS
from skipbench.report.tables.formats import DEFAULT

pytestmark = pytest.mark.experiments
SHORT = ["scale=embedded", "limit=2", "dataset.max_new_tokens=16", "engine.warmup=0"]
MORE = {  # a set that changes within 16 tokens, where the figure shows nothing else
    "clasp-figure3a": ["method.interval=2"],
    "knapspec-figure5": ["method.interval=2"],
}
# an experiment without a drawing is a table of its runs
TABLES = [name for name in PAPERS if name not in FIGURES]


@pytest.fixture(scope="session")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("every")


def words(name: str, results: Path) -> list[str]:
    return [name, *SHORT, *MORE.get(name, []), f"results={results}"]


@pytest.mark.parametrize("name", [name for name in TABLES if "-figure" not in name])
def test_a_table_has_a_row_of_ours_for_each_cell(name: str, results: Path) -> None:
    dispatch(["table", *words(name, results)])
    folder = results / "tables"
    with (folder / f"{name}.embedded.all.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    planned = plan(name, SHORT[1:], "embedded")
    assert len(found) >= len(planned) and all(line["model"] == "tiny" for line in found)
    assert all(bool(line.get("samples")) != bool(line["reason"]) for line in found)
    shown = (folder / f"{name}.embedded.md").read_text()
    assert "scale=embedded: another model" in shown and "| paper" not in shown
    assert "not run yet" not in shown and "not done yet" not in shown
    assert ("not replications" in shown) == bool(found)


@pytest.mark.parametrize("name", [name for name in PAPERS if "-figure" in name])
def test_a_figure_is_drawn_from_all_its_cells(name: str, results: Path) -> None:
    planned = plan(name, [], "embedded")
    if name in TABLES:
        dispatch(["table", *words(name, results)])
        assert "not run" not in (results / "tables" / f"{name}.embedded.md").read_text()
        return
    dispatch(["figure", *words(name, results)])  # fails where a cell is missing
    if not any(cell.runnable for cell in planned):
        assert all(cell.reason for cell in planned)
        return
    for suffix in ("png", "svg"):
        assert (results / "figures" / f"{name}.embedded.{suffix}").stat().st_size > 5000


def test_rendering_again_needs_no_torch_and_changes_no_byte(results: Path) -> None:
    tabled, drawn = "swift-table8", "clasp-figure3c"
    dispatch(["table", *words(tabled, results)])
    dispatch(["figure", *words(drawn, results)])
    paths = [*(results / "tables").glob(f"{tabled}.*"), *(results / "figures").glob(f"{drawn}.*")]
    before = {path: path.read_bytes() for path in paths}
    assert len(before) == len(DEFAULT) + 2 + len(FORMATS)  # a table has its .all.csv and .json
    for path in paths:
        path.unlink()
    program = f"""
import sys
sys.modules["torch"] = sys.modules["transformers"] = None
from skipbench.cli.main import dispatch
dispatch({["table", *words(tabled, results), "--render-only"]!r})
dispatch({["figure", *words(drawn, results), "--render-only"]!r})
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {path: path.read_bytes() for path in paths} == before
