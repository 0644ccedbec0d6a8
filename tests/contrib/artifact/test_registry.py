"""`bundle --page`: the committed bundles hold, what does not hold shows no numbers, and nothing of
a bundle acts in the page or is loaded by it.
"""

import html
import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Command
from test_bundle import redigested
from test_page import Reader

from skipbench.contrib.artifact.registry import Bundle, bundles_of, registry_page

COMMUNITY = ROOT / "results" / "community"
EVIL = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> list[Bundle]:
    """The three bundles of this project, without those of others."""
    folder = tmp_path_factory.mktemp("community")
    for path in COMMUNITY.glob("tiny-*"):
        shutil.copytree(path, folder / path.name)
    return bundles_of(folder)


@pytest.mark.slow
def test_every_committed_bundle_holds() -> None:
    assert not [one.checked for one in bundles_of(COMMUNITY) if not one.runs]


def test_the_page_has_the_numbers_of_the_claims(bundles: list[Bundle]) -> None:
    assert [(one.name, len(one.runs)) for one in bundles] == [("tiny-auto", 1)]
    text = html.unescape(registry_page(bundles))
    for one in bundles:
        claims = json.loads((COMMUNITY / one.name / "claims.json").read_text())["claims"]
        table = text.partition(f'id="bundle-{one.name}"')[2].partition("</section>")[0]
        assert re.search(r"checked: all \d+ checks hold", table)
        for claim in (claim for claim in claims if claim["quantity"] == "speedup.e2e"):
            ends = ", ".join(f"{end:.2f}" for end in claim["interval"])
            assert f"{claim['number']:.2f}x [{ends}]" in table and claim["hardware"] in table


def test_the_page_loads_nothing(bundles: list[Bundle]) -> None:
    page = Reader(registry_page(bundles, "index.html"))
    links = [a for a in page.addresses if not a.startswith(("#", "data:"))]
    assert links == ["index.html", "contribute-results.html"] and not page.events
    assert "script" not in page.tags


def test_a_bundle_that_does_not_hold_is_named_without_its_numbers(
    tmp_path: Path, skipbench: Command
) -> None:
    """A time that was edited with care, a link, and no bundle under a hostile name."""
    assert "has no bundles" in skipbench("bundle", "--page", str(tmp_path)).stderr
    shutil.copytree(COMMUNITY / "tiny-auto", tmp_path / "sound")
    edited = shutil.copytree(COMMUNITY / "tiny-auto", tmp_path / "edited")
    (turns,) = edited.glob("runs/*/turns.jsonl")
    before = turns.read_text()
    turns.write_text(re.sub(r'"verify":\s*([\d.e-]+)', r'"verify": 1e-6', before, count=1))
    assert turns.read_text() != before
    redigested(edited)
    (tmp_path / EVIL).mkdir()
    (tmp_path / "elsewhere").symlink_to(COMMUNITY / "tiny-auto")
    done = skipbench("bundle", "--page", str(tmp_path))
    text = (tmp_path / "report.html").read_text()
    assert done.returncode == 1 and "edited: " in done.stderr and "it is a link" in done.stderr
    shown, left = text.partition("<main>")[2], html.unescape(text.partition("<main>")[0])
    assert "bundle-sound" in shown and shown.count("<table>") == 1
    for name in ("edited", "elsewhere", EVIL):
        assert f"{name}: " in left and f">{name}<" not in shown
    assert EVIL not in text and "is no bundle" in left and "number is " in left
