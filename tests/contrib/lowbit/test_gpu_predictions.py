"""scripts/gpu_predictions.py: the report holds each figure beside what was predicted."""

from dataclasses import asdict

from conftest import WHOLE_TREE
from test_gpu_report import report_of

from scripts.gpu_page import page
from scripts.gpu_predictions import PAGE, filled, predictions
from scripts.gpu_steps import STEPS


def test_every_prediction_is_of_a_step_and_within_its_reach() -> None:
    found = list(predictions())
    assert len({one.what for one in found}) == len(found) > 20
    for one in found:
        assert one.step in [step.name for step in STEPS] and one.low <= one.value <= one.high, one


def test_the_page_has_them_before_and_beside_what_is_measured() -> None:
    (step,) = [step for step in STEPS if step.name == "strict rows"]
    report = report_of([step])
    (one,) = [one for one in predictions() if one.step == step.name]
    before = page(asdict(report))
    assert f"| {one.what} | 0 | 0, 0 | 0, met |  |" in before
    report.steps[0].found = [one.line | {"table": "", one.key: 3}]
    text = page(asdict(report))
    assert f"| {one.what} | 0 | 0, 0 | 0, met | 3 |" in text
    wrong = text.partition("## Missing or wrong")[2].partition("##")[0]
    assert f"strict rows: {one.what} is 3, wanted at most 0" in wrong
    assert f"strict rows: {one.what} is 3, predicted 0 to 0" in wrong


@WHOLE_TREE
def test_the_table_of_the_docs_is_todays() -> None:
    text = PAGE.read_text()
    assert "<!-- predictions -->" in text
    assert filled(text) == text, "run: python scripts/gpu_predictions.py"
