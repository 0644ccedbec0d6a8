"""The parts of `auto`: the most likely tokens, matches in the text, prices, and the tree they
choose.
"""

import itertools
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import LAYERS, NEEDED, make_method, random_lm, random_model
from test_rows import LOAD, SMALL

import skipbench
from skipbench.bench.arm import ArmRunner
from skipbench.cli.answers import speed_text
from skipbench.config.architecture import Shape
from skipbench.config.compose import compose
from skipbench.contrib.auto import auto
from skipbench.contrib.auto.chances import Calibration
from skipbench.contrib.auto.ladder import AGREEMENT, BREAK_EVEN, PlanLadder
from skipbench.contrib.cpu import top_tokens
from skipbench.contrib.cpu.top_tokens import two_best
from skipbench.contrib.lowbit.chances import Counters
from skipbench.decode.draft import Draft, State
from skipbench.decode.loop import generate, stream
from skipbench.decode.method import MethodCopies
from skipbench.decode.sampling import choices
from skipbench.decode.sources import Successors, TextIndex
from skipbench.decode.tree import Child, Growth, min_slopes
from skipbench.draft_plan import DraftPlan
from skipbench.experiments.row import run_rows
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.vanilla import Vanilla
from skipbench.metrics.host import Host, Timed
from skipbench.metrics.prices import DRAFT_ROWS, ROWS, Curve, Latencies, Prices
from skipbench.models.random_weights import planted_model
from skipbench.runs.cell import Cell

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


@pytest.fixture(params=["own function", "torch"])
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With our own function, where this machine runs it, and without."""
    if request.param == "torch":
        monkeypatch.setattr(top_tokens, "function_of", lambda logits, name: None)


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("dtype", [*DTYPES, torch.float64])
def test_the_most_likely_tokens_and_the_probabilities_of_two(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for size, shift in ((7, 0), (61, -9), (5000, 0), (5000, -40)):
        logits = (torch.randn(5, size) * 4 + shift).to(dtype)
        best, top = choices(logits, 8)
        assert best == logits.float().numpy().argmax(-1).tolist()
        wanted = logits.float().topk(min(8, size)).values
        torch.testing.assert_close(logits.float().gather(-1, torch.tensor(top)), wanted)
        assert all(len(set(row)) == len(row) for row in top)
        both = logits.double().topk(2).values
        for of_all, whole in (
            (True, logits.double().logsumexp(-1, keepdim=True)),
            (False, both[:, :1]),
        ):
            found = two_best(logits, of_all)
            at = torch.tensor([[token] for token, _, _ in found])  # of equal ones any
            assert torch.equal(logits.gather(-1, at), logits.max(-1, keepdim=True).values)
            probabilities = torch.tensor([row[1:] for row in found], dtype=torch.float64)
            torch.testing.assert_close(probabilities, (both - whole).exp(), rtol=1e-4, atol=1e-6)
        logits[3, 2] = float("nan")
        assert choices(logits, 8)[0][3] == choices(logits)[0][3] == -1


@pytest.mark.usefixtures("search")
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_first_of_equal_logits_and_none_of_infinite_ones(dtype: torch.dtype) -> None:
    logits = torch.full((9, 3000), -5.0, dtype=dtype)
    logits[0], logits[1, 700:], logits[2, 5:] = 1.0, 2.0, -1.0
    logits[3, 8], logits[3, 2] = 0.0, -0.0
    logits[4, 9], logits[5, :] = float("inf"), float("-inf")
    logits[6, 50:60], logits[6, 55] = 3.0, -float("nan")  # a NaN with a sign, as x86 makes them
    logits[7, 2999], logits[7, 2990] = 4.0, 4.0
    wanted = [0, 700, 5, 2, -1, -1, -1, 2990, 0]
    for k in (0, 6):
        assert choices(logits, k)[0] == wanted
        for row in range(9):  # each by itself: others decide how all are searched
            assert choices(logits[row : row + 1], k)[0] == wanted[row : row + 1]


def test_matches_are_those_of_a_plain_search() -> None:
    draw = random.Random(0)
    tokens = [draw.randrange(3) for _ in range(60)]
    index = TextIndex(matches=100)
    index.begin(tokens[:20])
    index.extend(tokens[20:])
    for path in ([], [1], [0, 2], [2, 2, 2, 1]):
        whole = [*tokens, *path]
        found = {}
        for at in range(1, len(tokens)):
            length = 0
            while length < min(16, at) and tokens[at - 1 - length] == whole[-1 - length]:
                length += 1
            found[at] = length
        long = {at: length for at, length in found.items() if length >= 2}
        got = index.find(path)
        assert dict(got) == long or (not long and got == [(max(found), 1)])
        assert [length for _, length in got] == sorted((n for _, n in got), reverse=True)


def test_copies_go_over_no_border_of_texts_and_successors_forget_the_oldest() -> None:
    index = TextIndex(limit=100)
    state = State(None, [], max_new_tokens=3)  # type: ignore[arg-type]  # no model
    state.emit([5, 6, 7])
    index.advance(state)
    index.begin([1, 5, 6])
    ((at, length),) = index.find()
    assert (index.text[at], length) == (7, 2)
    assert index.follow([(at, length)], 7) == []
    found = Successors(2)
    for token in (1, 2, 3):
        found.update(0, token, [token + 10])
    assert found.get(0, 1) == ([], 0) and found.get(9, 3) == ([13], 1)
    assert found.get(0, 3) == ([13], 2)
    again = Successors(2)
    again.load_state_dict(found.state_dict())
    assert again.get(0, 2) == ([12], 2)


def children(path: list[int], carried: object) -> list[Child]:
    return [(0.6, 1, 0, None), (0.3, 2, 1, None), (0.05, 3, 2, None)]


def test_the_tree_is_the_best_of_all_sizes() -> None:
    """Prices with a jump: rows behind it can pay although the next one does not."""
    prices = [0.0, 1.0, 1.01, 1.02, 1.3, 1.3, 1.3, 1.31, 1.32, 1.6, 2.0]
    for rate in (0.1, 1.0, 2.0, 8.0):
        growth = Growth(None, children, lambda p: p, prices, min_slopes(prices), 6)
        assert len(growth.best(rate + 1).tokens) <= len((tree := growth.best(rate)).tokens)
        every = Growth(None, children, lambda p: p, [0.0] * 11, [0.0] * 11, 6).best(rate)
        assert every.products == sorted(every.products, reverse=True) and len(every.tokens) == 9
        values = [sum(every.products[:n]) - rate * prices[n + 1] for n in range(10)]
        assert len(tree.tokens) == int(np.argmax(values))
        assert tree.parents == every.parents[: len(tree.tokens)]
        assert tree.expected == pytest.approx(sum(tree.products))


def test_chances_follow_what_is_counted() -> None:
    counters, calibration = Counters([0.5, 0.1]), Calibration()
    for _ in range(400):
        counters.update(1, True)
        calibration.count([0.5], [])
    assert counters.chance(0) == 0.5 and counters.chance(1) > 0.9
    assert calibration(0.5) < 0.1 and calibration(0.01) == 0.01


CHEAP = "method.row_prices=[1,1.02,1.04,1.06,1.1,1.2]"
INT8 = ("method.draft_prices=[0.3,0.33]",)
LOOPS = [3, 1, 4, 1, 5, 9, 2, 6] * 2
COUNTED = partial(Prices().step_price, 0)


def made(*words: str) -> auto.Auto:
    method = make_method("auto", *words)
    assert isinstance(method, auto.Auto)
    return method


def unread(length: int, **more: Any) -> Any:
    """A model of which only the length of the text is asked for."""
    return SimpleNamespace(cache=SimpleNamespace(length=length), prices=Prices(), **more)


def test_nothing_is_drafted_where_rows_cost_a_pass_each() -> None:
    lm, text = random_lm("llama", "fused"), [3, 1, 4, 1, 5]
    rounds = generate(lm, made("method.row_prices=[1,2,4,8,16,32]"), text, 24).rounds
    assert sum(r.nodes for r in rounds) == 0
    rounds = generate(lm, made("method.row_prices=[1,1,1,1,1,1]"), text, 24).rounds
    assert sum(r.accepted for r in rounds) > 0


def test_every_accepted_token_has_its_source() -> None:
    method = made()
    out = generate(random_lm("llama", "fused"), method, [3, 1, 4, 1, 5] * 3, 48)
    sources = method.log["source"]
    assert [len(s) for s in sources] == [r.accepted for r in out.rounds]
    assert set("".join(sources)) <= set("sbrdo") and len(set("".join(sources))) > 1
    loaded = skipbench.load("tiny", "auto", overrides=NEEDED["auto"])
    answer = loaded.generate("Once upon a time there was a dog. Once upon a time", 48)
    assert sum(answer.sources.values()) == answer.accepted > 0
    assert {*answer.sources} <= {"copied", "recycled", "copied and recycled", "layers", "other"}
    assert f"{next(iter(answer.sources))} " in speed_text(answer)


def test_skip_sets_are_nested_and_used_where_their_steps_pay() -> None:
    """On a model whose layers can be left out without a trace, a chain of the cheapest set wins."""
    shape, redundant = Shape(LAYERS, 256, 4, 2, 96, 300, 256), DraftPlan.of(LAYERS, range(2, 7))
    method = made("method.memory=1")
    lm = LM(planted_model(shape, redundant, 0, torch.float32, "cpu", 300), "fused")
    lm.allocate(480)
    out = generate(lm, method, [3, 1, 4, 1, 5], 64)
    nested = itertools.pairwise(method.ladder.plans.values())
    assert all(smaller.skipped < larger.skipped for smaller, larger in nested)
    assert "".join(method.log["source"]).count("d") > 32 and method.log["sets"]
    assert out.tokens == generate(lm, Vanilla(), [3, 1, 4, 1, 5], 64).tokens


def test_drafts_in_8_bits_are_right_and_read_copies_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a text that repeats itself, one pass confirms several tokens of a copy."""
    lm, passes = random_lm("llama", "fused"), list[int]()
    method = made("method.row_prices=[1,3,6,12,24,48]", *INT8)

    def counted(
        tokens: list[int], rows: TokenRows, plan: Any = None, **states: Any
    ) -> torch.Tensor:
        passes.extend([len(tokens)] * (plan is not None))
        return LM.logits(lm, tokens, rows, plan, **states)

    monkeypatch.setattr(lm, "logits", counted)
    free = made("method.row_prices=[1,1.1,1.2,1.3,1.4,1.5]", *INT8)
    wanted = generate(lm, Vanilla(), LOOPS, 48).tokens
    # else a draft ends here before a pass confirms more than one token
    monkeypatch.setattr(auto.Auto, "_drafts_on", lambda *_: True)
    monkeypatch.setattr(PlanLadder, "longest", lambda self, rung, prices, most: min(most, 16))
    for drafts, of in ((False, method), (True, free)):
        passes.clear()
        assert generate(lm, of, LOOPS, 48).tokens == wanted
        drafted = "".join(of.log["source"]).count("d")
        assert (drafted > 8) == drafts == bool(passes), "8 bits where rows are cheap alone"
    assert {plan for _, plan in free.log["sets"]} == {"int8"}
    assert max(passes) == DRAFT_ROWS[-1] and len(passes) < drafted
    assert free.ladder.pace < 1


@pytest.mark.parametrize("words", [("auto", *INT8), ("int8",)], ids=["auto", "int8"])
def test_nothing_is_drafted_behind_an_end(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, ends = random_lm("llama", "fused"), frozenset(range(0, 60, 3))

    def behind(eos: frozenset[int]) -> int:
        prices = CHEAP if words[0] == "auto" else CHEAP.replace("method.", "method.stop.")
        method = make_method(*words, prices)
        drafts, propose = list[Draft](), method.propose
        monkeypatch.setattr(
            method, "propose", lambda *args: drafts.append(propose(*args)) or drafts[-1]
        )
        for n in range(8):
            generate(lm, method, [n, *LOOPS], 24, eos)
        parents = ((draft.tokens, parent) for draft in drafts for parent in draft.parents())
        return sum(parent >= 0 and tokens[parent] in ends for tokens, parent in parents)

    assert behind(frozenset()) > 0 == behind(ends)


def test_no_draft_is_longer_than_nearly_the_best_chain() -> None:
    method = made(CHEAP, *INT8)
    method.begin(State(unread(2), [1, 2, 3]))
    a, c, C = method.ladder.chance(0), method.ladder.step(0), method.prices
    rates = [sum(a**i for i in range(n + 1)) / (n * c + C[1 + n]) for n in range(1, 17)]
    near = [n for n, rate in enumerate(rates, 1) if rate >= 0.98 * max(rates)]
    longest = [method.ladder.longest(0, C, most) for most in (16, 2, 0)]
    assert longest == [near[0], 2, 0] and near[0] < rates.index(max(rates)) + 1


def test_no_second_copy_of_weights_where_8_bits_cannot_pay(monkeypatch: pytest.MonkeyPatch) -> None:
    lm = LM(random_model("llama"), "fused")
    lm.allocate(64)
    lm.prefill([3, 1, 4])
    method, state = auto.Auto(name="auto", layers=LAYERS), State(lm, [3, 1, 4, 1])
    for step_s in (2.0, 0.5):
        low = {"int8": Latencies(0.0, 0.0, 0.0, step_s, LAYERS)}
        lm.prices = Prices(model=Latencies(0.0, 0.0, 0.0, 1.0, LAYERS, low))
        method.prepare(state)
        assert bool(method.low) == bool(lm.engine.variant_bytes()) == (step_s < 1)
    monkeypatch.setattr(type(lm.engine), "fast", lambda engine, variant: False)
    method.take_prices(state)
    assert method.low == []


def test_rungs_in_8_bits_begin_at_their_prior_and_follow_their_drafts() -> None:
    ladder, prices = PlanLadder(LAYERS, 4, 0.0), [0.0, *(1 + 0.02 * n for n in range(20))]
    assert ladder.best(prices, 1.0, 8)[0] == -1  # nothing was tried
    ladder.rank, ladder.turns = list(range(2 * LAYERS)), [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    ladder.begin(COUNTED, [0.0, 0.4, 0.5])
    assert str(ladder.plans[1]) == "int8;attn:0"
    assert ladder.steps[:3] == pytest.approx([0.4, 0.35, 0.3])
    assert ladder.best(prices, 1.0, 8)[0] == 0 and ladder.chance(0) == AGREEMENT
    before = ladder.chance(3)
    assert before == pytest.approx(AGREEMENT * np.exp(-0.3))
    for _ in range(60):
        ladder.agreement.update(0, False)
    assert ladder.chance(0) < 0.1 and ladder.chance(3) < before
    assert ladder.best(prices, 1.0, 8)[1] < BREAK_EVEN


RISE = (1, 1.008, 1.03, 1.07, 1.11, 1.2)
"""Passes of `ROWS` rows over one of a row, as those of a small model on an H100."""
HOSTS = {"auto": Host(0.36e-3, 0.04e-3), "vanilla": Host(0.06e-3)}
"""There, of rounds of each."""
TEXT = "Q: 3+4? A: 7. Q: 5+6? A: 11. Q: 2+2? A:"


def test_the_host_makes_trees_smaller_where_it_takes_as_long_as_a_pass() -> None:
    """A row of the host's is a twentieth of a small model's pass, and nothing of a large one's."""
    loaded: Any = skipbench.load("tiny", "vanilla", overrides=["model.dtype=float32"])
    lm, curve = loaded.lm, Curve(0, dict(zip(ROWS, RISE, strict=True)))
    lm.allocate(200)
    for pass_s, fewer in ((0.95e-3, True), (20e-3, False)):
        rows, model = list[int](), Latencies(0.0, 0.0, 0.0, pass_s, lm.layers)
        for host in (HOSTS, {}):
            method = make_method("auto", "method.row_prices=[]", "method.explore=0")
            lm.prices = Prices(model=model, curves=[curve], host=dict(host))
            steps = stream(lm, MethodCopies(method), loaded.tokenizer(TEXT)["input_ids"], 64)
            rows.append(sum(step.rows for step in [*steps][1:]))
        assert (rows[0] < 0.5 * rows[1]) == fewer


def test_each_arm_has_prices_of_its_own_and_is_prepared_before_its_first_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All read the latency file; the host's part is that of an arm's own rounds. And of the copies
    of weights, which the shared model keeps, an arm counts those that its own drafts read.
    """
    seen, prepared = list[Prices](), list[str]()
    observe, prepare = Prices.observe, ArmRunner.prepare

    def observed(self: Prices, name: str, rounds: Sequence[Timed]) -> bool:
        seen.extend([self] * (name == "auto"))
        return observe(self, name, rounds)

    def named(self: ArmRunner) -> None:
        prepared.append(self.name)
        assert not self.turns
        prepare(self)

    monkeypatch.setattr(Prices, "observe", observed)
    monkeypatch.setattr(ArmRunner, "prepare", named)
    words = [*SMALL, "limit=2", f"results={tmp_path}"]
    arms = [["method=auto", f"method.explore={share}"] for share in (0, 0.01)]
    arms += [["method=int8"], ["method=uniform"]]
    cells = [Cell(compose([*words, *arm])) for arm in arms]
    run_rows(cells, LOAD)
    low, other = (cell.run.measured.variant_bytes for cell in cells[2:] if cell.run)
    assert low and other is None
    assert sorted(prepared) == sorted(cell.folder.name for cell in cells)
    first, second = {id(prices): prices for prices in seen}.values()
    assert first.host != second.host and first.curves == second.curves and first.curves
    for cell in cells[:2]:
        assert cell.run is not None
        took = [arm.trace.get("setup_s") for arm in cell.run.arms]
        assert took[0] and took[0][0] > 0 and took[1] is None
