"""The page of a results folder: what is in it, and that nothing in it runs or loads."""

import html
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest
from builders import make_run
from conftest import ROOT
from msgspec import structs

from skipbench.cli.main import main
from skipbench.report.page import document, readable_runs, write_page
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.runs import row_table
from skipbench.report.tables.stored import Summary, read_summary, table_of
from skipbench.runs.run import Run

EVIL = "</script><script>document.title='broken'</script><img src=x onerror=alert(1)> & \u2028"
VOID = ("meta", "link", "img")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs, a table, a table of features, and a figure of the folder and one of a run."""
    folder = tmp_path_factory.mktemp("results")
    runs = [make_run(folder, seed) for seed in (0, 1)]
    for name in ("tables", "figures"):
        (folder / name).mkdir()
    shutil.copy(ROOT / "results/laptop/tables/real.json", folder / "tables")
    (folder / "tables" / "swift-table1.md").write_text("<svg/onload=alert(1)> foreign")
    (runs[0] / "figures").mkdir()
    for path in (folder / "figures" / "swift-figure8.svg", runs[0] / "figures" / "course.svg"):
        path.write_text('<svg xmlns="http://www.w3.org/2000/svg"><path d="M0 0"/></svg>')
    return folder


class Reader(HTMLParser):
    """What a browser would load or follow, event attributes, places, and whether tags match."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses, self.events, self.ids = list[str](), list[str](), list[str]()
        self.tags, self.open = list[str](), list[str]()
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        loaded = ("src", "href", "srcset", "action", "data")
        self.addresses += [v or "" for k, v in attrs if k in loaded]
        self.events += [k for k, _ in attrs if k.startswith("on")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        self.tags.append(tag)
        self.open += [tag] if tag not in VOID else []

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_runs_tables_plots_and_figures_are_on_one_page(results: Path) -> None:
    path, counts, unreadable = write_page(results)
    text = path.read_text()
    assert counts == {"runs": 2, "tables": 2, "figures": 2} and not unreadable
    plain = html.unescape(text)
    table = table_of(read_summary(results / "tables" / "real.json"))
    cells = {cell.text for grid in table.grids for row in grid.rows for cell in row.cells}
    found = re.findall(r">([^<>]+)</(?:t[dh]|b)>", text)
    assert cells - {""} <= {html.unescape(one) for one in found}
    assert "swift Table 1: features" in plain and "foreign" not in plain
    plots = re.findall('alt="Speedups: ([^"]*)"', text)
    assert plots[:2] == ["smollm2-135m-q4_1 on stdlib-code", "tiny on mini-code"]
    assert len(plots) == 3  # another seed is another row
    assert re.findall('alt="Figure ([^"]*)"', text)[0] == "swift-figure8"
    # nothing outside is loaded, every link has a place, and the page is the same again
    assert write_page(results)[0].read_text() == text
    page = Reader(text)
    links = [a[1:] for a in page.addresses if a.startswith("#")]
    assert links and {*links} <= {*page.ids} and len({*page.ids}) == len(page.ids)
    assert all(a.startswith(("#", "data:")) for a in page.addresses) and not page.events
    assert "script" not in page.tags and "default-src 'none'" in text
    assert not re.search(r"@import|url\(", text)


def test_a_hostile_text_stays_a_text() -> None:
    run = Run(model=EVIL, method=EVIL, dataset=EVIL, reason=EVIL, id=EVIL)
    from skipbench.report.tables.formats import html as fragment

    table = fragment(row_table([run]), styled=False)
    page = Reader(document(EVIL, {EVIL: table}, {EVIL: "data:,"}, {EVIL: "data:,"}, [EVIL], EVIL))
    assert "script" not in page.tags and not page.events
    assert all(a.startswith(("#", "data:")) for a in page.addresses)


def test_a_damaged_run_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound, damaged = (make_run(tmp_path, seed) for seed in (0, 1))
    (damaged / "metrics.json").write_text("{")
    with pytest.raises(SystemExit) as left:
        main(["report", f"results={tmp_path}"])
    (line,) = (a for a in capsys.readouterr().err.splitlines() if "cannot be read" in a)
    top = (tmp_path / "report.html").read_text().partition("<main>")[0]
    assert left.value.code == 1
    for told in (line, top):
        assert damaged.parent.name in told and "metrics.json" in told
        assert sound.parent.name not in told


def test_a_run_that_is_not_finished_says_so(tmp_path: Path) -> None:
    states = {"failed": '{"state": "failed", "error": "out of memory"}', "begun": None}
    for name, status in states.items():
        folder = make_run(tmp_path, len(name))
        (folder / "metrics.json").unlink()
        (folder / "status.json").write_text(status) if status else (folder / "status.json").unlink()
    runs, errors = readable_runs(tmp_path)
    assert {run.reason for run in runs} == {"failed: out of memory", "missing"}
    assert not errors and "failed: out of memory" in markdown(row_table(runs))


def test_tables_and_figures_of_other_forms_are_named(tmp_path: Path) -> None:
    tables, figures = tmp_path / "tables", tmp_path / "figures"
    for folder, suffix in ((tables, "json"), (figures, "svg")):
        folder.mkdir()
        (folder / f"folder.{suffix}").mkdir()
        (folder / f"odd.{suffix}").write_text("{}")
    run = Run(model="tiny", method="swift", dataset="d")
    odd = structs.replace(run, keys={"model": [1], "method": "swift", "dataset": "cnndm"})
    (tables / "good.json").write_text(Summary("swift-table2", "paper", [run, odd]).text)
    path, counts, _ = write_page(tmp_path)
    text = html.unescape(path.read_text())
    assert ">good</a>" in text
    left = re.search(r"left out:(.*?)</ul>", text, re.S)
    assert left is not None and counts["files refused"] == left[1].count("<li>")
    names = ["folder.json", "folder.svg", "odd.json"]
    assert all(name in left[1] for name in names)
    assert counts["tables"] + counts["files refused"] == len([*tables.iterdir()]) + 1
