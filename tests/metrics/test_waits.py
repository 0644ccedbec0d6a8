"""Time to the first token, time per output token: from the clock to the table."""

import pytest
import torch
from conftest import make_method, random_lm
from msgspec import structs

from skipbench.decode.loop import generate
from skipbench.metrics.summary import percentiles, summarise
from skipbench.profile.clock import Clock
from skipbench.report.values import waits
from skipbench.runs.measures import Percentiles
from skipbench.runs.record import Arm, Round, Seconds, Turn

CPU = torch.device("cpu")


def arm(round_s: list[float], emitted: list[int]) -> Arm:
    rounds = [Round(n - 1, n - 1, n - 1, n - 1, n) for n in emitted]
    seconds = Seconds(0.5, 0.0, sum(round_s), 0.0, 0.0)
    tokens = [1] * (1 + sum(emitted))
    return Arm(tokens, rounds, seconds, "length", round_s=round_s)


def turn(vanilla: Arm, method: Arm) -> Turn:
    arms = {"vanilla": vanilla, "method": structs.replace(method, lossless="identical")}
    return Turn(0, "0", "hash", 4, [*arms], arms)


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


def test_percentiles_weigh_tokens() -> None:
    assert percentiles([]) is None
    assert percentiles([(3.0, 1), (1.0, 50), (2.0, 49)]) == Percentiles(p50=1.0, p90=2.0, p99=2.0)
    vanilla = arm([0.1] * 9 + [0.4], [1] * 10)
    method = arm([0.3, 0.2, 0.2], [6, 2, 2])
    of = summarise([turn(vanilla, method)], "method", 4)
    assert of.ttft_s == of.baseline.ttft_s == Percentiles(p50=0.5, p90=0.5, p99=0.5)
    assert of.baseline.s_per_output_token == Percentiles(p50=0.1, p90=0.1, p99=0.4)
    times = structs.astuple(of.s_per_output_token)
    assert times == pytest.approx((0.05, 0.1, 0.1))
    assert waits(of, "s_per_output_token").text == "100 / 100 / 400 -> 50.0 / 100 / 100"
