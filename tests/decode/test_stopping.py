"""When a draft ends: Self-SD's adaptive threshold by hand, and what a confidence is a probability
of.
"""

import pytest
from conftest import random_lm
from contract import PROMPT

from skipbench.contrib.lowbit.stop_by_price import IDLE, ByPrice
from skipbench.decode.draft import State
from skipbench.decode.loop import generate
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Adaptive, Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.methods.fixed import FixedSet


def test_equations_2_to_4_by_hand() -> None:
    rule = Adaptive(threshold=0.6, target=0.9, step=0.1, beta1=0.5, beta2=0.75)
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


def test_the_published_code_halves_the_first_rate() -> None:
    rule = Adaptive(threshold=0.6, target=0.9, step=0.1, beta1=0.5, beta2=0.75, first_beta1="code")
    rule.update(4, 4)  # AR = 0.5
    assert rule.threshold == pytest.approx(0.625)


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


def lengths_by_price(row_prices: list[float], right: bool, rounds: int = 200) -> list[int]:
    """Draft lengths where a step costs half a pass, and all drafted tokens are right, or none."""
    rule, found = ByPrice(row_prices=row_prices), list[int]()
    rule.step, rule.prices = 0.5, rule.prices_at(State(None, [3]), rule.max_steps + 1)
    for _ in range(rounds):
        limit = rule.limit()
        steps = next((n for n in range(1, limit) if rule.ends(0.9)), limit)
        found.append(steps)
        rule.update(steps if right else 0, steps)
    return found


def test_a_draft_is_as_long_as_its_price_allows() -> None:
    flat, steep = [1, 1, 1, 1, 1, 1], [1, 1.6, 2.8, 5.2, 10, 20]
    assert lengths_by_price(flat, right=True)[-1] > 12
    assert set(lengths_by_price(steep, right=True)[20:]) == {0, 1}  # no token saves its own row
    wrong = lengths_by_price(flat, right=False)
    assert wrong[-IDLE:].count(1) == 1 and wrong[-IDLE:].count(0) == IDLE - 1  # and tries again
