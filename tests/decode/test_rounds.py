"""Strategies of a round: read late on a GPU, which a CPU can do, too, with the same tokens."""

import itertools
from functools import partial

import pytest
from common import make_method
from conftest import random_lm, random_model

from skipbench.decode.loop import Step, generate
from skipbench.decode.sampling import Logprob, Sampler
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.methods.vanilla import Vanilla
from skipbench.runs.record import Verified

PROMPT = [3 + i * 7 % 50 for i in range(12)]


@pytest.mark.parametrize("engine", ["fused", "cuda_graphs"])
def test_rounds_read_late_have_the_same_tokens(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lm = random_lm("llama", "fused")
    if engine == "cuda_graphs":
        lm = LM(random_model("llama"), partial(CudaGraphsEngine, capture=EagerCapture))
        lm.allocate(200)
    wanted = generate(lm, Vanilla(), PROMPT, 40)
    assert wanted.strategy == "in_turn"
    ends = [frozenset[int](), frozenset(wanted.tokens[7:8]), frozenset(wanted.tokens[:1])]
    plain = [generate(lm, Vanilla(), PROMPT, 40, end).tokens for end in ends]
    monkeypatch.setattr(lm.engine, "works_ahead", True)
    for end, tokens in zip(ends, plain, strict=True):
        found = generate(lm, Vanilla(), PROMPT, 40, end)
        assert found.tokens == tokens and found.strategy == "late"
        assert len(found.rounds) == len(tokens) - 1
    others = itertools.product((make_method("swift"), Vanilla()), (None, Sampler(0.7, seed=1)))
    told = [generate(lm, method, PROMPT, 8, sampler=sampler).strategy for method, sampler in others]
    assert told == ["in_turn", "in_turn", "late", "in_turn"], "drafts and draws are read in turn"


def test_rows_beside_the_nodes_are_told() -> None:
    """Of Lookahead's window, W entries on each of N - 1 levels but for the pending token."""
    method = make_method("lookahead", "method.window=7", "method.level=5")
    out = generate(random_lm("llama", "fused"), method, PROMPT, 24)
    assert out.verified[-1][1] == Verified(extra_rows=7 * 4 - 1, tree=True)


def test_a_step_is_cut_with_what_belongs_to_its_tokens() -> None:
    step = Step([5, 6], ["draft", ""], logprobs=[Logprob(5, -1.0, []), Logprob(6, -2.0, [])])
    assert step.cut(1) == Step([5], ["draft"], logprobs=[Logprob(5, -1.0, [])])
