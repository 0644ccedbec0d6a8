"""SWIFT's search on the embedded model: the sets that a ratio gives, what ends the search, and what
its first steps cost.
"""

import random
import sys
from collections.abc import Callable
from typing import Any

import pytest
from conftest import rest_slow

from skipbench.bench.load import load_model, prepare
from skipbench.bench.prompts import Prompt, eos_ids
from skipbench.config.compose import compose
from skipbench.decode.loop import generate
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.methods import swift
from skipbench.methods.swift import SWIFT

FREE = 20  # sub-layers of the embedded model's 12 layers that may be skipped
Decode = Callable[..., list[DraftPlan]]


def make(*overrides: str) -> SWIFT:
    config = compose(["method=swift", "method.beta=0", *overrides]).method
    method: SWIFT = config.factory()(layers=12)
    method.import_libraries()
    return method


@pytest.fixture(scope="module")
def prompts() -> tuple[LM, list[Prompt]]:
    config = compose(["dataset=mini-summary", "dataset.max_new_tokens=64"])
    lm, tokenizer = load_model(config.model, config.engine)
    return lm, prepare(lm, tokenizer, config.dataset.rows(4), config.dataset)


@pytest.fixture
def decode(prompts: tuple[LM, list[Prompt]], monkeypatch: pytest.MonkeyPatch) -> Decode:
    def run(method: SWIFT, first: int = 0, last: int = 4) -> list[DraftPlan]:
        """The set of every round, over some of the four prompts."""
        lm, texts = prompts
        drafted: list[DraftPlan] = []
        propose = method.propose

        def watched(*arguments: Any) -> Any:
            drafted.append(method.skip)
            return propose(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(method, "propose", watched)
            for prompt in texts[first:last]:
                generate(lm, method, prompt.ids, 64, eos_ids(lm))
        return drafted

    return run


@pytest.mark.parametrize("layers", [3, 4, 12, 13])
@pytest.mark.parametrize("ends", [True, False])
def test_the_first_set_is_spread_evenly(layers: int, ends: bool) -> None:
    """Every ratio that can be: of that size, in whole layers but for one, and no two gaps differ by
    more than a layer.
    """
    free = 2 * (layers - 2 * ends)
    for count in range(1, free):
        given = {"layers": layers, "name": "swift", "stop": Fixed(8), "protect_ends": ends}
        skip = SWIFT(**given, ratio=(count + 0.5) / free, beta=0).skip
        assert len(skip.skipped) == count and set(skip.mlp) <= set(skip.attention)
        assert len(skip.attention) - len(skip.mlp) == count % 2
        gaps = [b - a for a, b in zip(skip.attention, skip.attention[1:], strict=False)]
        assert not gaps or max(gaps) - min(gaps) <= 1
        assert not ends or not {0, layers - 1} & {s // 2 for s in skip.skipped}


def test_only_a_candidate_ends_the_search(decode: Decode) -> None:
    method = make("method.window=16", "method.ratio=0.6", "method.max_score=0.95")
    decode(method, last=1)
    first, scores = method.log["best"][0], [score for _, score in method.tried]
    # the first set exceeds it, the first candidate does not
    assert scores[0] < 0.95 < first and len(scores) > 1
    decode(method, first=1)
    scores = [score for _, score in method.tried]
    assert method.searching or max(scores[:-1]) <= 0.95 < scores[-1]
    easy = make("method.window=8", "method.ratio=0.1", "method.max_score=0.95")
    decode(easy)
    assert [score for _, score in easy.tried] == [1.0] and not easy.searching


def test_the_search_ends_after_s_steps_or_without_a_better_candidate(decode: Decode) -> None:
    given = ("method.window=8", "method.ratio=0.6", "method.max_score=1")
    counted = make(*given, "method.steps=5", "method.patience=99")
    decode(counted)
    assert len(counted.tried) == 5 and not counted.searching
    patient = make(*given, "method.patience=2")
    drafted = decode(patient)
    scores = [score for _, score in patient.tried]
    assert len(scores) == patient.best_step + 3 and not patient.searching
    best = patient.log["best"][-1] if patient.log["best"] else patient.score
    assert patient.score == best and max(scores[-3:]) <= best
    assert len(set(drafted[-5:])) == 1  # whatever follows drafts with the best set


def test_a_bayesian_step_goes_where_scores_are_high() -> None:
    """Candidates that skip attention were right, those that skip MLPs were wrong."""
    method = make("method.beta=2", "method.ratio=0.5", "method.bayes_draws=2000")
    draws = random.Random(0)
    for _ in range(19):
        point = [0.0] * FREE
        for chosen in draws.sample(range(FREE), FREE // 2):
            point[chosen] = 1.0
        method.tried.append((point, sum(point[: FREE // 2]) / (FREE // 2)))
    skip = method.rounded(method._suggest())
    assert len(skip.attention) > len(skip.mlp) + 2


@pytest.mark.parametrize(
    "effort", rest_slow([[], ["method.bayes_starts=1", "method.bayes_restarts=1"]], bool)
)
def test_the_first_bayesian_step_imports_nothing(
    effort: list[str], decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its time is that of a step; a search without Bayesian steps needs no such package at all."""
    monkeypatch.delitem(sys.modules, "bayes_opt", raising=False)  # another test may have loaded it
    for none in (["method.beta=0"], ["method.steps=3", "method.beta=4"]):
        make(*none)
    assert "bayes_opt" not in sys.modules
    method = make("method.window=8", "method.beta=2", *effort)
    assert "bayes_opt" in sys.modules
    known = set(sys.modules)
    decode(method, last=1)
    assert len(method.tried) >= 2 and set(sys.modules) == known


@pytest.mark.parametrize("initial", rest_slow(["ratio", "odd"], "ratio".__eq__))
def test_a_lowered_ratio_has_sets_of_its_size(
    initial: str, decode: Decode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swift, "ADJUST_ROUNDS", 3)
    method = make(
        "method.window=8", "method.ratio=0.3", "method.adjust_below=1", f"method.initial={initial}"
    )
    sizes = [len(skip.skipped) for skip in decode(method)]
    met = [size for size in (10, 6, 4, 2) if size in sizes]
    assert met == [10] * (initial == "odd") + [6, 4, 2]
    assert sizes == sorted(sizes, reverse=True) and method.ratio == 0.1
