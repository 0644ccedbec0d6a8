"""`bundle --page`: what does not hold shows no numbers, and nothing of a bundle acts in the page or
is loaded by it.
"""

import html
import json
import re
import shutil
from pathlib import Path

from conftest import ROOT, Command
from test_bundle import redigested
from test_page import Reader

COMMUNITY = ROOT / "results" / "community"
EVIL = "<img src=x onerror=alert(1)>"


def test_a_page_has_the_claims_of_what_holds_and_names_the_rest(
    tmp_path: Path, skipbench: Command
) -> None:
    """A sound bundle, a time that was edited with care, a link, and none under a hostile name."""
    assert "has no bundles" in skipbench("bundle", "--page", str(tmp_path)).stderr
    sound = shutil.copytree(COMMUNITY / "tiny-auto", tmp_path / "sound")
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
    page = Reader(text)
    assert not page.events and "script" not in page.tags
    assert all(a.startswith(("#", "data:")) or a.endswith(".html") for a in page.addresses)
    table = html.unescape(shown)
    assert re.search(r"checked: all \d+ checks hold", table)
    claims = json.loads((sound / "claims.json").read_text())["claims"]
    for claim in (claim for claim in claims if claim["quantity"] == "speedup.e2e"):
        ends = ", ".join(f"{end:.2f}" for end in claim["interval"])
        assert f"{claim['number']:.2f}x [{ends}]" in table and claim["hardware"] in table
