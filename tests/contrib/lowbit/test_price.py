"""The stop rule `price`: a draft is as long as its price allows."""

from typing import Any

from conftest import make_method, random_lm

from skipbench.bench.contract import check_contract
from skipbench.config.compose import compose
from skipbench.contrib.lowbit.stop_by_price import IDLE, ByPrice
from skipbench.decode.draft import State


def lengths_by_price(row_prices: list[float], right: bool, rounds: int = 200) -> list[int]:
    """Draft lengths where a step costs half a pass, and all drafted tokens are right, or none."""
    rule, found = ByPrice(row_prices=row_prices), list[int]()
    rule.step, rule.prices = 0.5, rule.prices_at(State(None, [3]), rule.max_steps + 1)
    for _ in range(rounds):
        limit = rule.begin_draft()
        steps = next((n for n in range(1, limit) if rule.ends(0.9)), limit)
        found.append(steps)
        rule.update(steps if right else 0, steps)
    return found


def test_a_draft_is_as_long_as_its_price_allows() -> None:
    flat, steep = [1, 1, 1, 1, 1, 1], [1, 1.6, 2.8, 5.2, 10, 20]
    assert lengths_by_price(flat, right=True)[-1] > 12
    assert set(lengths_by_price(steep, right=True)[20:]) == {0, 1}  # no token saves its own row
    wrong = lengths_by_price(flat, right=False)
    assert wrong[-IDLE:].count(1) == 1 and wrong[-IDLE:].count(0) == IDLE - 1  # and tries again


def test_latencies_that_knapspec_is_given_price_its_drafts_too() -> None:
    """An MLP of 1 s and attention of 3 s, whatever this machine measures."""
    given = "method.latency=[1,0,3]", "method.stop.row_prices=[1,1,1,1,1,1]"
    method: Any = make_method("knapspec", "stop@method.stop=price", *given)
    assert not method.needs_latency
    lm = random_lm("llama", "fused")
    lm.allocate(64)
    lm.prefill([3, 1, 4])
    state = State(lm, [3, 1, 4, 1], None, 8)
    method.begin(state)
    method.skip = method.plan([0, 2])  # two of four attentions
    method.propose(state, 4)
    assert method.stop.step == (2 * 3 + 4 * 1) / (4 * 3 + 4 * 1)


def test_the_contract_has_prices_of_a_variant() -> None:
    given = compose(["method=int8", "method.stop.row_prices=[1,1.1,1.2,1.4,1.8,2.6]"])
    assert not [*filter(all, check_contract(given.method.factory()))]
