"""The scripts that measure: they compare equal work, count every pass, and time each kind as the
loop runs it.
"""

import time
from collections import Counter
from typing import Any

import pytest
from conftest import rest_slow
from torch import Tensor

from scripts.compare_peers import BASE, METHODS, Timing, compare, ours, theirs
from scripts.peak_memory import peak
from scripts.predicted import Bench, Kind, Watched, predicted_speedup
from skipbench.config.compose import compose
from skipbench.decode.loop import Generation
from skipbench.lm.model import LM
from skipbench.metrics.acceptance import _mean_step_cost
from skipbench.metrics.formulas import expected_speedup
from skipbench.runs.record import Arm, Sample, Seconds


@pytest.fixture(scope="module")
def bench() -> Bench:
    return Bench("tiny", "mini-stories", 1, 24, time.thread_time)


DRAFTS = [
    "self-sd",
    "self-sd method.precision=int8 method.kv_window=8",
    "swift",
    "knapspec",
    "del",
    "layerskip",
    "lookahead",
    "parallel",
    "prompt-lookup",
]


@pytest.mark.parametrize("name", rest_slow(DRAFTS, lambda n: n in ("self-sd", "lookahead")))
def test_every_pass_of_a_method_is_counted(
    bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    watched = Watched(bench.method(name))
    out = bench.decode(watched, bench.prompts[0])
    assert watched.rounds.total() == len(out.rounds)
    drafted = sum(n * kind.steps for kind, n in watched.rounds.items())
    looks_up = name in ("lookahead", "parallel", "prompt-lookup")
    assert drafted == (0 if looks_up else sum(r.steps for r in out.rounds))
    assert kept_attention(watched, out, bench.lm.layers) == sum(
        n
        * kind.steps
        * (bench.lm.layers - int(kind.plan.split()[0]) if kind.exit is None else kind.exit // 2)
        for kind, n in watched.rounds.items()
        if kind.steps
    )
    assert any(kind.exit is not None for kind in watched.rounds) == (name in ("del", "layerskip"))
    rows = sum(n * kind.rows for kind, n in watched.rounds.items())
    assert rows >= sum(r.nodes + 1 for r in out.rounds)
    # every draft step and every verification asks for logits once: a clock that counts passes
    heads = 0

    def head(hidden: Tensor, *how: Any) -> Tensor:
        nonlocal heads
        heads += 1
        return LM.head(bench.lm, hidden, *how)

    monkeypatch.setattr(bench.lm, "head", head)
    monkeypatch.setattr(bench, "now", lambda: heads)
    for kind, example in watched.example.items():
        assert bench.cost(40, kind, example) == (kind.steps, 1)


def test_predicted_speedup_counts_the_steps_of_a_round() -> None:
    # 4 steps of half a pass, a verification of 1.5 and adaptation of 0.5 make 4 passes for 3 tokens
    assert predicted_speedup(3, 4, 0.5, 1.5, 0.5) == pytest.approx(3 / 4)
    alpha = 0.8
    assert predicted_speedup(5, 4 / alpha, 0.5, 1.5) == pytest.approx(
        expected_speedup(5, alpha, 0.5, 1.5)
    )
    # rejected drafts cost, although nothing is accepted
    assert predicted_speedup(1, 2, 0.5, 1.0) == 0.5


def kept_attention(watched: Watched, out: Generation, layers: int) -> int:
    """Attention sub-layers that all draft steps ran, as a summary reads them from the record."""
    arm = Arm(out.tokens, out.rounds, Seconds(0, 0, 0, 0, 0), "length")
    text, trace = str(watched.skip), watched.trace()
    sample = Sample(0, "id", "hash", 1, [], arm, arm, "identical", skip=text, trace=trace)
    mean = _mean_step_cost([sample], layers, lambda skip: layers - len(skip.attention)) or 0.0
    return round(mean * sum(r.steps for r in out.rounds))


def test_a_method_is_predicted(bench: Bench) -> None:
    found = bench.measure("self-sd", 1)
    assert found["identical"] and found["ratio"] == pytest.approx(
        found["measured"] / found["predicted"], rel=0.02
    )
    cost = found["d"] * found["c"] + found["v"] + found["a"]
    assert found["predicted"] == pytest.approx(found["M"] / cost, rel=0.02)


def test_predictions_follow_from_costs(bench: Bench) -> None:
    """Rounds of known cost: 4 steps of half a pass and verifications of 2, and an adaptation of a
    quarter of vanilla's time.
    """
    watched = Watched(bench.method("self-sd"))
    out = bench.decode(watched, bench.prompts[0])
    kind = Kind(4, "6 6", 5, None, 0, False, 0, False)
    rounds = out.rounds
    emitted = sum(r.emitted for r in rounds)
    done = Counter({kind: len(rounds)})
    found = bench.figures(
        "x",
        [out],
        done,
        {kind: (4 * 0.5, 2.0)},
        [[emitted * 1.0, 8.0, emitted * 0.25, emitted * 0.5, emitted * 0.1]],
        True,
    )
    M = emitted / len(rounds)
    assert (found["d"], found["c"], found["v"]) == (4.0, 0.5, 2.0)
    # a quarter of vanilla's time, spread over the rounds
    assert found["a"] == pytest.approx(0.25 * M, abs=1e-3)
    assert found["predicted"] == pytest.approx(M / (4.0 + 0.25 * M), abs=1e-3)
    assert found["c in runs"] == pytest.approx(0.5 * M / 4, abs=1e-3)
    assert found["v in runs"] == pytest.approx(0.1 * M, abs=1e-3)
    assert found["measured"] == pytest.approx(emitted / 8, abs=1e-3)


@pytest.mark.slow
def test_peers_decode_the_same_tokens() -> None:
    overrides = ["model=tiny", "dataset=mini-stories", "dataset.max_new_tokens=10"]
    mine, (prompt, warmup), _ = ours(overrides, METHODS, 1)
    arms = theirs(compose(overrides).model, 10, 6, 4) | mine
    timings = compare(arms, [prompt], warmup, 1, time.thread_time)
    assert set(timings) == set(arms) and BASE in timings and len(timings) == 3 + len(METHODS)
    for name, timing in timings.items():
        assert timing.seconds[0] > 0 and timing.tokens == [10] and timing.same == [True], name


def test_a_ratio_to_a_peer_is_per_token_and_paired_per_prompt() -> None:
    slow = Timing([4.0, 1.0], [4, 1], [True, True])
    fast = Timing([1.0, 1.0], [2, 2], [True, True])  # half a second per token, against one
    assert fast.faster_than(slow)[0] == pytest.approx(2)


@pytest.mark.parametrize("name", ["vanilla", "clasp", "knapspec"])
def test_peaks_are_of_a_text_as_long_as_said(name: str) -> None:
    found = peak(name, ["model=planted", "model.shape=4x64", "model.dtype=float32"], 64, 24)
    assert found["peak"] >= found["before"] > found["cache"] > 0 and 1 <= found["rounds"] <= 23
    # a programme that did not run would need no memory
    assert (found["searched"] > 0) == (name != "vanilla")
