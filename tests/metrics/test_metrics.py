"""Formulas, intervals and summary against numbers worked out by hand."""

import json
import math
import random
from functools import partial
from typing import Any

import numpy as np
import pytest
from builders import with_arm
from msgspec import structs, to_builtins
from msgspec.structs import replace

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.metrics.acceptance import PassSeconds
from skipbench.metrics.formulas import expected_speedup, expected_tokens, tpt
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.prices import Latencies, Prices
from skipbench.metrics.summary import percentiles, summarise
from skipbench.report.values import waits
from skipbench.runs.measures import (
    ExpectedSpeedup,
    GroupScores,
    Lossless,
    Metrics,
    Percentiles,
    Skipped,
)
from skipbench.runs.record import Arm, Round, Seconds, Turn

PARTS = Latencies(0.001, 0.0, mlp_s=0.002, head_s=0.004, layers=4)
PASS_S = partial(Prices(model=PARTS).pass_s, 1, 300)


def arm(rounds: list[Round], seconds: Seconds) -> Arm:
    return Arm([7] * (1 + sum(r.emitted for r in rounds)), rounds, seconds, "length")


def vanilla(tokens: int, decode_s: float, prefill_s: float = 1.0) -> Arm:
    return arm([Round(0, 0, 0, 0, 1)] * tokens, Seconds(prefill_s, 0.0, decode_s, 0.0, 0.0))


def turn(base: Arm, own: Arm, score: tuple[float, ...] = (), **more: Any) -> Turn:
    """`score`: vanilla's and the method's; `more`: of the turn, or of the method's arm."""
    of_arm = {k: more.pop(k) for k in ("skip", "trace") if k in more}
    arms = {"vanilla": base, "method": replace(own, **{"lossless": "identical", **of_arm})}
    scored = zip(arms.items(), score or (None, None), strict=True)
    arms = {n: one if x is None else replace(one, score={"rouge": x}) for (n, one), x in scored}
    known = {"index": 0, "id": "id", "prompt_hash": "hash", "prompt_tokens": 8}
    return Turn(**known | more, order=[*arms], arms=arms)


def timed(seconds: list[float]) -> list[Turn]:
    """A run whose prompts take 4 s with vanilla."""
    rounds = [Round(2, 2, 1, 1, 2)] * 2
    arms = [arm(rounds, Seconds(1, s / 2, s / 2, 0, 0)) for s in seconds]
    return [turn(vanilla(4, 4.0), one, index=n, id=str(n)) for n, one in enumerate(arms)]


def two_turns() -> list[Turn]:
    # A: 8 tokens, vanilla 4 s, method 2 s. B: 4 tokens, vanilla 2 s, method 2 s.
    a = arm([Round(4, 4, 4, 4, 5), Round(4, 4, 2, 2, 3)], Seconds(1.0, 0.8, 0.8, 0.3, 0.1))
    rounds = [Round(2, 2, 1, 1, 2), Round(0, 0, 0, 0, 1), Round(2, 2, 0, 0, 1)]
    b = arm(rounds, Seconds(1.0, 0.4, 1.2, 0.3, 0.1))
    code, sums = {"groups": {"task": "code"}}, {"groups": {"task": "sums"}}
    return [
        turn(vanilla(8, 4.0), a, (0.5, 0.25), skip="attn:0-1;mlp:2", **code),
        turn(vanilla(4, 2.0), b, (1.0, 0.75), id="b", skip="attn:1", **sums),
    ]


def summary(turns: list[Turn], pass_s: PassSeconds | None = PASS_S) -> Metrics:
    return summarise(turns, "method", 4, pass_s)


def test_expected_tokens_is_the_geometric_sum() -> None:
    assert expected_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert expected_tokens(0.0, 3) == 1
    assert expected_tokens(1.0, 3) == 4
    assert expected_tokens(1 - 1e-9, 3) == pytest.approx(4, rel=1e-6)
    assert expected_tokens(0.25, 1.5) == pytest.approx((1 - 0.25**2.5) / 0.75)
    assert tpt(0.5, 2, draft_s=0.1, target_s=0.3) == pytest.approx(1.75 / 0.5)


def test_expected_speedup_by_hand_at_its_edges_and_of_swift_table_4() -> None:
    printed = {(4.34, 0.99, 0.55): 1.52, (3.13, 0.98, 0.55): 1.43, (8.21, 1.0, 0.55): 1.65}
    for given, speedup in printed.items():
        assert expected_speedup(*given) == pytest.approx(speedup, abs=0.005)
    # 3 / (2 * 0.5 / 0.5 + 1.5)
    assert expected_speedup(3, 0.5, c=0.5, v=1.5) == pytest.approx(3 / 3.5)
    assert expected_speedup(3, 0.5, c=0.5) == pytest.approx(3 / 3)  # one forward
    assert expected_speedup(1, 0.0, c=9, v=2) == 0.5
    assert expected_speedup(1, 0.9, c=9, v=2) == 0.5
    assert expected_speedup(1, 0.0, c=0.5) == 1
    assert expected_speedup(2, 0.0, c=0.5) == 0


def test_formulas_refuse_what_has_no_meaning() -> None:
    with pytest.raises(ValueError, match="alpha"):
        expected_tokens(1.1, 2)
    with pytest.raises(ValueError, match="take time"):
        tpt(0.5, 2, 0.0, 0.0)
    with pytest.raises(ValueError, match="M >= 1"):
        expected_speedup(0.5, 0.5, 0.5)


def test_interval_surrounds_the_geometric_mean() -> None:
    mean, interval = paired_ratio_interval([1.0, 2.0, 4.0, 2.0, 2.0])
    assert mean == pytest.approx(2)
    # Student's t with 4 degrees of freedom, at 99 %; the logarithms in units of log 2
    half = 4.60409 * math.sqrt(2 / 4 / 5)
    assert interval == pytest.approx((2 ** (1 - half), 2 ** (1 + half)), rel=1e-5)
    _, of_twenty = paired_ratio_interval([1.0, 4.0] * 10)
    half = 2.09302 * math.sqrt(20 / 19 / 20)  # from 20 ratios on at 95 %
    assert of_twenty == pytest.approx((2 ** (1 - half), 2 ** (1 + half)), rel=1e-5)


def covered(intervals: list[tuple[float, float] | None], truth: float) -> float:
    return sum(e is not None and e[0] <= truth <= e[1] for e in intervals) / len(intervals)


SIZES = [5, 8, 14, *(pytest.param(n, marks=pytest.mark.slow) for n in (20, 40))]


@pytest.mark.parametrize("n", SIZES)
def test_an_interval_covers_what_it_says(n: int) -> None:
    """Of prompts of which 18 % loop, at 4.5 times the speed; the others' ratios are log-normal."""
    rng, runs = np.random.default_rng(n), 2500
    logs = rng.normal(0.0, 0.275, (runs, n)) + math.log(4.5) * (rng.random((runs, n)) < 0.18)
    intervals = [paired_ratio_interval(row)[1] for row in np.exp(logs).tolist()]
    assert 0.92 < covered(intervals, 4.5**0.18) < 0.97


def test_interval_of_one_and_of_equal_ratios() -> None:
    assert paired_ratio_interval([1.5]) == (pytest.approx(1.5), None)
    mean, interval = paired_ratio_interval([1.5] * 5)
    assert (mean, *(interval or ())) == pytest.approx((1.5, 1.5, 1.5))
    assert paired_ratio_interval([1.0, 1.1, 1.2, 1.3])[1] is None
    assert paired_ratio_interval([1e-300, 1e300] * 3)[1] is None  # beyond every float
    for ratios in ([], [1.0, 0.0]):
        with pytest.raises(ValueError, match="positive"):
            paired_ratio_interval(ratios)


def test_acceptance_by_hand() -> None:
    found = summary(two_turns())
    assert (found.samples, found.rounds) == (2, 5)
    assert pytest.approx(12 / 5) == found.M  # 5 + 3 + 2 + 1 + 1 tokens in 5 rounds
    assert found.alpha == pytest.approx(7 / 12)  # 4 + 2 + 1 + 0 accepted of 4 + 4 + 2 + 2 steps
    assert found.alpha_macro == pytest.approx((6 / 8 + 1 / 4) / 2)
    assert found.alpha_cond == pytest.approx(7 / (7 + 3))  # rounds 2, 3 and 5 met a rejection
    assert found.tau == pytest.approx(11 / 4)  # the round without a draft is left out
    assert found.tau_draft == pytest.approx(7 / 4)
    # all chains: 7 of 12 nodes; a row more per round for the pending token
    assert found.accepted_share == pytest.approx(7 / 12) and found.rows == pytest.approx(17 / 5)
    assert found.draft_passes == found.draft_steps == pytest.approx(12 / 5)
    assert found.alpha_of_passes == found.alpha
    # Steps 1 and 2 exist in 4 rounds, steps 3 and 4 in 2 rounds.
    assert found.accepted_by_position == pytest.approx([3 / 4, 2 / 4, 1 / 2, 1 / 2])


def test_speed_by_hand() -> None:
    found = summary(two_turns())
    assert found.baseline.tokens_per_s == pytest.approx(12 / 6)
    assert found.tokens_per_s == pytest.approx(12 / 4)
    speedup = found.speedup
    assert speedup.paired == pytest.approx(math.sqrt(2 * 1))
    # with a prefill of 1 s: 5 s / 9 tokens over 3 s / 9, and 3 s / 5 over 3 s / 5
    assert speedup.by_question == pytest.approx({"id": 5 / 3, "b": 1})
    assert speedup.headline == (pytest.approx(math.sqrt(5 / 3)), None)
    expected = {"prefill": 2.0, "draft": 1.2, "verify": 2.0, "adapt": 0.6, "other": 0.2}
    assert found.seconds.by_phase == pytest.approx(expected)


def test_percentiles_weigh_tokens() -> None:
    assert percentiles([]) is None
    assert percentiles([(3.0, 1), (1.0, 50), (2.0, 49)]) == Percentiles(p50=1.0, p90=2.0, p99=2.0)
    base = replace(vanilla(10, 1.3, 0.5), round_s=[0.1] * 9 + [0.4])
    rounds = [Round(n - 1, n - 1, n - 1, n - 1, n) for n in (6, 2, 2)]
    own = replace(arm(rounds, Seconds(0.5, 0.0, 0.7, 0.0, 0.0)), round_s=[0.3, 0.2, 0.2])
    of = summary([turn(base, own)])
    assert of.ttft_s == of.baseline.ttft_s == Percentiles(p50=0.5, p90=0.5, p99=0.5)
    assert of.baseline.s_per_output_token == Percentiles(p50=0.1, p90=0.1, p99=0.4)
    assert structs.astuple(of.s_per_output_token) == pytest.approx((0.05, 0.1, 0.1))
    assert waits(of, "s_per_output_token").text == "100 / 100 / 400 -> 50.0 / 100 / 100"


def test_the_turns_of_a_conversation_are_one_question() -> None:
    """Its two turns have 5/3 and 5/2, another question 1; both arms have 5 tokens."""
    rounds = [Round(2, 2, 1, 1, 2)] * 2
    turns = [
        turn(vanilla(4, 4.0), arm(rounds, Seconds(1.0, s, 0.0, 0.0, 0.0)), id=name, question="q")
        for s, name in ((2.0, "q"), (1.0, "q/2"))
    ]
    other = turn(vanilla(4, 4.0), vanilla(4, 4.0), id="b")
    found = summary([*turns, other]).speedup
    assert found.by_question == pytest.approx({"q": math.sqrt(25 / 6), "b": 1})
    assert found.e2e == pytest.approx((25 / 6) ** 0.25)
    assert found.paired == pytest.approx(8**0.25)  # 2 and 4 while decoding
    ratios = [turns[0].ratio("vanilla", "method", prefill=prefill) for prefill in (True, False)]
    assert ratios == pytest.approx([5 / 3, 2])


def test_costs_by_hand() -> None:
    found = summary(two_turns())
    # 3 of 8 and 1 of 8 sub-layers skipped; attention 2 and 1, MLP 1 and 0.
    assert found.skipped == Skipped(attention=1.5, mlp=0.5, ratio=0.25)
    # c = (1.2 s / 12 steps) / 0.5 s = 0.2; v = (2.0 s / 5 rounds) / 0.5 s = 0.8; (M - 1) / alpha =
    # 1.4 * 12 / 7 = 2.4
    # Eq. 6 takes the sets by their draft steps: 8 of 12 steps run 5 of 8 sub-layers, 4 run 7 of 8
    eq6 = 2.4 / (2.4 * (8 * 5 / 8 + 4 * 7 / 8) / 12 + 1)
    assert found.expected_speedup.paper == pytest.approx(eq6)
    assert found.expected_speedup.measured_cost == pytest.approx(2.4 / (2.4 * 0.2 + 0.8))
    # draft 2 * 0.001 + 3 * 0.002 + 0.004 = 0.012 s; target 4 * 0.003 + 0.004 = 0.016 s
    assert PASS_S(DraftPlan.parse("attn:0-1;mlp:2", 4)) == pytest.approx(0.012)
    assert PASS_S(None) == pytest.approx(0.016)
    plan = DraftPlan.parse("int8;attn:0;mlp:2", 4)
    with pytest.raises(SkipbenchError, match="no price of int8"):
        PASS_S(plan)
    low = Latencies(5e-4 - 300 * 5e-7, 5e-7, 8e-4, 2e-3, 4)
    near = {"attention_s": 1e-3 - 300 * 1e-6, "attention_s_per_token": 1e-6}
    parts = structs.replace(PARTS, variants={"int8": low}, **near)
    both = partial(Prices(model=parts).pass_s, 1, 300)
    assert both(plan) == pytest.approx(3 * 5e-4 + 3 * 8e-4 + 2e-3)
    assert both(DraftPlan.parse("int8", 4)) == pytest.approx(0.0072)
    assert both(None) == pytest.approx(PASS_S(None))
    # alpha_cond = 0.7; 4 rounds with g = 3, and one without a draft; 8 steps of 2 + 6 + 4 = 12 ms,
    # 4 of 3 + 8 + 4 = 15 ms: 13 ms on average, 12 steps in 5 rounds
    assert found.M_eq1 == pytest.approx((4 * (1 + 0.7 + 0.7**2 + 0.7**3) + 1) / 5)
    assert found.tpt == pytest.approx(found.M_eq1 / (2.4 * 0.013 + 0.016))
    assert found.baseline.tpt == pytest.approx(1 / 0.016)


def test_eq_1_with_alpha_cond_gives_the_tokens_of_a_truncated_geometric_draft() -> None:
    # 8 rounds of 3 steps, every token accepted with probability 1/2: 4 end at the first token, 2 at
    # the second, 1 at the third
    accepted = [0] * 4 + [1] * 2 + [2] + [3]
    method = arm([Round(3, 3, n, n, n + 1) for n in accepted], Seconds(1.0, 0.3, 0.2, 0.0, 0.0))
    found = summary([turn(vanilla(15, 1.0), method)])
    assert (found.M, found.alpha, found.alpha_cond) == (15 / 8, 7 / 24, 0.5)
    assert found.M_eq1 == found.M


def test_the_sets_that_drafted_are_costed_not_the_last_one() -> None:
    # 4 steps with the full model (16 ms), then 2 with all attention skipped (12 ms); a third set
    # never drafts
    rounds = [Round(4, 4, 4, 4, 5), Round(0, 0, 0, 0, 1), Round(2, 2, 1, 1, 2)]
    trace = {"skip": [[0, ""], [2, "attn:0-3"], [3, "attn:0-3;mlp:0-3"]]}
    method = arm(rounds, Seconds(1.0, 0.3, 0.2, 0.0, 0.0))
    found = summary([turn(vanilla(8, 1.0), method, skip="attn:0-3;mlp:0-3", trace=trace)])
    alpha, draft_s = 5 / 6, (4 * 0.016 + 2 * 0.012) / 6
    assert found.alpha_cond == pytest.approx(alpha)
    tokens = (2 * (1 + alpha + alpha**2 + alpha**3) + 1) / 3
    assert found.tpt == pytest.approx(tokens / (2 * draft_s + 0.016))
    M, c = 8 / 3, (4 * 1 + 2 * 0.5) / 6
    assert found.expected_speedup.paper == pytest.approx(M / ((M - 1) * c / (5 / 6) + 1))
    assert found.skipped.ratio == 1  # at the end of the sample


def test_drafts_without_a_forward_pass_cost_none() -> None:
    # As prompt lookup records it: no skip set, a step per copied token.
    rounds = [Round(4, 4, 2, 2, 3), Round(0, 0, 0, 0, 1), Round(5, 5, 0, 0, 1)]
    method = arm(rounds, Seconds(1.0, 0.001, 0.9, 0.0, 0.0))
    found = summary([turn(vanilla(5, 1.5), method, trace={"ngram": [3, 0, 1]})])
    # alpha_cond = 2 / (2 + 2), g = 9 / 2 in two rounds; a round takes one verification
    tokens = (2 * (1 - 0.5**5.5) / 0.5 + 1) / 3
    assert found.tpt == pytest.approx(tokens / 0.016)
    assert found.expected_speedup.paper == pytest.approx(5 / 3)  # M
    assert (found.draft_passes, found.alpha_of_passes) == (0, None)
    assert found.accepted_share == pytest.approx(2 / 9)


def scored(turn: Turn, base: float | None, own: float | None) -> Turn:
    for name, value in (("vanilla", base), ("method", own)):
        turn = with_arm(turn, name, score={} if value is None else {"rouge": value})
    return turn


def test_scores_are_means_split_by_group_and_equal_only_if_those_of_every_turn_are() -> None:
    a, b = two_turns()
    found = summary([a, b])
    assert found.score.means == {"rouge": 0.5} and found.baseline.score.means == {"rouge": 0.75}
    assert found.score.by["task"]["code"] == GroupScores(means={"rouge": 0.25}, samples=1)
    assert found.baseline.score.by["task"]["code"].means == {"rouge": 0.5}
    same = [scored(a, 0.25, 0.25), scored(b, 0.75, 0.75)]
    swapped = summary([scored(a, 0.25, 0.75), scored(b, 0.75, 0.25)])
    bare, failed = scored(a, None, None), with_arm(a, lossless="failed")
    assert summary([*same, bare, failed]).score_equal is True
    assert swapped.score.means == swapped.baseline.score.means
    assert swapped.score_equal is False
    assert summary([scored(a, 1.0, None)]).score_equal is False  # an arm without a score
    assert summary([bare]).score_equal is summary([]).score_equal is None


def test_tree_rounds_accept_off_the_chain() -> None:
    # 3 steps, 9 nodes: the path leaves the chain of first choices after its first token.
    method = arm([Round(3, 9, 3, 1, 4)], Seconds(1.0, 0.3, 0.2, 0.0, 0.0))
    found = summary([turn(vanilla(4, 1.0), method, trace={"skip": [[0, ""]]})])
    assert found.alpha == found.alpha_cond == 1
    assert found.accepted_by_position == [1, 0, 0]
    # alpha = 1, g = 3, nothing skipped
    assert found.tpt == pytest.approx(4 / (3 * 0.016 + 0.016))


def test_vanilla_as_the_method_drafts_nothing() -> None:
    found = summary([turn(vanilla(4, 1.0), vanilla(4, 1.0), id=str(i)) for i in range(5)])
    assert found.M == 1
    assert found.speedup.paired == pytest.approx(1)
    assert found.speedup.ci95 == found.speedup.e2e_ci95 == pytest.approx([1, 1])
    for name in ("alpha", "alpha_macro", "alpha_cond", "tau", "tau_draft"):
        assert getattr(found, name) is None
    assert found.tpt == found.baseline.tpt == pytest.approx(1 / 0.016)  # Eq. 4 with g = 0
    assert found.expected_speedup == ExpectedSpeedup()


def test_nothing_accepted_has_an_alpha_but_no_expected_speedup() -> None:
    method = arm([Round(4, 4, 0, 0, 1)] * 4, Seconds(1.0, 1.0, 1.0, 0.0, 0.0))
    found = summary([turn(vanilla(4, 1.0), method)])
    assert (found.alpha, found.tau_draft, found.M) == (0, 0, 1)
    assert found.expected_speedup.paper is None
    assert found.speedup.paired == pytest.approx(0.5)
    assert found.speedup.ci95 is None


@pytest.mark.parametrize("pass_s", [None, PASS_S])
@pytest.mark.parametrize("of", [[], [turn(vanilla(0, 0.0), vanilla(0, 0.0))]])
def test_nothing_decoded_gives_none_not_nan(of: list[Turn], pass_s: PassSeconds | None) -> None:
    found = summary(of, pass_s)
    assert found.samples == len(of)
    for name in ("M", "tokens_per_s", "tpt"):
        assert getattr(found, name) is getattr(found.baseline, name) is None
    assert found.speedup.e2e is found.speedup.paired is found.speedup.ci95 is None
    json.dumps(to_builtins(found), allow_nan=False)


def test_kinds_of_samples_are_counted_and_failed_ones_nothing_else() -> None:
    a, b = two_turns()
    of = [a, with_arm(a, lossless="tie")]
    of += [with_arm(b, lossless=kind) for kind in ("diverged", "sampled")]
    of.append(with_arm(a, looped=True))
    found = summary(of)
    assert found.lossless == Lossless(identical=2, ties=1, diverged=1, sampled=1)
    assert found.looped == 1
    torn = Arm([], [], Seconds(9, 9, 9, 9, 9), "failed", "error")
    more = summary([*of, with_arm(turn(vanilla(8, 1.0), torn), lossless="failed")])
    assert more.lossless == replace(found.lossless, failed=1)
    assert replace(more, lossless=found.lossless) == found


def test_order_of_samples_does_not_matter() -> None:
    draw, turns = random.Random(3), two_turns()
    for index in range(10):
        seconds = Seconds(*(draw.random() for _ in range(5)))
        own = arm(turns[index % 2].arms["method"].rounds, seconds)
        turns.append(turn(vanilla(9, draw.random()), own, (0.1, 0.7), index=index, id=str(index)))
    assert summary(turns) == summary(draw.sample(turns, len(turns)))


def test_a_skip_set_of_another_model_is_refused() -> None:
    with pytest.raises(SkipbenchError, match="4 layers"):
        summary([with_arm(two_turns()[0], skip="attn:9")])
