"""LEAP's zones, groups, reward and search; the values are what the published code gives."""

import pytest
import torch
from conftest import LAYERS, random_lm
from contract import PROMPT
from test_traces import tiny

from skipbench.config.compose import compose
from skipbench.contrib.methods.leap import Search, group, reward, signals, zones_of
from skipbench.decode.draft import State
from skipbench.decode.loop import generate
from skipbench.decode.sampling import Sampler
from skipbench.lm.rows import TokenRows

CHANGE = [0.9, 0.8, 0.5, 0.2, 0.1, 0.15, 0.6, 0.12, 0.1, 0.05, 0.11, 0.3, 0.08, 0.2, 0.4, 0.9]
GAIN = [0.1, 0.0, 0.05, 0.2, -0.1, 0.0, 0.3, 0.02, 0.03, 0.5, 0.1, 0.4, 0.6, 0.05, 0.9, 1.2]


@torch.inference_mode()
def test_signals_of_a_prompt() -> None:
    """Behind the last layer every token is accepted, so that gains add up to the tokens; changes
    are those of a plain pass.
    """
    lm = random_lm("llama", "fused")
    lm.prefill(PROMPT)
    change, gain = signals(State(lm, PROMPT, Sampler(), 8, frozenset()), 5)
    assert len(change) == len(gain) == LAYERS and sum(gain) == pytest.approx(5)
    states: list[torch.Tensor] = []
    lm.run(lm.embed(PROMPT), TokenRows.chain(0, len(PROMPT)), hidden_states=states)
    x = [state[-5:] for state in states[::2]]
    wanted = [float((x[i + 1] - x[i]).norm() / x[i].norm()) for i in range(LAYERS)]
    assert change == pytest.approx(wanted, rel=1e-3)


def test_zones_are_those_of_the_published_code() -> None:
    """Layer 6 alone changes much and layer 9 alone adds much: both join the middle."""
    zones = zones_of(CHANGE, GAIN, (3, 2), 70)
    assert "".join(map(str, zones)) == "1112222222333333"
    groups = group(zones, CHANGE, GAIN)
    assert groups == [[0, 1, 2], [3, 4], [5, 6], [7, 8], [9], [10, 11, 12, 13, 14, 15]]


@pytest.mark.parametrize(
    ("tokens", "passes", "kept", "value"),
    [
        (4, 3, 0.45, 0.9333),
        (3, 3, 0.4, 0.1),
        (0, 3, 0.45, -3.4),
        (7, 1, 0.5, 5.0),
        (5, 3, 0.6, 0.0),
        (5, 3, 0.3, 0.5),
        (8, 1, 0.9, -5.0),
    ],
)
def test_the_reward_is_that_of_the_published_code(
    tokens: int, passes: int, kept: float, value: float
) -> None:
    assert reward(tokens / passes, kept, 0.45) == pytest.approx(value, abs=1e-4)


def searched(harmful: int, iterations: int = 40) -> Search:
    """A search in which skipping one layer makes every round slow."""
    zones = [1] * 2 + [2] * 8 + [3] * 2
    search = Search([[0, 1], *([i] for i in range(2, 10)), [10, 11]], zones, 0.5, 3, 0)
    for _ in range(iterations):
        node, skipped = search.next()
        speedup = 0.5 if harmful in skipped else 1 + len(skipped) / 10
        search.credit(node, skipped, reward(speedup, search.kept(skipped), 0.5))
    return search


@pytest.mark.parametrize("harmful", [2, 5, 9])
def test_the_search_finds_a_set_without_the_layer_that_harms(harmful: int) -> None:
    """The best set lies within the band of ratios, and later candidates avoid what earlier ones
    were punished for.
    """
    search = searched(harmful)
    best = search.best()
    assert harmful not in best and set(best) <= set(range(2, 10))
    assert abs(search.kept(best) - 0.5) <= 0.05 + 1e-9
    tried = [harmful in skipped for _, skipped in searched(harmful, 200).tried]
    assert sum(tried[:50]) > 2 * sum(tried[-50:])


def test_the_search_ends_within_the_first_half_of_a_short_answer() -> None:
    lm, tokenizer = tiny()
    method = compose(["method=leap"]).method.factory()(layers=lm.layers)
    for prompt in ("Tom has 3 apples and buys 4.", "The dog had a red ball"):
        rounds = generate(lm, method, tokenizer(prompt)["input_ids"], 64).rounds
        assert 0 < len(method.log["reward"]) <= len(rounds) / 2


def test_a_best_set_outside_the_band_is_brought_into_it() -> None:
    zones = [1] * 3 + [2] * 12 + [3] * 2
    search = Search([[0, 1, 2], list(range(3, 15)), [15, 16]], zones, 0.45, 3, 0)
    search.credit((), (8,), 1.0)
    best = search.best()
    assert abs(search.kept(best) - 0.45) <= 0.05 and {7, 8, 9} <= set(best)
