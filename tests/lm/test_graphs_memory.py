"""Graphs that are held: within their bound, captured ahead, and right where memory for one more is
not there.
"""

from collections.abc import Callable
from random import Random
from typing import Any

import contract
import pytest
import torch
from conftest import make_method, random_lm, rest_slow
from test_graphs import PROMPT, captured, graphs, text
from test_graphs import short_buckets as short_buckets  # a fixture

from skipbench.decode.loop import generate
from skipbench.decode.method import Method
from skipbench.errors import NotStrictError
from skipbench.lm.cuda_graphs import device
from skipbench.lm.cuda_graphs.capture import EagerCapture, out_of_memory
from skipbench.lm.model import LM

DRAWN = [  # chains, trees, windows of guesses
    ("uniform", "method.ratio=0.3", "method.stop.threshold=0"),
    ("swift", "method.tree=[10,5,3,1]"),
    ("swift", "method.tree=[4,3,2,1]", "method.stop.threshold=0"),
    ("clasp", "method.stop.threshold=0"),
    ("recycling", "method.nodes=40"),
    ("lookahead",),
    ("prompt-lookup", "method.ngram=1"),
]


@pytest.mark.parametrize("prompts", rest_slow([3, 300], (3).__eq__))
def test_keys_stay_within_their_bound(prompts: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "MOST_GRAPHS", 1)  # two keys for each row count are left
    lm, fused, r = graphs(capacity=260), random_lm("llama", "fused"), Random(prompts)
    (part,) = lm.engine.graphs.values()
    part.most = part.most if prompts > 3 else 5
    methods, vanilla = [make_method(*words) for words in DRAWN], make_method("vanilla")
    for _ in range(prompts):
        prompt = [r.randrange(61) for _ in range(r.choice([2, 9, 30, 60, 120]))]
        length, method = r.randrange(2, 40), r.choice(methods)
        if r.random() < 0.3:
            lm.engine.capture_ahead(len(prompt), len(prompt) + length)
        wanted = generate(fused, vanilla, prompt, length).tokens
        assert generate(lm, method, prompt, length).tokens == wanted, method.name
        assert len(captured(lm)) <= part.most
    assert len(captured(lm)) == part.most


class Short(EagerCapture):
    """Memory ends at the capture `at`, once or for as long as `lasts`."""

    at, lasts, count = -1, False, 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.count += 1
        if self.count == self.at or (self.lasts and self.count > self.at >= 0):
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().capture(work)


@pytest.fixture
def short() -> tuple[LM, Any, Short, set[device.Key], list[int]]:
    """A model, its graphs, what captures them, the keys of a text, and its tokens."""
    lm = graphs(layers=2)
    (part,) = lm.engine.graphs.values()
    part.capture = Short(part.capture.device)
    part.forget()
    tokens = text(lm, uniform(), 40)
    assert tokens == contract.plain_greedy(lm.model, PROMPT, 40)
    return lm, part, part.capture, set(part.table), tokens


def uniform() -> Method:
    return make_method("uniform", layers=2)


def forget(part: Any, at: int, lasts: bool) -> None:
    part.forget()
    part.capture.at, part.capture.lasts, part.capture.count = at, lasts, 0


@pytest.mark.slow
@pytest.mark.parametrize("lasts", [False, True])
@pytest.mark.parametrize("step", [1, 25])
def test_memory_that_ends_at_any_capture_ends_for_one_text(
    short: Any, step: int, lasts: bool
) -> None:
    lm, part, capture, keys, wanted = short
    method = uniform()
    for at in range(1, capture.count + 1, step):
        forget(part, at, lasts)
        assert text(lm, method, 40) == wanted, at
        assert "no memory left for graphs of" in " ".join(lm.notes())
        capture.lasts = False
        assert text(lm, method, 40) == wanted, at
        assert set(part.table) == keys, f"graphs again after capture {at}"


def test_other_keys_go_before_the_engine_gives_up(short: Any) -> None:
    lm, part, capture, keys, _ = short
    capture.at = capture.count + 3
    prompt = PROMPT * 4
    wanted = contract.plain_greedy(lm.model, prompt, 40)
    assert generate(lm, uniform(), prompt, 40).tokens == wanted
    assert not part.lacked and capture.count > capture.at
    assert 0 < len(keys & set(part.table)) < len(keys)


@pytest.mark.parametrize("at", rest_slow([1, 13, 20, 30], (13).__eq__))
def test_strict_ends_a_text_that_memory_does_not_suffice_for_and_no_other(
    short: Any, at: int
) -> None:
    lm, part, capture, keys, wanted = short
    method = uniform()
    lm.engine.strict = part.strict = True
    forget(part, at, True)
    for _ in range(2):
        with pytest.raises(NotStrictError, match=r"cpu has no memory left for graphs of \d+ rows"):
            text(lm, method, 40)
    lm.engine.lenient = True  # of engine.strict=null
    assert text(lm, method, 40) == wanted and "not all texts were strict" in lm.notes()[-1]
    lm.engine.lenient, capture.lasts = False, False
    assert text(lm, method, 40) == wanted and set(part.table) == keys


def test_growth_tries_again(short: Any) -> None:
    lm, part, capture, keys, _ = short
    forget(part, 1, True)
    text(lm, uniform(), 8)
    assert not part.table
    lm.allocate(400)  # no memory for the engine's own test, either
    capture.lasts = False
    text(lm, uniform(), 40)
    assert lm.engine.name == "cuda_graphs" and set(part.table) == keys


@pytest.mark.parametrize(
    "text", ["CUDA error: out of memory", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling"]
)
def test_a_driver_without_memory_for_a_graph_leaves_the_fused_engine(text: str) -> None:
    class Full(EagerCapture):
        left = 12

        def capture(self, work: Callable[[], None]) -> Callable[[], None]:
            self.left -= 1
            if self.left < 0:
                raise torch.AcceleratorError(text)
            return super().capture(work)

    lm = graphs(capture=Full)
    tokens = generate(lm, make_method("uniform"), PROMPT, 20).tokens
    assert tokens == contract.plain_greedy(lm.model, PROMPT, 20)
    assert "no memory left" in " ".join(lm.notes())


def test_graphs_of_the_rows_that_were_met_are_captured_ahead() -> None:
    lm, method = graphs(capacity=64), make_method("uniform", "method.stop.threshold=0")
    lm.engine.capture_ahead(0, 64)  # nothing was met
    assert generate(lm, method, PROMPT, 12).rounds
    before = lm.engine.captured()
    lm.engine.capture_ahead(0, 64)
    ahead = lm.engine.captured()
    assert ahead.graphs > before.graphs and ahead.seconds > before.seconds
    tokens = generate(lm, method, PROMPT, 40).tokens  # passes three more buckets
    assert lm.engine.captured() == ahead
    assert tokens == contract.plain_greedy(lm.model, PROMPT, 40)


def test_another_error_of_a_capture_is_not_taken_for_one_of_memory() -> None:
    assert not out_of_memory(torch.AcceleratorError("CUDA error: invalid argument"))
