"""When a draft ends: Self-SD's adaptive threshold by hand, and what a confidence is a probability
of.
"""

import pytest
from conftest import random_lm
from contract import PROMPT

from skipbench.decode.loop import generate
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Adaptive, Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.methods.fixed import FixedSet


def test_equations_2_to_4_by_hand() -> None:
    given = {"threshold": 0.6, "target": 0.9, "step": 0.1, "beta1": 0.5, "beta2": 0.75}
    rule, code = Adaptive(**given), Adaptive(**given, first_beta1="code")
    rule.update(4, 4)  # e = 1: AR = 1 > 0.9, so gamma - 0.1
    assert rule.threshold == pytest.approx(0.75 * 0.6 + 0.25 * 0.5)
    rule.update(9, 10)  # AR = (1 + 0.9) / 2 = 0.95
    before = rule.threshold
    assert before == pytest.approx(0.575 - 0.025)
    rule.update(0, 10)  # AR = 0.475, so gamma + 0.1
    assert rule.threshold == pytest.approx(before + 0.025)
    rule.update(0, 0)  # nothing was drafted
    assert rule.rounds == 3
    rule.begin()  # the next prompt: e = 1 again, and gamma goes on
    before = rule.threshold
    rule.update(10, 10)
    assert rule.threshold == pytest.approx(before - 0.025)
    code.update(4, 4)  # the published code halves the first rate: AR = 0.5
    assert code.threshold == pytest.approx(0.625)


@pytest.mark.parametrize("widths", [(), (1, 1, 1, 1)], ids=["chain", "tree"])
def test_a_confidence_is_a_probability_without_temperature(widths: tuple[int, ...]) -> None:
    """Nearly greedy sampling draws the likeliest token with probability 1; the draft ends where the
    greedy one does all the same.
    """
    lm, steps = random_lm("llama", "fused", vocab=7), {}
    for temperature in (0.0, 1e-5):
        skip = DraftPlan.parse("mlp:2", lm.layers)
        method = FixedSet("fixed", skip, Fixed(6, threshold=0.3), widths)
        found = generate(lm, method, PROMPT[:3], 40, sampler=Sampler(temperature))
        steps[temperature] = [r.steps for r in found.rounds]
    assert steps[0.0] == steps[1e-5] and len(set(steps[0.0])) > 2
