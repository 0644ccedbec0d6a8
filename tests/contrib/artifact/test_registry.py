"""`bundle --page`: what does not hold shows no numbers, and nothing of a bundle acts in the page or
is loaded by it.
"""

import html
import json
import re
import shutil
from pathlib import Path

import pytest
from conftest import ROOT, Command, rest_slow
from test_bundle import COMMUNITY, redigested
from test_page import Reader

from skipbench.config.architecture import Shape
from skipbench.config.hardware import Hardware
from skipbench.contrib.artifact.predict import (
    Drafts,
    MachinePrices,
    PrintedAcceptance,
    Range,
    predict,
)
from skipbench.contrib.artifact.predict_command import prediction
from skipbench.contrib.artifact.predict_papers import TABLES, skipping
from skipbench.contrib.artifact.predict_table import Line
from skipbench.metrics.prices import Curve, Latencies, Point, Prices
from skipbench.report.published import Printed

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


COMMITTED = ROOT / "results" / "predicted"
SHAPE = Shape(layers=4, hidden=8, heads=2, kv_heads=2, intermediate=16, vocab=32, context=64)


def machine(shape: Shape = SHAPE) -> MachinePrices:
    """A pass of 4 (1 + 2) + 4 = 16 seconds; a row more costs a sixteenth of it."""
    model, curve = Latencies(1.0, 0.0, 2.0, 4.0, 4), Curve(16, {1: 1.0, 9: 1.5})
    points = [Point(16, 1, 1.0, 2.0, 4.0, 14.4)]
    return MachinePrices(Prices(model=model, curves=[curve], points=points), SHAPE, shape)


def drafts(plan: int = 4, adapting: float = 0.0) -> Drafts:
    half = skipping(4, plan, 0.5)
    return Drafts((half, half, half), 32, 8, (1, 1), (1, 1), adapting)


def test_a_cell_is_swift_s_formula_by_hand() -> None:
    """c = (2 + 4 + 4) / 16; 4 steps are verified with 5 rows: v = 20 / 16."""
    known = PrintedAcceptance(Range(3.0, 3.0, 3.0), Range(0.5, 0.5, 0.5), "")
    found = predict(machine(), known, drafts(adapting=0.2))
    c, v = 10 / 16, 20 / 16
    assert (found.gamma, found.c and found.c.value, found.v.value) == pytest.approx((4, c, v))
    assert found.speedup.value == pytest.approx(0.8 * 3 / (4 * c + v))
    assert found.speedup.low == pytest.approx(0.8 * 3 / (4 * 1.1 * c + v))
    assert found.speedup.high == pytest.approx(3 / (4 * 0.9 * c + 1))


def test_a_wider_mlp_weighs_more_in_another_shape() -> None:
    """By bytes, an MLP of twice the width costs twice: 4 (1 + 4) + 4 = 24 seconds a pass."""
    wide = Shape(layers=4, hidden=8, heads=2, kv_heads=2, intermediate=32, vocab=32, context=64)
    plan = skipping(4, 4, 0.0)  # all MLPs
    of = Drafts((plan, plan, plan), 32, 8, (1, 1), (1, 1))
    c = machine(wide).c(of)
    assert c is not None and c.value == pytest.approx(8 / 24)
    assert c.high == pytest.approx(1.1 * 8 / 16)  # each part as it was timed


def test_a_value_above_the_high_end_is_out_of_reach() -> None:
    printed = Printed(keys={}, column="speedup", value=1.48, digits=2)
    assert Line(printed, Range(1.0, 1.2, 1.31)).verdict == "out of reach: 1.48 > 1.31 at most"
    assert Line(printed, Range(1.0, 1.2, 1.476)).verdict == "within"  # before it was rounded
    assert Line(printed, Range(1.5, 1.6, 1.7)).verdict == "lower: 1.48 < 1.50"


@pytest.mark.parametrize("name", rest_slow(TABLES, "self-sd-table1".__eq__))
def test_a_committed_table_is_what_its_command_gives(name: str) -> None:
    text = prediction(name, "h100-measured")
    assert text == (COMMITTED / f"{name}.h100-measured.predicted.md").read_text()
    assert text.startswith("## PREDICTED, not measured") and "nothing here was run" in text


def test_a_datasheet_reads_bytes_and_nothing_else() -> None:
    """3 of 4 attentions, and no more, are left of a pass whose parts take their bytes."""
    sheet = MachinePrices.of_datasheet(
        "sheet", Hardware([], None, 100.0, {"bfloat16": 800.0}), SHAPE
    )
    mlp, head, attention = 3 * 8 * 16, 33 * 8, 4 * 8 * 8 + 2 * 8 + 32 * 16
    shares = 3 * attention + 4 * mlp + head, 4 * (attention + mlp) + head
    c = sheet.c(drafts(1)._replace(plans=(skipping(4, 1, 1.0),) * 3))
    assert c is not None and c == pytest.approx((shares[0] / shares[1],) * 3)
    assert sheet.v(drafts(), 7) == (1.0, 1.0, 1.0), "8 operations a byte: 8 rows are one pass"
    assert sheet.v(drafts(), 15).value == pytest.approx(2.0)
