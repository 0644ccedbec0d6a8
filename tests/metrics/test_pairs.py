"""Methods of a row beside each other, by paired ratios."""

import math

import numpy as np
import pytest

from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.pairs import standings


def row(rng: np.random.Generator, n: int, speeds: list[float]) -> list[dict[str, float]]:
    """Speedups by question: prompts differ a lot, loop at times, and methods a little on each."""
    prompts = rng.normal(0.3, 0.275, n) + math.log(4.5) * (rng.random(n) < 0.18)
    logs = [prompts + math.log(speed) + rng.normal(0, 0.089, n) for speed in speeds]
    return [dict(zip(map(str, range(n)), np.exp(each).tolist(), strict=True)) for each in logs]


def test_the_ratio_to_the_fastest_by_hand() -> None:
    fast = {"a": 4.0, "b": 1.0, "c": 2.0, "d": 2.0, "e": 3.0, "only here": 9.0}
    slow = {q: r / (4 if q == "b" else 1) for q, r in fast.items() if q != "only here"}
    (first, second) = standings([fast, slow])
    assert (first.ratio, first.interval, first.tied) == (1.0, None, True)
    assert second.ratio == pytest.approx(4**-0.2) and second.tied
    alone = standings([fast])[0]
    assert alone.ratio == 1 and alone.tied and not alone.faster


def test_prompts_that_differ_do_not_hide_which_method_is_faster() -> None:
    arms = row(np.random.default_rng(3), 14, [1.15, 1.0])
    (_, a), (_, b) = (paired_ratio_interval([*arm.values()]) for arm in arms)
    assert a is not None and b is not None and b[1] > a[0]  # marginal intervals overlap
    fast, slow = standings(arms)
    assert fast.tied and fast.faster and not slow.tied
    assert slow.interval is not None and slow.interval[0] < 1 / 1.15 < slow.interval[1] < 1


@pytest.mark.parametrize("n", [8, pytest.param(20, marks=pytest.mark.slow)])
def test_all_intervals_of_a_row_hold_at_once(n: int) -> None:
    """Whichever method comes out first; single intervals would do in three of four rows."""
    rng, runs, held, kept = np.random.default_rng(n), 60, 0, 0
    for _ in range(runs):
        found = standings(row(rng, n, [1.0] * 6))
        held += all(s.interval is None or s.interval[0] <= 1 <= s.interval[1] for s in found)
        kept += found[0].tied
    assert held / runs > 0.92 and kept / runs > 0.97


def test_vanilla_against_itself_is_a_bar_and_no_method() -> None:
    rng = np.random.default_rng(1)
    names = list(map(str, range(10)))
    noise, method = (
        dict(zip(names, np.exp(rng.normal(mean, 0.01, 10)).tolist(), strict=True))
        for mean in (0.05, 0.06)
    )
    assert standings([method])[0].faster
    of_noise, of_method = standings([noise, method], vanilla=[0])
    assert not of_method.faster and not of_noise.tied and of_method.ratio == 1


def test_nothing_is_told_of_few_questions_or_of_others() -> None:
    few = standings([{q: 2.0 for q in "abcd"}, {q: 1.0 for q in "abcd"}])
    assert [s.ratio for s in few] == [1, pytest.approx(0.5)]
    assert not any(s.tied or s.faster or s.interval for s in few)
    assert standings([{"a": 2.0}, {"b": 1.0}]) == standings([]) == []
    same = standings([{q: 2.0 for q in "abcde"}] * 2)
    assert [(s.ratio, s.tied, s.faster) for s in same] == [(1, True, True)] * 2
