"""Formulas, bootstrap and summary against numbers worked out by hand."""

import json
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from skipbench.errors import SkipbenchError
from skipbench.metrics.bootstrap import paired_ratio_interval
from skipbench.metrics.formulas import (
    expected_speedup_measured,
    expected_speedup_paper,
    expected_tokens,
    predicted_speedup,
    tpt,
)
from skipbench.metrics.summary import Latency, summarise
from skipbench.runs.record import Arm, Round, Sample, Seconds

LATENCY = Latency(attention_s=0.001, mlp_s=0.002, head_s=0.004, layers=4, context_tokens=64)


def arm(rounds: list[Round], seconds: Seconds) -> Arm:
    return Arm([7] * (1 + sum(r.emitted for r in rounds)), rounds, seconds, "length")


def vanilla(tokens: int, decode_s: float, prefill_s: float = 1.0) -> Arm:
    return arm([Round(0, 0, 0, 0, 1)] * tokens, Seconds(prefill_s, 0.0, decode_s, 0.0, 0.0))


def sample(base: Arm, method: Arm, **more: Any) -> Sample:
    return Sample(0, "id", "hash", 8, ["vanilla", "method"], base, method, **{"lossless": "identical", **more})


def two_samples() -> list[Sample]:
    # A: 8 tokens, vanilla 4 s, method 2 s. B: 4 tokens, vanilla 2 s, method 2 s.
    a = arm([Round(4, 4, 4, 4, 5), Round(4, 4, 2, 2, 3)], Seconds(1.0, 0.8, 0.8, 0.3, 0.1))
    b = arm([Round(2, 2, 1, 1, 2), Round(0, 0, 0, 0, 1), Round(2, 2, 0, 0, 1)], Seconds(1.0, 0.4, 1.2, 0.3, 0.1))
    return [
        sample(vanilla(8, 4.0), a, skip="attn:0-1;mlp:2", groups={"body": "unseen"}, score=scores(0.5, 0.25)),
        sample(vanilla(4, 2.0), b, skip="attn:1", groups={"body": "seen"}, score=scores(1.0, 0.75)),
    ]


def scores(base: float, method: float) -> dict[str, dict[str, float]]:
    return {"vanilla": {"rouge": base}, "method": {"rouge": method}}


def summary(samples: list[Sample], latency: Latency | None = LATENCY) -> dict[str, Any]:
    return summarise(samples, layers=4, latency=latency, roofline_s_per_token=0.2, peak_memory_bytes=1024)


def test_expected_tokens_is_the_geometric_sum() -> None:
    assert expected_tokens(0.5, 2) == pytest.approx(1 + 0.5 + 0.25)
    assert expected_tokens(0.0, 3) == 1
    assert expected_tokens(1.0, 3) == 4
    assert expected_tokens(1 - 1e-9, 3) == pytest.approx(4, rel=1e-6)
    assert expected_tokens(0.25, 1.5) == pytest.approx((1 - 0.25**2.5) / 0.75)


def test_predicted_speedup_counts_the_steps_of_a_round() -> None:
    # 4 steps of half a pass, a verification of 1.5 and adaptation of 0.5 make 4 passes for 3 tokens
    assert predicted_speedup(3, 4, 0.5, 1.5, 0.5) == pytest.approx(3 / 4)
    alpha = 0.8
    assert predicted_speedup(5, 4 / alpha, 0.5, 1.5) == pytest.approx(expected_speedup_measured(5, alpha, 0.5, 1.5))
    assert predicted_speedup(1, 2, 0.5, 1.0) == 0.5  # rejected drafts cost, although nothing is accepted
    for bad in ((0.9, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1), (1, 1, 1, 0)):
        with pytest.raises(ValueError, match="need M"):
            predicted_speedup(*bad)


def test_tpt_divides_by_the_time_of_a_round() -> None:
    assert tpt(0.5, 2, draft_s=0.1, target_s=0.3) == pytest.approx(1.75 / 0.5)


@pytest.mark.parametrize(
    ("M", "alpha", "c", "printed"),
    [(4.34, 0.99, 0.55, 1.52), (3.13, 0.98, 0.55, 1.43), (8.21, 1.0, 0.55, 1.65), (3.85, 0.99, 0.5, 1.58)],
)
def test_expected_speedup_is_that_of_swift_table_4(M: float, alpha: float, c: float, printed: float) -> None:
    assert expected_speedup_paper(M, alpha, c) == pytest.approx(printed, abs=0.005)


def test_expected_speedup_with_a_measured_verification() -> None:
    # 3 / (2 * 0.5 / 0.5 + 1.5)
    assert expected_speedup_measured(3, 0.5, c=0.5, v=1.5) == pytest.approx(3 / 3.5)
    assert expected_speedup_measured(3, 0.5, c=0.5, v=1.0) == expected_speedup_paper(3, 0.5, c=0.5)


def test_expected_speedup_at_its_edges() -> None:
    assert expected_speedup_measured(1, 0.0, c=9, v=2) == 0.5
    assert expected_speedup_measured(1, 0.9, c=9, v=2) == 0.5
    assert expected_speedup_paper(1, 0.0, c=0.5) == 1
    assert expected_speedup_paper(2, 0.0, c=0.5) == 0


def test_formulas_refuse_what_has_no_meaning() -> None:
    with pytest.raises(ValueError, match="alpha"):
        expected_tokens(1.1, 2)
    with pytest.raises(ValueError, match="take time"):
        tpt(0.5, 2, 0.0, 0.0)
    with pytest.raises(ValueError, match="M >= 1"):
        expected_speedup_paper(0.5, 0.5, 0.5)


def test_interval_surrounds_the_geometric_mean() -> None:
    mean, interval = paired_ratio_interval([1.0, 2.0, 4.0, 2.0])
    assert mean == pytest.approx(2)
    assert interval is not None
    assert 1 <= interval[0] < 2 < interval[1] <= 4


def test_interval_of_one_and_of_equal_ratios() -> None:
    mean, interval = paired_ratio_interval([1.5])
    assert mean == pytest.approx(1.5)
    assert interval is None
    mean, interval = paired_ratio_interval([1.5] * 3)
    assert (mean, *(interval or ())) == pytest.approx((1.5, 1.5, 1.5))
    with pytest.raises(ValueError, match="positive"):
        paired_ratio_interval([])
    with pytest.raises(ValueError, match="positive"):
        paired_ratio_interval([1.0, 0.0])


def test_acceptance_by_hand() -> None:
    found = summary(two_samples())
    assert (found["samples"], found["rounds"]) == (2, 5)
    assert found["M"] == pytest.approx(12 / 5)  # 5 + 3 + 2 + 1 + 1 tokens in 5 rounds
    assert found["alpha"] == pytest.approx(7 / 12)  # 4 + 2 + 1 + 0 accepted of 4 + 4 + 2 + 2 steps
    assert found["alpha_macro"] == pytest.approx((6 / 8 + 1 / 4) / 2)
    assert found["tau"] == pytest.approx(11 / 4)  # the round without a draft is left out
    assert found["tau_draft"] == pytest.approx(7 / 4)
    # Steps 1 and 2 exist in 4 rounds, steps 3 and 4 in 2 rounds.
    assert found["accepted_by_position"] == pytest.approx([3 / 4, 2 / 4, 1 / 2, 1 / 2])


def test_speed_by_hand() -> None:
    found = summary(two_samples())
    assert found["tokens_per_s_vanilla"] == pytest.approx(12 / 6)
    assert found["tokens_per_s"] == pytest.approx(12 / 4)
    speedup = found["speedup"]
    assert speedup["micro"] == pytest.approx(1.5)
    assert speedup["macro"] == pytest.approx(((4 + 2) / 2) / 2)  # tokens/s: method 4 and 2, vanilla 2 and 2
    assert speedup["s_per_token"] == pytest.approx(0.5 / ((0.25 + 0.5) / 2))
    assert speedup["paired"] == pytest.approx(math.sqrt(2 * 1))
    low, high = speedup["ci95"]
    assert 1 - 1e-9 <= low <= speedup["paired"] <= high <= 2 + 1e-9
    assert speedup["end_to_end"] == pytest.approx((14 / 6) / (14 / 8))  # 9 + 5 tokens; 2 s of prefill in each arm
    assert found["roofline_fraction_vanilla"] == pytest.approx(0.2 / 0.5)
    expected = {"prefill": 2.0, "draft": 1.2, "verify": 2.0, "adapt": 0.6, "other": 0.2}
    assert found["seconds"] == pytest.approx(expected)


def test_costs_by_hand() -> None:
    found = summary(two_samples())
    # 3 of 8 and 1 of 8 sub-layers skipped; attention 2 and 1, MLP 1 and 0.
    assert found["skipped"] == {"attention": 1.5, "mlp": 0.5, "ratio": 0.25}
    # c = (1.2 s / 12 steps) / 0.5 s = 0.2; v = (2.0 s / 5 rounds) / 0.5 s = 0.8; (M - 1) / alpha = 1.4 * 12 / 7 = 2.4
    assert found["expected_speedup"]["paper"] == pytest.approx(2.4 / (2.4 * 0.75 + 1))
    assert found["expected_speedup"]["measured_cost"] == pytest.approx(2.4 / (2.4 * 0.2 + 0.8))
    # g = 12 / 4 = 3; draft 2.5 * 0.001 + 3.5 * 0.002 + 0.004 = 0.0135 s; target 4 * 0.003 + 0.004 = 0.016 s
    assert LATENCY.draft_s(1.5, 0.5) == pytest.approx(0.0135)
    assert LATENCY.target_s() == pytest.approx(0.016)
    alpha = 7 / 12
    assert found["tpt"] == pytest.approx((1 + alpha + alpha**2 + alpha**3) / (3 * 0.0135 + 0.016))


def test_scores_are_means_and_split_by_group() -> None:
    found = summary(two_samples())["score"]
    assert found["vanilla"] == {"rouge": 0.75}
    assert found["method"] == {"rouge": 0.5}
    assert found["by"]["body"]["unseen"] == {"vanilla": {"rouge": 0.5}, "method": {"rouge": 0.25}, "samples": 1}


def test_scores_are_equal_only_if_those_of_every_sample_are() -> None:
    a, b = two_samples()
    same = [replace(s, score=scores(x, x)) for s, x in ((a, 0.25), (b, 0.75))]
    swapped = [replace(a, score=scores(0.25, 0.75)), replace(b, score=scores(0.75, 0.25))]
    bare, failed = replace(a, score={}), replace(a, lossless="failed")
    assert summary([*same, bare, failed])["score_equal"] is True
    assert summary(swapped)["score"]["vanilla"] == summary(swapped)["score"]["method"]
    assert summary(swapped)["score_equal"] is False
    assert summary([replace(a, score={"vanilla": {"exact": 1.0}})])["score_equal"] is False  # an arm without a score
    assert summary([bare])["score_equal"] is summary([])["score_equal"] is None


def test_tree_rounds_accept_off_the_chain() -> None:
    # 3 steps, 9 nodes: the path leaves the chain of first choices after its first token.
    method = arm([Round(3, 9, 3, 1, 4)], Seconds(1.0, 0.3, 0.2, 0.0, 0.0))
    found = summary([sample(vanilla(4, 1.0), method)])
    assert found["alpha"] == 1
    assert found["alpha_chain"] == pytest.approx(1 / 3)
    assert found["accepted_by_position"] == [1, 0, 0]
    assert found["tpt"] == pytest.approx(4 / (3 * 0.016 + 0.016))  # alpha = 1, g = 3, nothing skipped


def test_vanilla_as_the_method_drafts_nothing() -> None:
    found = summary([sample(vanilla(4, 1.0), vanilla(4, 1.0)) for _ in range(3)])
    assert found["M"] == 1
    assert found["speedup"]["paired"] == pytest.approx(1)
    assert found["speedup"]["ci95"] == pytest.approx([1, 1])
    for name in ("alpha", "alpha_macro", "alpha_chain", "tau", "tau_draft", "tpt"):
        assert found[name] is None
    assert found["expected_speedup"] == {"paper": None, "measured_cost": None}


def test_nothing_accepted_has_an_alpha_but_no_expected_speedup() -> None:
    method = arm([Round(4, 4, 0, 0, 1)] * 4, Seconds(1.0, 1.0, 1.0, 0.0, 0.0))
    found = summary([sample(vanilla(4, 1.0), method)])
    assert (found["alpha"], found["tau_draft"], found["M"]) == (0, 0, 1)
    assert found["expected_speedup"]["paper"] is None
    assert found["speedup"]["paired"] == pytest.approx(0.5)
    assert found["speedup"]["ci95"] is None


def test_failed_samples_are_only_counted() -> None:
    broken = sample(
        vanilla(8, 1.0), Arm([], [], Seconds(9.0, 9.0, 9.0, 9.0, 9.0), "failed", "error"), lossless="failed"
    )
    without, found = summary(two_samples()), summary([*two_samples(), broken])
    assert found["lossless"] == {"identical": 2, "ties": 0, "diverged": 0, "unchecked": 0, "sampled": 0, "failed": 1}
    assert {**found, "lossless": None} == {**without, "lossless": None}


@pytest.mark.parametrize("of", [[], [sample(vanilla(0, 0.0), vanilla(0, 0.0))]])
def test_nothing_decoded_gives_none_not_nan(of: list[Sample]) -> None:
    found = summary(of, latency=None)
    assert found["samples"] == len(of)
    for name in ("M", "tokens_per_s", "tokens_per_s_vanilla", "roofline_fraction_vanilla", "tpt"):
        assert found[name] is None
    assert found["speedup"]["micro"] is found["speedup"]["paired"] is found["speedup"]["ci95"] is None
    json.dumps(found, allow_nan=False)


def test_kinds_of_samples_are_counted() -> None:
    a, b = two_samples()
    of = [a, replace(a, lossless="tie"), replace(b, lossless="diverged"), replace(b, lossless="sampled")]
    of.append(replace(a, method=replace(a.method, looped=True)))
    found = summary(of)
    assert found["lossless"] == {"identical": 2, "ties": 1, "diverged": 1, "unchecked": 0, "sampled": 1, "failed": 0}
    assert found["looped"] == 1


def test_order_of_samples_does_not_matter() -> None:
    draw = random.Random(3)
    samples = []
    for _ in range(12):
        steps = draw.randint(1, 6)
        accepted = draw.randint(0, steps)
        seconds = Seconds(*(draw.random() for _ in range(5)))
        rounds = [Round(steps, steps, accepted, accepted, accepted + 1)] * draw.randint(1, 5)
        base = vanilla(draw.randint(1, 20), draw.random() + 0.1)
        samples.append(sample(base, arm(rounds, seconds), skip=f"attn:{draw.randint(0, 3)}", score=scores(0.1, 0.7)))
    shuffled = draw.sample(samples, len(samples))
    assert summary(samples) == summary(shuffled)


def test_a_skip_set_of_another_model_is_refused() -> None:
    with pytest.raises(SkipbenchError, match="4 layers"):
        summary([replace(two_samples()[0], skip="attn:9")])
