"""The table of levers: its model by hand, and a place of a small model."""

from pathlib import Path

import msgspec
import pytest
from conftest import random_lm

from scripts import gpu_predictions, lever_pairs
from scripts.levers import Figures, measure, modelled
from skipbench.draft_plan import DraftPlan
from skipbench.profile.latency import measured

FEW = {"window 512", "int8, head, 4 out"}


def test_the_best_chain_by_hand() -> None:
    """A draft that is always right and costs half of a pass, verified for one pass."""
    assert modelled(1.0, 0.5, [0.0] + [1.0] * 40) == 17 / (16 * 0.5 + 1)
    rising = [0.0, 1.0, 2.0, *[9.0] * 40]  # two rows cost two passes, three nine
    assert modelled(0.5, 0.5, rising) == pytest.approx(1.5 / 2.5)


def test_prices_of_an_h100_are_what_is_predicted() -> None:
    prices, whole = lever_pairs.h100(2048, 32), DraftPlan.of(32)
    assert prices.pass_s(1, 2048) == pytest.approx(gpu_predictions.a_pass(2048, 1)[1] / 1e3)
    for bits, share in zip(("int8", "int4"), gpu_predictions.low_bits(), strict=True):
        assert prices.step_price(2048, whole.cheaper(bits)) == pytest.approx(share[1])
    half = prices.step_price(2048, DraftPlan.of_layers(32, range(16)))
    low, _, high = gpu_predictions.half(2048)
    assert low <= half <= high
    rows = prices.pass_s(9, 2048) / prices.pass_s(1, 2048)
    assert rows == pytest.approx(
        gpu_predictions.a_pass(2048, 9)[1] / gpu_predictions.a_pass(2048, 1)[1]
    )


def test_levers_behind_a_short_context() -> None:
    """A window that is longer than the text changes nothing."""
    lm, found = random_lm("llama", "fused"), Figures()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 3
    lm.allocate(len(prompt) + 160)
    measure(lm, prompt, 6, found, FEW)
    assert found["window 512"][0][0] == 1.0 and found.keys() == FEW
    assert all(0 <= agreement <= 1 for ((agreement, *_),) in found.values())


def test_8_bits_are_priced_where_they_are_asked_for(tmp_path: Path) -> None:
    lm = random_lm("llama", "fused")
    before = measured(lm, path := tmp_path / "latency.json", {"likely"})
    low = measured(lm, path, {"int8"})
    assert before.model and low.model and low.priced == {"likely", "int8"}
    of = low.model.variants
    assert low.model == msgspec.structs.replace(before.model, variants=of) and of.keys() == {"int8"}
