"""Requests on one loaded model at the same time: each has the tokens that it has alone."""

import gc
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import ALONE, EVERY_ENGINE, here, make_method, random_lm, rest_slow

import skipbench
from skipbench.decode.loop import Step, generate, stream
from skipbench.decode.method import MethodCopies
from skipbench.language_model import LanguageModel
from skipbench.lm.model import LM
from skipbench.methods.vanilla import Vanilla
from skipbench.profile.clock import Clock

PROMPTS = [
    "Once upon a time there was a dog.",
    "Tom and Lily went to the park.",
    "The red ball was under the bed.",
    "One day, a bird sang in the tree.",
]
REQUESTS, THREADS, NEW = 40, 4, 8
IDS = [[5, 9, 2, 7, 5, 9, 2], [11, 3, 3, 40, 8], [1, 60, 1, 60, 1, 60, 22, 5, 9]]


@pytest.fixture(scope="module")
def tiny() -> LanguageModel:
    return skipbench.load("tiny", method="vanilla")


def right(ask: Callable[[int], object]) -> str:
    """How many of 40 requests in four threads get what each prompt then gets alone."""
    with ThreadPoolExecutor(THREADS) as pool:
        found = list(pool.map(lambda i: ask(i % len(PROMPTS)), range(REQUESTS)))
    alone = [ask(i) for i in range(len(PROMPTS))]
    count = sum(answer == alone[i % len(PROMPTS)] for i, answer in enumerate(found))
    return f"{count}/{REQUESTS}"


@pytest.mark.parametrize("method", here(["vanilla", "prompt-lookup", "auto"]))
@pytest.mark.slow
def test_requests_in_threads(tiny: LanguageModel, method: str) -> None:
    lm = tiny.with_method(method)
    assert right(lambda i: lm.generate(PROMPTS[i], NEW).tokens) == "40/40"


def test_a_stream_goes_on_with_its_own_text(tiny: LanguageModel, tmp_path: Path) -> None:
    alone = [tiny.generate(prompt, NEW).text for prompt in PROMPTS]
    running = tiny.generate(PROMPTS[0], NEW, stream=True)
    shown = str(next(running))
    assert tiny.generate(PROMPTS[1], NEW).text == alone[1]
    shown += str(next(running))
    assert tiny.generate(PROMPTS[2] * 40, NEW).text  # the cache grows
    shown += str(next(running))
    before = tiny.lm.cache.copied()
    tiny.with_method("knapspec", [f"results={tmp_path}"])  # measures latencies
    shown += str(next(running))
    pairs = zip(before, tiny.lm.cache.copied(), strict=True)
    assert all(torch.equal(rows, now[: len(rows)]) for rows, now in pairs)
    assert generate(tiny.lm, Vanilla(), IDS[0], 4).tokens
    assert shown + "".join(map(str, running)) == alone[0]


def read_in_turns(lm: LM, name: str) -> None:
    """Three streams, round after round; prompt lookup, which keeps nothing from prompt to prompt,
    has the very rounds that it has alone.
    """
    plain = [generate(lm, Vanilla(), ids, NEW).tokens for ids in IDS]
    methods = MethodCopies(make_method(name))
    alone = [list(stream(lm, methods, ids, NEW)) for ids in IDS]
    found: list[list[Step]] = [[] for _ in IDS]
    running = [stream(lm, methods, ids, NEW) for ids in IDS]
    for steps in itertools.zip_longest(*running):
        for seen, step in zip(found, steps, strict=True):
            seen += [step] if step else []
    assert [[t for step in steps for t in step.tokens] for steps in found] == plain
    assert found == alone or name != "prompt-lookup"
    assert methods.take() is methods.first  # what it learns stays with the one that was given


def test_a_request_that_ends_waits_for_no_gpu_in_the_round_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such a wait would break the capture of a graph there."""
    lm, stop, held = random_lm("llama", "fused"), Clock.stop, list[bool]()

    def in_a_round() -> bool:
        if free := lm.cache.lock.acquire(blocking=False):
            lm.cache.lock.release()
        return not free

    def stopped(clock: Clock) -> dict[str, float]:
        with ThreadPoolExecutor(1) as other:
            held.append(other.submit(in_a_round).result())
        return stop(clock)

    monkeypatch.setattr(Clock, "stop", stopped)
    list(stream(lm, MethodCopies(Vanilla()), IDS[0], NEW))
    generate(lm, Vanilla(), IDS[0], NEW)
    assert held == [True, True]


# One of each kind: what learns from a text, what keeps tokens of earlier ones, what searches.
DAILY = ("knapspec", "lookahead", "prompt-lookup")


@pytest.mark.parametrize("name", rest_slow(ALONE, DAILY.__contains__))
def test_streams_read_in_turns(name: str) -> None:
    read_in_turns(random_lm("llama", "fused"), name)


@pytest.mark.parametrize("engine", rest_slow(EVERY_ENGINE, "cuda_graphs".__eq__))
def test_every_engine_keeps_requests_apart(engine: str) -> None:
    lm = random_lm("llama", engine)
    read_in_turns(lm, "swift")
    gc.collect()  # what other tests of this model left unread
    assert len(lm.cache._aside) == 0, "rows of requests that are over are kept"
