"""KnapSpec with choices: its programme against all plans, and plans that it draws from."""

import itertools
import math
import random

import pytest
from conftest import make_method, random_lm
from contract import PROMPT, check_greedy

from skipbench.contrib.lowbit.knapspec_choices import KnapSpecChoices, choose, integer_weights
from skipbench.metrics.prices import Parts, Prices


def test_the_programme_finds_what_trying_all_plans_finds() -> None:
    draw = random.Random(0)
    for _ in range(200):
        classes, items = draw.randint(1, 6), draw.randint(2, 3)
        weights = [[draw.randint(0, 5) for _ in range(items)] for _ in range(classes)]
        losses = [[draw.choice([0.0, math.inf, draw.random()]) for _ in row] for row in weights]
        best: dict[int, float] = {}
        for plan in itertools.product(range(items), repeat=classes):
            weight = sum(row[c] for row, c in zip(weights, plan, strict=True))
            loss = sum(row[c] for row, c in zip(losses, plan, strict=True))
            best[weight] = min(loss, best.get(weight, math.inf))
        found = choose(weights, losses)
        assert len(found) == sum(map(max, weights)) + 1
        for weight, (loss, plan) in enumerate(found):
            assert loss == pytest.approx(best.get(weight, math.inf))
            if math.isfinite(loss):
                of_plan = [(w[c], x[c]) for w, x, c in zip(weights, losses, plan, strict=True)]
                assert sum(w for w, _ in of_plan) == weight
                assert sum(x for _, x in of_plan) == pytest.approx(loss)


def test_weights_are_prices() -> None:
    parts = Parts(2.0, 0.0, 6.0, 1.0, 4, {"int8": Parts(1.5, 0.0, 3.0, 0.5, 4)})
    assert integer_weights(Prices(model=parts), 9) == [[32, 24, 0], [96, 48, 0]] * 4


@pytest.mark.parametrize(("low", "takes"), [(0.5, "int8"), (2.0, "full"), (1e-3, "int8")])
def test_plans_follow_the_prices(low: float, takes: str) -> None:
    """In 8 bits where that is cheaper; in full, or left out, where it is dearer."""
    lm, method = random_lm("llama", "fused"), make_method("knapspec-choices")
    assert isinstance(method, KnapSpecChoices)
    int8 = Parts(low * 1e-4, 0.0, low * 1e-4, low * 1e-5, lm.layers)
    lm.prices = Prices(model=Parts(1e-4, 0.0, 1e-4, 1e-5, lm.layers, {"int8": int8}))
    check_greedy(lm, method, PROMPT, length=40, drafts=takes == "int8")
    assert method.log["optimised"]
    plans = [plan for shares in method.log["agreement"] for plan, _ in shares]
    assert any("int8" in plan.replace("head:int8", "") for plan in plans) == (takes == "int8")
