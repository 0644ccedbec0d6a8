"""The dynamic programmes of CLaSp and KnapSpec against plain computation."""

from typing import Any

import pytest
import torch
from conftest import EVERY_ENGINE, make_method, random_lm, random_model, rest_slow
from contract import knapsack_plain

from scripts.brute_force import states_of
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.decode.trial_passes import parallel_branches
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.clasp import choose_layers
from skipbench.methods.knapspec import knapsack

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
ONE_BY_ONE = 1e-5


class Plain:
    """A unit's output for one alternative after the other, each as a whole sequence from its first
    token and without a cache.
    """

    def __init__(self, family: str, x: torch.Tensor, size: int, recent: int) -> None:
        self.lm = LM(random_model(family), "reference")
        self.lm.allocate(64)
        self.x, self.size, self.recent = x, size, recent

    def __call__(self, unit: int, states: torch.Tensor) -> torch.Tensor:
        """states [n, recent, D]"""
        found, first = [], self.size * unit
        for branch in states:
            whole = torch.cat((self.x[first, : -self.recent], branch))
            rows = TokenRows.chain(0, len(whole))
            out = self.lm.run(whole, rows, first=first, last=first + self.size)
            found.append(out[-self.recent :])
        return torch.stack(found)


@pytest.mark.parametrize("engine", EVERY_ENGINE)
@pytest.mark.parametrize("family", rest_slow(["llama", "qwen3", "mistral"], "mistral".__eq__))
@pytest.mark.parametrize(("size", "recent"), [(2, 1), (1, 1), (1, 5)])
@torch.inference_mode()
def test_branches_in_one_pass_are_those_one_by_one(
    engine: str, family: str, size: int, recent: int
) -> None:
    lm = random_lm(family, engine)
    x = states_of(lm, TOKENS)
    together, plain = parallel_branches(lm, recent, 6, size), Plain(family, x, size, recent)
    branches = x[:6, -recent:] + 0.0
    for unit in range(lm.sublayers // size):
        found, wanted = together(unit, branches), plain(unit, branches)
        near = ONE_BY_ONE * wanted.abs().max().item()
        torch.testing.assert_close(found, wanted, rtol=ONE_BY_ONE, atol=near)
        branches = wanted


@pytest.mark.parametrize("family", rest_slow(["llama", "mistral"], "llama".__eq__))
@torch.inference_mode()
def test_the_programmes_choose_as_one_by_one(family: str) -> None:
    lm = random_lm(family, "fused")
    for cut in range(6, len(TOKENS) + 1):
        x = states_of(lm, TOKENS[:cut])
        for size, skipped in ((2, 2), (1, 3)):
            run, plain = parallel_branches(lm, 1, skipped, size), Plain(family, x, size, 1)
            ours = choose_layers(
                x[::size, -1], lambda u, g, run=run: run(u, g[:, None])[:, 0], skipped
            )  # type: ignore[misc]  # mypy cannot infer a lambda with a default
            theirs = choose_layers(
                x[::size, -1], lambda u, g, run=plain: run(u, g[:, None])[:, 0], skipped
            )  # type: ignore[misc]  # as above
            assert ours[0] == theirs[0]
        weights, free = [2, 1] * lm.layers, [True] * lm.sublayers
        run, plain = parallel_branches(lm, 4, 6), Plain(family, x, 1, 4)
        ours, theirs = (knapsack(x[:, -4:], r, weights, 6, 0.0, free) for r in (run, plain))
        assert ours[:2] == theirs[:2]
        torch.testing.assert_close(ours[3], theirs[3], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("unit", ["layer", "sublayer"])
def test_clasp_one_by_one_finds_the_sets_of_all_in_parallel(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, found = random_lm("llama", "fused"), {}
    run = lm.run
    for programme in ("parallel", "sequential"):
        options = [f"method.programme={programme}", f"method.unit={unit}", "method.interval=2"]
        method = make_method("clasp", *options, layers=lm.layers)
        rows = list[int]()  # of every pass over one unit

        def counted(states: torch.Tensor, *given: Any, rows: Any = rows, **more: Any) -> Any:
            rows += [len(states)] if "last" in more else []
            return run(states, *given, **more)

        monkeypatch.setattr(lm, "run", counted)
        answer = generate(lm, method, TOKENS, 24)
        log = method.trace()
        found[programme] = log["skip"], answer.rounds
        assert len(log["optimised"]) > 3 and (max(rows) == 1) == (programme != "parallel")
    assert found["parallel"] == found["sequential"]


def turned(seed: int, *rows: int) -> tuple[torch.Tensor, Any]:
    """States [11, *rows, 16] behind 10 layers that turn them at random, and those layers."""
    torch.manual_seed(seed)
    layers = 0.2 * torch.randn(10, 16, 16, dtype=torch.float64)
    x = [torch.randn(*rows, 16, dtype=torch.float64)]

    def run(i: int, states: torch.Tensor) -> torch.Tensor:
        return states + (states @ layers[i]).tanh()

    for i in range(10):
        x.append(run(i, x[-1]))
    return torch.stack(x), run


@pytest.mark.parametrize("tau", [-1.0, 0.7, 1.1])
@pytest.mark.parametrize(
    ("weights", "budget"), [([1, 1], 4), ([3, 1], 9), ([1, 2], 24), ([2, 1], 0)]
)
def test_the_knapsack_is_algorithm_1(weights: list[int], budget: int, tau: float) -> None:
    """All branches at once against one by one, over layers that turn states at random."""
    x, run = turned(budget, 3)
    free = [i not in (0, 9) for i in range(10)]
    given = (x, run, weights * 5, budget, tau, free)
    one_by_one, together = knapsack_plain(*given), knapsack(*given)
    assert one_by_one[:2] == together[:2]
    assert len(one_by_one[0]) > 1 or tau > 1 or budget == 0
    assert one_by_one[2] == pytest.approx(together[2], abs=1e-5)
    torch.testing.assert_close(one_by_one[3], together[3])


@pytest.mark.parametrize("skipped", [1, 4, 7, 10])
def test_clasp_runs_only_cells_that_can_be_reached(skipped: int) -> None:
    """Algorithm 1 cell by cell, over layers that turn states at random: the same set, from fewer
    forward passes.
    """
    x, turn = turned(skipped)
    ran = 0

    def run(i: int, states: torch.Tensor) -> torch.Tensor:
        nonlocal ran
        ran += len(states)
        return turn(i, states)

    found = {(0, 0): (x[0], list[int]())}
    for i in range(1, 11):
        found[i, 0] = x[i], []
        for j in range(1, min(i, skipped) + 1):
            state, chosen = found[i - 1, j - 1]
            found[i, j] = state, [*chosen, i - 1]
            if j < i:
                state, chosen = run(i - 1, found[i - 1, j][0][None])[0], found[i - 1, j][1]
                here = torch.stack((state, found[i, j][0]))
                execute, skip = torch.cosine_similarity(here, x[i], dim=-1)
                found[i, j] = (state, chosen) if execute > skip else found[i, j]
    every, ran = ran, 0
    ours = choose_layers(x, run, skipped)
    assert ours[0] == found[10, skipped][1] and len(ours[0]) == skipped
    torch.testing.assert_close(ours[3], found[10, skipped][0])
    assert ran == skipped * (10 - skipped) and (ran < every or skipped in (1, 10))


def test_knapspec_from_the_full_model_drafts_a_prompt_as_if_it_were_the_first() -> None:
    lm = random_lm("llama", "fused")
    options = [
        "method.start=full",
        "method.use_gamma=true",
        "method.lengths=[1,3]",
        "method.stop.threshold=0",
    ]

    def steps(method: Method, first: int) -> list[int]:
        return [r.steps for r in generate(lm, method, list(range(first, first + 12)), 48).rounds]

    alone, second = (make_method("knapspec", *options, layers=lm.layers) for _ in range(2))
    before = steps(second, 20)
    assert before[0] > 3 >= max(before[-3:])  # a programme lowered the draft length
    assert steps(second, 3) == steps(alone, 3)
