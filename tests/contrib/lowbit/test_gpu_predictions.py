"""scripts/gpu_predictions.py: the report holds each figure beside what was predicted."""

from conftest import WHOLE_TREE

from scripts.gpu_predictions import PAGE, filled, predictions
from scripts.gpu_steps import STEPS


def test_every_prediction_is_of_a_step_and_within_its_reach() -> None:
    found = list(predictions())
    assert len({one.what for one in found}) == len(found) > 20
    for one in found:
        assert one.step in [step.name for step in STEPS] and one.low <= one.value <= one.high, one


@WHOLE_TREE
def test_the_table_of_the_docs_is_todays() -> None:
    text = PAGE.read_text()
    assert "<!-- predictions -->" in text
    assert filled(text) == text, "run: python scripts/gpu_predictions.py"
