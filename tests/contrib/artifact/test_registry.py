"""`bundle --page`: the committed bundles hold, what does not hold shows no numbers, and nothing of
a bundle acts in the page or is loaded by it.
"""

import html
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT, Command
from test_bundle import redigested
from test_page import Loads, browse, in_browser

from skipbench.contrib.artifact.registry import (
    CHOSEN,
    COLUMNS,
    registry_page,
    rows_of,
    write_registry,
)
from skipbench.report.columns import MISSING
from skipbench.report.page.collect import PageRun

COMMUNITY = ROOT / "results" / "community"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three bundles of this project, without those of others."""
    folder = tmp_path_factory.mktemp("community")
    for path in COMMUNITY.glob("tiny-*"):
        shutil.copytree(path, folder / path.name)
    return folder


@pytest.fixture(scope="module")
def rows(ours: Path) -> list[PageRun]:
    return rows_of(ours)


@pytest.mark.slow
def test_every_committed_bundle_holds() -> None:
    assert not [row.error for row in rows_of(COMMUNITY) if row.error]


def test_a_row_has_the_numbers_of_its_claims(rows: list[PageRun]) -> None:
    assert [row.cells["bundle"] for row in rows] == [
        "tiny-auto", *["tiny-copies"] * 3, *["tiny-layers"] * 2
    ]  # fmt: skip
    for row in rows:
        assert row.run and row.cells.keys() == {*COLUMNS} and MISSING not in row.cells["speedup"]
        folder, run = row.id.split("/")
        claims = json.loads((COMMUNITY / folder / "claims.json").read_text())["claims"]
        own = {one["quantity"]: one for one in claims if one["run"] == run}
        claim = own["speedup.e2e"]
        ends = [f"{end:.2f}" for end in claim["interval"]]
        assert row.cells["speedup"] == f"{claim['number']:.2f}x [{', '.join(ends)}]"
        assert row.cells["lossless"].split("/")[0] == f"{own['lossless.identical']['number']:.0f}"
        assert row.cells["hardware"] == claim["hardware"]
        assert re.fullmatch(r"all \d+ checks hold", row.cells["checked"])


def test_the_page_is_labelled_and_loads_nothing(rows: list[PageRun]) -> None:
    text = registry_page(rows, "index.html")
    reader = Loads()
    reader.feed(text)
    links = [a for a in reader.addresses if not a.startswith("#") and a != "data:,"]
    pages = ["index.html", "contribute-results.html", "servers.html"]
    assert links == pages and not reader.events
    assert "url(" not in text and "default-src 'none'" in text and '<html lang="en">' in text
    levels = [int(level) for level in re.findall(r"<h(\d)", text)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in pairwise(levels))
    fields = len(CHOSEN) + 1
    assert len(re.findall(r"<label>\w+ <(?:select|input)", text)) == fields
    assert text.count("<select") + text.count("<input") == fields
    assert all(f'<button type="button">{name}</button></th>' in text for name in COLUMNS)
    assert text.count("<tr data-run") == len(rows)
    plots = re.findall(r'<a href="#filter=([^"]*)">', text)
    assert len(plots) == len(rows) and "tiny-copies%20prompt-lookup" in plots


def test_a_bundle_that_does_not_hold_is_named_without_its_numbers(
    tmp_path: Path, skipbench: Command
) -> None:
    """A time that was edited with care, a link, and no bundle under a hostile name."""
    assert "has no bundles" in skipbench("bundle", "--page", str(tmp_path)).stderr
    shutil.copytree(COMMUNITY / "tiny-auto", tmp_path / "sound")
    edited = shutil.copytree(COMMUNITY / "tiny-auto", tmp_path / "edited")
    (samples,) = edited.glob("runs/*/samples.jsonl")
    before = samples.read_text()
    samples.write_text(re.sub(r'"verify":\s*([\d.e-]+)', r'"verify": 1e-6', before, count=1))
    assert samples.read_text() != before
    redigested(edited)
    (tmp_path / EVIL).mkdir()
    (tmp_path / "elsewhere").symlink_to(COMMUNITY / "tiny-copies")
    done = skipbench("bundle", "--page", str(tmp_path))
    text = (tmp_path / "report.html").read_text()
    assert done.returncode == 1 and "edited: " in done.stderr and "it is a link" in done.stderr
    cells = {
        html.unescape(row[-2]): row
        for line in re.findall("<tr data-run.*?</tr>", text)
        if (row := re.findall(r"<td[^>]*>(.*?)</td>", line))
    }
    assert set(cells) == {"sound", "edited", "elsewhere", EVIL}
    assert cells["sound"][2] != MISSING and cells["sound"][-1].endswith("checks hold")
    for name in ("edited", "elsewhere", EVIL):
        assert set(cells[name][:-2]) == {MISSING} and cells[name][-1].startswith("FAILS: ")
    assert EVIL not in text and "is no bundle" in cells[EVIL][-1]
    assert "number is " in cells["edited"][-1] and f"<option>{MISSING}" not in text


@in_browser
def test_links_of_plots_filter_and_columns_sort_in_a_browser(ours: Path, tmp_path: Path) -> None:
    path, _ = write_registry(ours)
    document = browse(path, "#filter=tiny-copies%20suffix", tmp_path / "profile")
    shown = re.findall(r'<tr data-run="([^"]*)">', document)
    assert len(shown) == 1 and "_suffix_" in shown[0] and "1 of 6 runs" in document
    document = browse(path, "#model=tiny&sort=M&sort=M", tmp_path / "profile")  # downwards
    found = re.findall(r'<tr data-run.*?data-value="[^"]*">([\d.]+)</td>', document)
    values = [float(value) for value in found]
    assert len(values) == 6 and values == sorted(values, reverse=True)
