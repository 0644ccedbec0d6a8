"""What drafts in 8 bits cost: their length by the stop rule `price`, and the memory of the copy."""

from pathlib import Path
from typing import Any

import pytest
from conftest import make_method, random_lm

from skipbench.bench import memory
from skipbench.bench.load import preflight
from skipbench.bench.memory import GIB, MARGIN, needed_bytes
from skipbench.config.compose import compose
from skipbench.contrib.lowbit.stop_by_price import IDLE, ByPrice
from skipbench.decode.draft import State
from skipbench.errors import SkipbenchError
from skipbench.runs.cell import Cell


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


def test_a_copy_in_8_bits_counts_in_the_memory_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A byte per weight, the head's among them, before weights are read; not without drafts."""
    words = ["model=llama2-7b", "limit=1", f"results={tmp_path}"]
    config = compose([*words, "method=int8", "dataset.max_new_tokens=64"])
    shape = config.model.architecture
    assert shape is not None
    exact = sum(needed_bytes(config.model, 64)) + MARGIN
    monkeypatch.setattr(memory, "free_bytes", lambda device: exact + shape.parameters - GIB)
    with pytest.raises(SkipbenchError, match=r"needs 19\.9 GiB"):
        preflight(Cell(config), held=True)
    monkeypatch.setattr(memory, "free_bytes", lambda device: exact + GIB)
    idle = compose(["method=auto", "method.explore=0"]).method.factory()
    assert not idle(layers=32).variant
