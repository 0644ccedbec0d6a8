"""KnapSpec with choices: its programmes against all plans, and plans that follow given prices."""

import itertools
import math
import random

import numpy as np
import pytest
from conftest import make_method, random_lm
from contract import PROMPT, check_greedy

from skipbench.contrib.lowbit import knapspec_choices
from skipbench.contrib.lowbit.knapspec_choices import (
    FULL,
    LENGTHS,
    OUT,
    KnapSpecChoices,
    best_of,
    choice_ns,
    undercut_by_none,
)
from skipbench.metrics.formulas import tpt
from skipbench.metrics.prices import Parts, Prices

CHOICES = FULL, "int8", "int4", OUT
CPU = {"int8": (0.5, 0.7), "int4": (1.0, 1.02)}
"""Shares of a part's seconds in fewer bits: 4 bits have no kernel there."""
GPU = {"int8": (0.6, 0.8), "int4": (0.3, 0.6)}
LOSSES = {"int8": 1e-3, "int4": 1e-2, OUT: 0.1}


def drawn_prices(draw: random.Random, shares: dict[str, tuple[float, float]]) -> Prices:
    attention, token, mlp = (draw.uniform(*ends) for ends in ((20, 60), (0, 0.02), (50, 200)))
    layers, us = draw.randint(1, 2), 1e-6

    def parts(share: float, low: dict[str, Parts] | None = None) -> Parts:
        seconds = us * share * attention, us * token, us * share * mlp, 20 * us
        return Parts(*seconds, layers, low or {})

    return Prices(model=parts(1.0, {n: parts(draw.uniform(*ends)) for n, ends in shares.items()}))


def test_no_plan_undercuts_the_front() -> None:
    draw = random.Random(0)
    for _ in range(200):
        classes, items = draw.randint(1, 5), draw.randint(2, 4)
        prices = [[draw.randint(0, 5) for _ in range(items)] for _ in range(classes)]
        losses = [[math.inf, *(draw.random() for _ in row[1:])] for row in prices]
        plans = [*itertools.product(range(items), repeat=classes)]
        each = [
            tuple(sum(row[c] for row, c in zip(rows, plan, strict=True)) for plan in plans)
            for rows in (prices, losses)
        ]
        front = undercut_by_none(prices, losses)
        cheaper = [min(x for w, x in zip(*each, strict=True) if w <= p) for p in front.prices]
        assert front.losses == pytest.approx(cheaper) and (np.diff(front.losses) < 0).all()
        assert front.losses[-1] == pytest.approx(min(each[1]))
        for price, loss, plan in zip(*front, strict=True):
            n = plans.index(tuple(plan))
            assert (price, loss) == (each[0][n], pytest.approx(each[1][n]))


@pytest.mark.parametrize("shares", [CPU, GPU])
def test_the_best_of_all_plans_windows_and_lengths(shares: dict[str, tuple[float, float]]) -> None:
    """100 instances of drawn prices of a device and of drawn losses."""
    draw, used = random.Random(1), set[str]()
    for _ in range(100):
        prices, context = drawn_prices(draw, shares), draw.choice((100, 4000))
        layer = choice_ns(prices, CHOICES, context), choice_ns(prices, CHOICES, 50)
        scale, sublayers = draw.choice((0.5, 8.0, 200.0)), 2 * prices.layers
        losses = [
            [
                [n * draw.random() / 100, *(draw.expovariate(1 / LOSSES[c]) for c in CHOICES[1:])]
                for _ in range(sublayers)
            ]
            for n in range(2)  # all of the context: in full nothing is lost
        ]
        verify_s = [prices.pass_s(1, context) * (1 + n / 50) for n in LENGTHS]
        values = dict[tuple[int, ...], float]()
        for window, *plan in itertools.product(range(2), *[range(4)] * sublayers):
            step_s = prices.part_s("head", 1, 0) + 1e-9 * sum(
                layer[window][s][c] for s, c in enumerate(plan)
            )
            loss = sum(losses[window][s][c] for s, c in enumerate(plan))
            values[window, *plan] = max(
                tpt(math.exp(-scale * loss), n, step_s, verify)
                for n, verify in zip(LENGTHS, verify_s, strict=True)
            )
        fronts = [undercut_by_none(*each) for each in zip(layer, losses, strict=True)]
        front, chosen = best_of(fronts, scale, prices.part_s("head", 1, 0), verify_s)
        assert values[front, *chosen] == pytest.approx(max(values.values()), rel=1e-12)
        used.update(CHOICES[c] for c in chosen)
        used.update(["window"] * front)
    everything = {*CHOICES, "window"}
    assert used == (everything if shares is GPU else everything - {"int4"})


def test_prices_of_choices() -> None:
    """Whole nanoseconds; a variant's attention reads the same positions."""
    low = {"int8": Parts(15e-6, 1e-9, 30e-6, 5e-6, 4), "int4": Parts(9e-6, 1e-9, 20e-6, 5e-6, 4)}
    prices = Prices(model=Parts(20e-6, 2e-9, 60e-6, 1e-5, 4, low))
    layer = [[20_200, 15_100, 9_100, 0], [60_000, 30_000, 20_000, 0]]
    assert choice_ns(prices, CHOICES, 100) == layer * 4


@pytest.mark.parametrize(
    ("int8", "int4", "takes"),
    [(0.5, 2.0, {"int8"}), (2.0, 2.0, set()), (0.6, 1e-3, {"int4"}), (1e-3, 2.0, {"int8"})],
)
def test_plans_follow_the_prices(
    int8: float, int4: float, takes: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fewer bits where that is cheaper; in full, or left out, where it is dearer."""
    lm, method = random_lm("llama", "fused"), make_method("knapspec-choices", "method.head=full")
    assert isinstance(method, KnapSpecChoices)
    low = {
        name: Parts(share * 1e-4, 0.0, share * 1e-4, 1e-5, lm.layers)
        for name, share in (("int8", int8), ("int4", int4))
    }
    prices = Prices(model=Parts(1e-4, 0.0, 1e-4, 1e-5, lm.layers, low))
    monkeypatch.setattr(lm, "prices", prices)  # of a model that other tests have, too
    check_greedy(lm, method, PROMPT, length=40, drafts=bool(takes))
    plans = [plan for shares in method.log["agreement"] for plan, _ in shares]
    assert plans and {name for name in low for plan in plans if name in plan} == takes


def test_a_window_where_it_saves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions that cost nothing are all read."""
    monkeypatch.setattr(knapspec_choices, "WINDOWS", ({"window": 8},))
    for token_s, windowed in ((1e-4, True), (0.0, False)):
        lm, method = random_lm("llama", "fused"), make_method("knapspec-choices")
        low = {"int8": Parts(1e-4, token_s, 1e-4, 1e-5, lm.layers)}
        prices = Prices(model=Parts(1e-4, token_s, 1e-4, 1e-5, lm.layers, low))
        monkeypatch.setattr(lm, "prices", prices)
        check_greedy(lm, method, PROMPT, length=40, drafts=False)
        plans = [plan for shares in method.log["agreement"] for plan, _ in shares]
        assert plans and any("window:8" in plan for plan in plans) == windowed


def test_4_bits_are_priced_where_they_have_a_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    engine, method = random_lm("llama", "fused").engine, make_method("knapspec-choices")
    assert method.variants_on(engine) == {"int8"}
    monkeypatch.setattr(engine.variant("int4"), "fault", None)
    assert method.variants_on(engine) == {"int8", "int4"}
