"""Other programs decode the same work as ours, and a ratio to them is paired per prompt."""

import time

import pytest

from scripts.compare_peers import BASE, METHODS, Timing, compare, ours, theirs
from skipbench.config.compose import compose


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
