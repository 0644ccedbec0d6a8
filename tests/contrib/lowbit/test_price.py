"""The stop rule `price`: a draft is as long as its price allows."""

from skipbench.contrib.lowbit.stop_by_price import IDLE, ByPrice
from skipbench.decode.draft import State


def lengths_by_price(row_prices: list[float], right: bool, rounds: int = 200) -> list[int]:
    """Draft lengths where a step costs half a pass, and all drafted tokens are right, or none."""
    rule, found = ByPrice(row_prices=row_prices), list[int]()
    rule.step, rule.prices = 0.5, rule.prices_at(State(None, [3]), rule.max_steps + 1)
    for _ in range(rounds):
        limit = rule.limit()
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
