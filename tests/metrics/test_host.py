"""What rounds take beside their passes: by the marks of a clock that counts one second each."""

import itertools

import pytest
import torch
from conftest import make_method, random_lm

from skipbench.decode.loop import generate
from skipbench.metrics.host import Host, host_of
from skipbench.metrics.prices import LOOP, Prices
from skipbench.profile.clock import Clock

TEXT = [3, 1, 4, 1, 5, 9, 2, 6]


@pytest.mark.parametrize(
    ("name", "seconds"),
    [
        ("vanilla", 4.0),  # proposing, reading, committing, adapting
        ("prompt-lookup", 4.0),
        ("uniform", 3.0),  # a draft that has passes is left out
    ],
)
def test_all_of_a_round_but_its_passes_counts(name: str, seconds: float) -> None:
    lm, tick = random_lm("llama", "fused"), itertools.count().__next__
    lm.prices = Prices(host={LOOP: Host(9.0, step_s=0.5)})
    assert lm.prices.host_of(name).round_s == 9.0
    generate(lm, make_method(name), TEXT, 60, clock=Clock(torch.device("cpu"), tick))
    assert lm.prices.host_of(name) == Host(seconds, 0.0, 0.5)
    generate(lm, make_method(name), TEXT, 60, clock=Clock(torch.device("cpu"), lambda: 2 * tick()))
    assert lm.prices.host[name] == Host(1.5 * seconds), "half way to what it took then"


def test_a_busy_moment_makes_no_row_dear() -> None:
    rows, seconds = [1, 2, 3, 4] * 8, [1.0, 1.5, 2.0, 2.5] * 8
    seconds[5], seconds[19] = 50.0, 90.0
    assert host_of(rows, seconds) == Host(0.5, 0.5)
    assert host_of(rows[:15], seconds[:15]) is None
    assert host_of([4] * 16, [2.0] * 16) == Host(2.0)


def test_knapspec_counts_the_host_only_where_asked_to() -> None:
    def tpt(share: float, *words: str) -> list[float]:
        lm, method = random_lm("llama", "fused"), make_method("knapspec", *words)
        lm.prices = Prices(host={"knapspec": Host(share, 0.0, share)})
        generate(lm, method, TEXT, 24)
        return list(method.log["tpt"])

    plain = tpt(0.0)
    assert plain and tpt(1.0) == plain == tpt(0.0, "method.host=true")
    assert tpt(1.0, "method.host=true")[0] < plain[0] / 10
