"""The dynamic programmes of CLaSp and KnapSpec: against plain computation, brute force, and a model
whose best set is known.
"""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import EVERY_ENGINE, make_method, random_lm, random_model, rest_slow
from contract import knapsack_plain
from recorded import NEEDS_RECORDS, checkpoint

from scripts.brute_force import cosines, main, one_case, states_of, subsets
from skipbench.cli.main import dispatch
from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.decode.trial_passes import parallel_branches
from skipbench.draft_plan import DraftPlan
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
        self.lm, self.x, self.size, self.recent = (
            LM(random_model(family), "reference"),
            x,
            size,
            recent,
        )
        self.lm.allocate(64)

    def __call__(self, unit: int, states: torch.Tensor) -> torch.Tensor:
        """states [n, recent, D]"""
        found = []
        for branch in states:
            whole = torch.cat((self.x[self.size * unit, : -self.recent], branch))
            token_rows = TokenRows.chain(0, len(whole))
            found.append(
                self.lm.run(whole, token_rows, first=self.size * unit, last=self.size * (unit + 1))[
                    -self.recent :
                ]
            )
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
        wanted = plain(unit, branches)
        torch.testing.assert_close(
            together(unit, branches),
            wanted,
            rtol=ONE_BY_ONE,
            atol=ONE_BY_ONE * wanted.abs().max().item(),
        )
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


@pytest.mark.parametrize("tau", [-1.0, 0.7, 1.1])
@pytest.mark.parametrize(
    ("weights", "budget"), [([1, 1], 4), ([3, 1], 9), ([1, 2], 24), ([2, 1], 0)]
)
def test_the_knapsack_is_algorithm_1(weights: list[int], budget: int, tau: float) -> None:
    """All branches at once against one by one, over layers that turn states at random."""
    generator = torch.Generator().manual_seed(budget)
    layers = [
        0.2 * torch.randn(16, 16, generator=generator, dtype=torch.float64) for _ in range(10)
    ]
    x = [torch.randn(3, 16, generator=generator, dtype=torch.float64)]
    for layer in layers:
        x.append(x[-1] + (x[-1] @ layer).tanh())

    def run(i: int, states: torch.Tensor) -> torch.Tensor:
        return states + (states @ layers[i]).tanh()

    free = [i not in (0, 9) for i in range(10)]
    given = (torch.stack(x), run, weights * 5, budget, tau, free)
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
    generator = torch.Generator().manual_seed(skipped)
    layers = [torch.randn(16, 16, generator=generator) / 4 for _ in range(10)]
    x = [torch.randn(16, generator=generator)]
    for layer in layers:
        x.append(x[-1] + (x[-1] @ layer).tanh())
    ran = 0

    def run(i: int, states: torch.Tensor) -> torch.Tensor:
        nonlocal ran
        ran += len(states)
        return states + (states @ layers[i]).tanh()

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
    ours = choose_layers(torch.stack(x), run, skipped)
    assert ours[0] == found[10, skipped][1] and len(ours[0]) == skipped
    torch.testing.assert_close(ours[3], found[10, skipped][0])
    assert ran == skipped * (10 - skipped) and (ran < every or skipped in (1, 10))


@torch.inference_mode()
def test_brute_force_finds_little_better() -> None:
    """scripts/brute_force.py gives the figures over many cases; a programme that ignores its states
    would end near random.
    """
    rng, clasp, knap = random.Random(0), [], []
    for family in ("llama", "qwen2", "qwen3"):
        lm = random_lm(family, "fused")
        for _ in range(4):
            one, many = one_case(lm, [rng.randrange(61) for _ in range(16)], 1, rng)
            clasp.append(one)
            knap += many
    for cases in (clasp, knap):
        assert min(c["lost"] for c in cases) > -1e-6, "better than the best of all sets"
        assert sum(c["lost"] for c in cases) < 0.25 * sum(c["random_lost"] for c in cases)
        assert sum(c["optimum"] for c in cases) > 0.3 * len(cases)


@torch.inference_mode()
def test_brute_force_keeps_both_ends() -> None:
    """The paper's 10 + 12 + 10 layers in small, by sets of 6 + 4 + 2 sub-layers of other models."""
    lm, tokens, keep = random_lm("llama", "fused"), [*range(3, 19)], 2
    every = subsets(lm.sublayers, keep)
    assert len(every) == 2 ** (lm.sublayers - 2 * keep) == len(set(map(tuple, every.tolist())))
    assert not every[:, :keep].any() and not every[:, -keep:].any() and every[:, keep:-keep].any()
    clasp, knap = one_case(lm, tokens, 1, random.Random(0), keep)
    x, run = states_of(lm, tokens)[:, -1:], parallel_branches(lm, 1, len(every))
    half = every[every.sum(1) == (lm.sublayers - 2 * keep) // 2]
    assert clasp["best"] == pytest.approx(float(cosines(x, run, half).max()))
    assert clasp["best"] >= clasp["found"] > clasp["random"] == clasp["best"] - clasp["random_lost"]
    for case in knap:  # sets that skip an end would be found nowhere among `every`
        assert case["best"] >= case["found"] and "lost" in case


def test_what_brute_force_prints_is_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["--cases", "2", "--keep", "1"])
    lines = tmp_path / "brute_force.jsonl"
    lines.write_text(capsys.readouterr().out)
    assert "4 of 6 layers free" in lines.read_text()
    dispatch(["figure", str(lines)])
    assert lines.with_suffix(".png").stat().st_size > 5000


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


@NEEDS_RECORDS
@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("clasp", ["method.ratio=0.5834", "method.interval=8"]),
        (
            "knapspec",
            [
                "method.interval=8",
                "method.latency=[1e-4,0,1e-4]",
                "method.history=3",
                "method.budget=0.6",
            ],
        ),
    ],
)
@pytest.mark.slow
def test_the_identities_of_a_known_model_are_found(name: str, overrides: list[str]) -> None:
    """7 of 12 layers do nothing: drafts without them are accepted."""
    lm = checkpoint("babyllama-361-deep12-noop")
    method = make_method(name, *overrides, layers=lm.layers)
    accepted = steps = 0
    for first in range(3, 7):
        rounds = generate(lm, method, [1, *range(first, first + 12)], 96).rounds[8:]
        accepted, steps = (
            accepted + sum(r.accepted for r in rounds),
            steps + sum(r.steps for r in rounds),
        )
        found = DraftPlan.parse(str(method.skip), lm.layers)
    assert accepted >= 0.99 * steps > 0
    assert (
        DraftPlan.parse("attn:1,2,4,6,7,9,10;mlp:1,2,4,6,7,9,10", lm.layers).skipped
        <= found.skipped
    )
