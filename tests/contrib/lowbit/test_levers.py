"""The table of levers: its model by hand, and a place of a small model."""

import pytest
from conftest import random_lm

from scripts.levers import Figures, measure, modelled

FEW = {"window 512", "int8, head, 4 out"}


def test_the_best_chain_by_hand() -> None:
    """A draft that is always right and costs half of a pass, verified for one pass."""
    assert modelled(1.0, 0.5, [0.0] + [1.0] * 40) == 17 / (16 * 0.5 + 1)
    rising = [0.0, 1.0, 2.0, *[9.0] * 40]  # two rows cost two passes, three nine
    assert modelled(0.5, 0.5, rising) == pytest.approx(1.5 / 2.5)


def test_levers_behind_a_short_context() -> None:
    """A window that is longer than the text changes nothing."""
    lm, found = random_lm("llama", "fused"), Figures()
    prompt = [3, 1, 4, 1, 5, 9, 2, 6] * 3
    lm.allocate(len(prompt) + 160)
    measure(lm, prompt, 6, found, FEW)
    assert found["window 512"][0][0] == 1.0 and found.keys() == FEW
    assert all(0 <= agreement <= 1 for ((agreement, *_),) in found.values())
