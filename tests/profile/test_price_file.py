"""Curves over rows, and prices that are measured once and kept for the next process."""

import json
from functools import partial
from pathlib import Path

import msgspec
import pytest
import torch
from conftest import random_lm

import skipbench
from skipbench.draft_plan import DraftPlan
from skipbench.language_model import LanguageModel
from skipbench.metrics.host import Host
from skipbench.metrics.prices import Curve, Latencies, Prices
from skipbench.profile import latency, rows
from skipbench.profile.rows import paired_ratios, verification_curve

STORY = "Once upon a time there was a dog. Once upon a time there was"


def test_a_pass_is_its_parts_times_a_curve_over_rows() -> None:
    """Linear between measured rows and contexts; never falling; beyond the rows with their mean
    slope, beyond the contexts as at the nearest.
    """
    model = Latencies(1.0, 0.01, 2.0, 4.0, 4, {"int8": Latencies(0.5, 0.0, 1.0, 2.0, 4)})
    curves = [
        Curve(10, {1: 1.0, 2: 0.9, 4: 1.5}),
        Curve(30, {1: 1.0, 4: 2.5}),
        Curve(10, {1: 1.0, 4: 4.0}, "int8"),
    ]
    prices = Prices(model=model, curves=curves, host={"mine": Host(1.0, 0.5, 2.0, 3.0, 2.0)})
    found = [
        prices.curve(n, context) for n, context in ((2, 0), (3, 10), (4, 20), (7, 10), (4, 99))
    ]
    assert found == pytest.approx([1.0, 1.25, 2.0, 2.0, 2.5])
    one = 4 * (1 + 0.01 * 20) + 4 * 2 + 4
    assert prices.pass_s(4, 20) == pytest.approx(2 * one)
    low, half = DraftPlan(4, variant="int8"), DraftPlan.of(4, [0, 2, 1])
    assert prices.pass_s(4, 20, low) == pytest.approx(4 * 8)
    host, half_s = prices.host_of("mine"), 2 * 1.2 + 3 * 2 + 4
    seconds = 3 * (2 * half_s + 2) + 3 * 2 * one + 1 + 4 * 0.5
    assert prices.round_s(4, 20, host, 3, half) == pytest.approx(seconds)
    first = 3 * one + 1.5
    assert prices.round_prices(4, 20, host)[::4] == pytest.approx([0, (6 * one + 3) / first])
    assert prices.step_price(20, half, host) == pytest.approx((2 * half_s + 2) / first)
    assert prices.draft_prices(4, "int8", 20, host)[::4] == pytest.approx([0, 66 / first])
    assert prices.draft_prices(4, "int4") == [] and Prices().round_prices(2) == [0.0, 1.0, 1.0]


def test_sizes_that_do_not_fit_are_left_out() -> None:
    lm = random_lm("llama", "fused")
    assert list(verification_curve(lm, 3, (1, 4, 10_000)).rows) == [1, 4]


def test_the_next_process_measures_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured, measure = list[int](), latency.verification_curve
    monkeypatch.setattr(latency, "verification_curve", lambda *a: measured.append(1) or measure(*a))

    def loaded(*more: str) -> LanguageModel:  # other weights in memory, as in another process
        return skipbench.load("tiny", "recycling", overrides=[f"results={tmp_path}", *more])

    text = loaded().generate(STORY, 24).text
    (path,) = (tmp_path / "latency").iterdir()
    record = json.loads(path.read_text())
    lm, count = loaded(), len(measured)
    assert msgspec.to_builtins(lm.lm.prices)["curves"] == [
        {**one, "rows": {int(n): price for n, price in one["rows"].items()}}
        for one in record["curves"]
    ]
    assert msgspec.to_builtins(lm.lm.prices)["host"] == record["host"] and record["host"]
    assert lm.generate(STORY, 24).text == text and len(measured) == count == 2


def test_a_busy_moment_does_not_decide_a_price(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that slows a whole turn, nor one that falls on one call; the first turn counts
    for nothing, and each call is timed behind one of its own.
    """
    turns, second = [9.0, 1.9, 1.0, 1.6, 3.0, 1.2], [7.0, 2.0, 3.0, 5.0, 2.0, 2.0]
    pairs = {1: turns, 2: [a * b for a, b in zip(turns, second, strict=True)]}
    times = {n: iter([t for second in of for t in (99.0, second)]) for n, of in pairs.items()}
    monkeypatch.setattr(rows, "timed", lambda call, _: call())
    calls = {n: partial(next, of_call) for n, of_call in times.items()}
    assert paired_ratios(calls, torch.device("cpu")) == {1: 1.0, 2: 2.0}
