"""One node of a draft, thousands of times: what is emitted behind it is distributed as the target
says, however far the draft's distribution is from it.

The contract samples whole texts of a random model, whose drafts are near the target: a sibling is
tried in a tenth of the rounds. Here almost every round rejects.
"""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from conftest import rest_slow
from scipy import stats
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from skipbench.decode.draft import Draft
from skipbench.decode.drafting import SkipMethod
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Fixed
from skipbench.decode.verify import verify_sampling
from skipbench.draft_plan import DraftPlan
from skipbench.methods.fixed import FixedSet

DRAWS = 2000
# target and draft; total variation 0.55, 0.6 and 0.85
PAIRS = {
    "four": ((0.05, 0.30, 0.25, 0.40), (0.60, 0.10, 0.20, 0.10)),
    "five": ((0.02, 0.18, 0.10, 0.30, 0.40), (0.30, 0.18, 0.40, 0.10, 0.02)),
    "zeros": ((0.00, 0.05, 0.90, 0.05), (0.55, 0.40, 0.05, 0.00)),
}


def chain(method: SkipMethod, state: Any, logits: torch.Tensor) -> Draft:
    q: list[torch.Tensor] = []
    token, _ = method._next(state, logits, q)
    return Draft(token.tolist(), None, {-1: q[0]}, 1)


def tree(method: SkipMethod, state: Any, logits: torch.Tensor) -> Draft:
    q: list[torch.Tensor] = []
    _, *children = map(int, method._children(state, logits, q))
    return Draft(children, [-1] * len(children), {-1: q[0]}, 1)


def guesses(method: SkipMethod, state: Any, logits: torch.Tensor) -> Draft:
    """Two tokens that were not drawn."""
    return Draft([0, 2], [-1, -1], steps=2)


CASES = [(propose, pair) for propose in (chain, tree, guesses) for pair in PAIRS]


DAILY = {(chain, "zeros"), (tree, "four"), (guesses, "four")}


@pytest.mark.parametrize(("propose", "pair"), rest_slow(CASES, DAILY.__contains__))
def test_what_is_emitted_is_distributed_as_the_target(propose: Any, pair: str) -> None:
    p, q = PAIRS[pair]
    sampler, method = Sampler(1.0, seed=0), FixedSet("x", DraftPlan.of(1), Fixed(1), (3, 3, 3, 3))
    state = SimpleNamespace(sampler=sampler)
    target, logits = torch.tensor(p).log(), torch.tensor([q]).log()
    found: Counter[int] = Counter()
    first_rejected = 0
    for _ in range(DRAWS):
        draft = propose(method, state, logits)
        rows = target.expand(len(draft.tokens) + 1, -1)
        accepted, bonus = verify_sampling(draft, rows, sampler)
        found[draft.tokens[accepted[0]] if accepted else bonus] += 1
        first_rejected += accepted != [0]
    assert first_rejected > 0.3 * DRAWS  # the residual and the siblings decide
    assert all(p[token] > 0 for token in found)
    possible = [token for token, mass in enumerate(p) if mass > 0]
    expected = [p[token] * DRAWS for token in possible]
    assert stats.chisquare([found[token] for token in possible], expected).pvalue > 1e-4


@pytest.mark.parametrize("temperature", [1e-30, 1e-38, 1e-45, 1e-300])
def test_the_limit_of_small_temperatures_is_greedy(temperature: float) -> None:
    logits = 20 * torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    best = torch.nn.functional.one_hot(logits.argmax(-1), 40).float()
    assert torch.equal(Sampler(temperature).probs(logits), best)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.8), (0.6, 9, 0.9)]
)
def test_logits_are_warped_as_hugging_face_does(
    temperature: float, top_k: int, top_p: float
) -> None:
    logits = 2 * torch.randn(50, 40, generator=torch.Generator().manual_seed(0))
    wanted = TemperatureLogitsWarper(temperature)(None, logits)
    if top_k:
        wanted = TopKLogitsWarper(top_k)(None, wanted)
    if top_p < 1:
        wanted = TopPLogitsWarper(top_p)(None, wanted)
    found = Sampler(temperature, top_p, top_k).probs(logits)
    torch.testing.assert_close(found, wanted.softmax(-1))
