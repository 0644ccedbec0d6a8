"""The host's part of rounds, by the marks of a clock and by hand."""

import itertools

import pytest
import torch
from conftest import LAYERS, make_method, random_lm

from skipbench.decode.loop import generate
from skipbench.draft_plan import DraftPlan
from skipbench.metrics.host import Host, Timed, host_line
from skipbench.metrics.prices import Curve, Latencies, Prices
from skipbench.profile.clock import Clock

TEXT = [3, 1, 4, 1, 5, 9, 2, 6]
PASS = Latencies(0.0, 0.0, 0.0, 1.0, LAYERS)
"""A pass of a second."""


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("vanilla", Host(4.0)),  # proposing, reading, committing, adapting
        ("prompt-lookup", Host(4.0)),
        ("uniform", Host(3.0, draft_pace=0.5)),  # its two steps take a second
    ],
)
def test_all_of_a_round_but_its_passes_counts(name: str, host: Host) -> None:
    lm, tick = random_lm("llama", "fused"), itertools.count().__next__
    words = ["stop@method.stop=fixed", "method.stop.max_steps=2", "method.stop.threshold=0"]
    method = make_method(name, *(words if name == "uniform" else ()))
    lm.prices = Prices()
    generate(lm, method, TEXT, 60, clock=Clock(torch.device("cpu"), tick))
    assert not lm.prices.host, "no latencies, no host"
    lm.prices = Prices(model=PASS)
    generate(lm, method, TEXT, 60, clock=Clock(torch.device("cpu"), tick))
    found = lm.prices.host_of(name)
    assert (found.round_s, found.row_s, found.step_s) == (host.round_s, 0.0, 0.0)
    assert found.verify_pace == 1.0
    if name == "uniform":
        one = lm.prices.pass_s(1, 0, method.skip)
        assert found.draft_pace == pytest.approx(0.5 / one)
    generate(lm, method, TEXT, 60, clock=Clock(torch.device("cpu"), lambda: 2 * tick()))
    assert host.round_s < lm.prices.host_of(name).round_s < 2 * host.round_s


def timed(rows: int, passes: int, plan: DraftPlan | None, busy: float, beside_s: float) -> Timed:
    """By the prices of the next test, on a machine that makes passes so many times as long."""
    pass_s, step_s = busy * (16 + rows - 1), 0.0
    if plan is not None:
        step_s = busy * ((4 - len(plan.attention)) + 2 * (4 - len(plan.mlp)) + 4) + 3
    draft_s = passes * step_s
    return Timed(0, rows, passes, plan, draft_s, pass_s, draft_s + pass_s + beside_s)


@pytest.mark.parametrize("busy", [1, 3])
def test_rounds_move_the_prices_of_rounds(busy: float) -> None:
    """Two of the rounds were disturbed. On a busy machine passes take longer than they did alone;
    what else a draft step takes is its host's part.
    """
    curve = Curve(0, {1: 1.0, 17: 2.0})
    prices = Prices(model=Latencies(1.0, 0.0, 2.0, 4.0, 4), curves=[curve])
    rounds = [timed(n, 0, None, busy, 2.0 + n) for n in range(1, 18)]
    plans = [DraftPlan.of(4, skipped) for skipped in ((), (0, 2), (1, 3, 5))]
    rounds += [timed(5, 2, plan, busy, 7.0) for plan in plans * 3]
    rounds += [timed(9, 0, None, busy, 900.0), timed(5, 1, plans[0], busy, 900.0)]
    assert prices.observe("mine", rounds)
    host = prices.host_of("mine")
    assert (host.round_s, host.row_s, host.verify_pace) == pytest.approx((2, 1, busy))
    for one in rounds[:-2]:
        priced = prices.round_s(one.rows, 0, host, one.passes, one.plan)
        assert priced == pytest.approx(one.round_s, rel=0.08)
    assert not prices.observe("other", rounds[:3])


def test_a_busy_moment_makes_no_row_dear() -> None:
    def line(rows: list[int], seconds: list[float]) -> tuple[float, float]:
        pairs = zip(rows, seconds, strict=True)
        return host_line([Timed(0, n, 0, None, 0.0, 0.0, s) for n, s in pairs])

    rows, seconds = [1, 2, 3, 4] * 8, [1.0, 1.5, 2.0, 2.5] * 8
    seconds[5], seconds[19] = 50.0, 90.0
    assert line(rows, seconds) == (0.5, 0.5)
    assert line([4] * 16, [2.0] * 16) == (2.0, 0.0)
    assert line([2, 4] * 8, [1.0, 4.0] * 8) == (0.0, 0.75), "no line that takes less than no time"


def test_knapspec_counts_the_host_only_where_asked_to() -> None:
    def tpt(share: float, *words: str) -> list[float]:
        lm, method = random_lm("llama", "fused"), make_method("knapspec", *words)
        lm.prices = Prices(model=PASS, host={"knapspec": Host(share, 0.0, share)})
        generate(lm, method, TEXT, 24)
        return list(method.log["tpt"])

    plain = tpt(0.0)
    assert plain and tpt(1.0) == plain == tpt(0.0, "method.host=true")
    assert tpt(1.0, "method.host=true")[0] < plain[0] / 10


CPU = torch.device("cpu")


def test_a_round_is_from_its_draft_to_its_adaptation() -> None:
    now = iter(range(100))
    clock = Clock(CPU, lambda: float(next(now)))
    clock.start()
    for phase in ("prefill", "adapt", *("draft", "verify", "other", "adapt") * 2):
        clock.mark(phase)
    seconds = clock.stop()
    assert clock.round_s == [4.0, 4.0]
    assert sum(seconds.values()) == 11.0  # prefill, begin, two rounds, and the end


def test_the_rounds_of_a_text_are_its_decoding() -> None:
    lm, clock = random_lm("llama", "fused"), Clock(CPU)
    out = generate(lm, make_method("uniform"), [1, 2, 3], 24, clock=clock)
    assert len(clock.round_s) == len(out.rounds) > 3
    decode_s = sum(out.seconds.values()) - out.seconds["prefill"]
    assert 0 < sum(clock.round_s) <= decode_s
