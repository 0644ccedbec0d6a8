"""Baselines as they run on a kind of machine: sizes by the price of rows, drafts that go on."""

import pytest
from conftest import ALONE, make_method, random_lm, settings_of
from contract import check_greedy
from test_traces import tiny

from skipbench.config.compose import compose
from skipbench.decode.loop import generate
from skipbench.errors import SkipbenchError
from skipbench.methods.lookahead import SIZES, Lookahead
from skipbench.methods.recycling import CHILDREN, TEMPLATE

FLAT, STEEP = "[1,1,1,1,1,1]", "[1,2,4,8,16,32]"
WITHOUT_STEPS = [m for m in ALONE if m != "vanilla" and "stop" not in settings_of(m)]
"""Methods that draft copies, guesses and successors."""


def test_settings_follow_the_device_and_the_word() -> None:
    def settings(*words: str) -> tuple[object, ...]:
        ahead = compose(["method=lookahead", *words]).method.node
        recycling = compose(["method=recycling", *words]).method.node
        return ahead["window"], ahead["pool_from_prompt"], recycling["nodes"]

    paper, ours = (7, False, 80), (0, True, 0)
    assert settings() == settings("model=llama2-7b", "preset=cpu") == ours
    assert settings("preset=gpu") == settings("model=llama2-7b") == paper
    with pytest.raises(SkipbenchError, match=r"preset: .*'tpu'.*\[device, cpu, gpu\]"):
        compose(["method=lookahead", "preset=tpu"])
    with pytest.raises(SkipbenchError, match=r"level=3.*window=0 chooses"):
        make_method("lookahead", "preset=cpu", "method.level=3")


def test_the_first_nodes_of_the_tree_are_the_likeliest() -> None:
    """A part of the tree has depth; the whole of it is the published template."""
    paths: list[str] = []
    for parent, rank in TEMPLATE:
        paths.append((paths[parent] if parent >= 0 else "") + str(rank))
    assert len(set(paths)) == 80 == sum(CHILDREN.values())
    assert {path[:-1] for path in paths} == CHILDREN.keys()
    assert max(map(len, paths[:8])) > 2 and paths[0] == "0"


def test_rows_that_cost_little_buy_larger_drafts() -> None:
    lm = random_lm("llama", "fused")

    def rows(name: str, prices: str) -> float:
        method = make_method(name, "preset=cpu", f"method.row_prices={prices}")
        found: list[int] = []
        propose = method.propose

        def watched(state: object, budget: int) -> object:
            draft = propose(state, budget)  # type: ignore[arg-type]  # as it is called
            found.append(1 + len(draft.tokens))
            return draft

        method.propose = watched  # type: ignore[assignment,method-assign]  # of one test
        generate(lm, method, [3, 1, 4, 1, 5] * 3, 48)
        assert method.size in SIZES if isinstance(method, Lookahead) else name == "recycling"
        return sum(found) / len(found)

    for name in ("recycling", "lookahead"):
        assert rows(name, FLAT) > 1.5 * rows(name, STEEP)


@pytest.mark.parametrize("name", ["recycling", "lookahead"])
def test_the_output_is_vanillas_at_the_size_of_a_cpu(name: str) -> None:
    check_greedy(
        random_lm("llama", "fused"), make_method(name, "preset=cpu", f"method.row_prices={FLAT}")
    )


@pytest.mark.parametrize("name", WITHOUT_STEPS)
def test_no_method_gives_up_on_text_that_repeats_itself(name: str) -> None:
    """After a prompt that is unlike it; at the prices of a CPU."""
    lm, tokenizer = tiny()
    prices = "method.row_prices=[1,1.06,1.07,1.1,1.18,1.44]"
    words = [prices] if "row_prices" in settings_of(name) else []
    method = make_method(name, "preset=cpu", *words, layers=lm.layers)
    for prompt, tokens in (("Once there was a dog and", 16), ("Tom has 3 apples and buys 4.", 32)):
        rounds = generate(lm, method, tokenizer(prompt)["input_ids"], tokens).rounds
    assert sum(r.nodes for r in rounds[len(rounds) // 2 :]) > 0
