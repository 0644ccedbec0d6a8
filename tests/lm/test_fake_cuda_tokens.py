"""Token identity on the CUDA code path, on tensors that say `cuda:N` and compute on a CPU: one
device, and layers over two.
"""

from functools import partial
from itertools import zip_longest
from typing import Any

import pytest
import torch
from conftest import ANYWHERE, EVERY_ENGINE, make_method, random_model, rest_slow, settings_of
from contract import PROMPT, plain_greedy
from fake_cuda import CheckedCapture, cpu_behind_cuda, moved

from skipbench.decode.loop import generate, stream
from skipbench.decode.method import MethodCopies
from skipbench.decode.sampling import Sampler
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.float32 import float32_logits
from skipbench.lm.model import LM
from skipbench.profile.clock import Clock

LENGTH = 8
FAULTS = ("order", "graph", "capture")
TREE = "method.tree=[4,3,2,1]"


def one_device(name: str) -> str:
    return "cuda:0"


def two_devices(name: str) -> str:
    """The second half of the layers, the norm and the head on the second device."""
    words = name.split(".")
    if "layers" in words:
        return f"cuda:{int(words[words.index('layers') + 1]) // 2}"
    return "cuda:1" if words[1] == "norm" or words[0] == "lm_head" else "cuda:0"


def lm_on(place: Any, engine: str, family: str = "llama") -> LM:
    """The random model there; inside `cpu_behind_cuda`."""
    make: Any = (
        partial(CudaGraphsEngine, capture=CheckedCapture) if engine == "cuda_graphs" else engine
    )
    lm = LM(moved(random_model(family), place), make)
    lm.allocate(400)
    assert "graphs" not in " ".join(lm.notes()) and lm.cache.rows[0].is_cuda
    return lm


def variants(method: str) -> list[tuple[str, ...]]:
    tree = (TREE, "method.share=false") if method == "layerskip" else (TREE,)
    return [(), tree] if "tree" in settings_of(method) else [()]


CASES = [
    (m, e, p, f)
    for m in ANYWHERE
    for e in EVERY_ENGINE
    for p in (one_device, two_devices)
    for f in ("llama", "mistral")
]
DAILY = [
    ("clasp", "fused", two_devices, "llama"),
    ("uniform", "cuda_graphs", two_devices, "llama"),
    ("vanilla", "reference", two_devices, "mistral"),
]


@pytest.mark.parametrize(
    ("method", "engine", "place", "family"), rest_slow(CASES, DAILY.__contains__)
)
def test_tokens_are_those_of_the_plain_model(
    method: str, engine: str, place: Any, family: str
) -> None:
    wanted = plain_greedy(random_model_once(family), PROMPT, LENGTH)
    with cpu_behind_cuda() as journal:
        lm = lm_on(place, engine, family)
        for overrides in variants(method):
            made = make_method(method, *overrides)
            # what lasts from prompt to prompt, too
            for _ in range(2 if method in ("clasp", "swift", "auto") and not overrides else 1):
                found = generate(lm, made, PROMPT, LENGTH, clock=Clock(torch.device("cuda:0")))
                assert found.tokens == wanted, overrides
        assert not journal.lines(*FAULTS)


@pytest.mark.parametrize("engine", ["fused", "cuda_graphs"])
def test_the_next_round_is_launched_before_the_host_reads(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with EOS in the text, and where another request takes the cache in between."""
    method, prompts = make_method("vanilla"), [PROMPT, PROMPT[2:]]
    wanted = [plain_greedy(random_model_once("llama"), p, LENGTH) for p in prompts]
    eos = wanted[0][LENGTH - 3]
    cut = wanted[0].index(eos) + 1
    with cpu_behind_cuda() as journal:
        lm, waits = lm_on(one_device, engine), list[int]()
        launch = lm.score

        def counted(*arguments: Any, **more: Any) -> Any:
            waits.append(len([found for found in journal.since if found.kind == "wait"]))
            return launch(*arguments, **more)

        monkeypatch.setattr(lm, "score", counted)
        clock = Clock(torch.device("cuda:0"))
        found = generate(lm, method, PROMPT, LENGTH, clock=clock)
        assert found.tokens == wanted[0] and found.strategy == "late"
        ahead = sum(n == before for n, before in enumerate(waits[1:]))  # not waited for the last
        assert waits[0] == 0 and ahead >= len(found.rounds) - 1
        assert len(clock.round_s) == len(found.rounds)
        waits.clear()
        journal.clear()
        found = generate(lm, method, PROMPT, LENGTH, frozenset({eos}), clock=clock)
        assert found.tokens == wanted[0][:cut] and found.finish == "eos"
        assert len(waits) - len(found.rounds) == 1  # for nothing
        assert lm.cache.length == len(PROMPT) + cut - 1 and len(clock.round_s) == len(found.rounds)
        copies = MethodCopies(method)
        streams = [stream(lm, copies, prompt, LENGTH) for prompt in prompts]
        texts = [list[int](), list[int]()]
        for steps in zip_longest(*streams):
            for text, step in zip(texts, steps, strict=True):
                text += step.tokens if step else []
        assert texts == wanted
        assert not journal.lines(*FAULTS)


def random_model_once(family: str) -> Any:
    if family not in _MODELS:
        _MODELS[family] = random_model(family)
    return _MODELS[family]


_MODELS: dict[str, Any] = {}


@pytest.mark.parametrize("method", ["uniform", "swift"])
@pytest.mark.slow
def test_sampled_tokens_are_those_of_a_cpu(method: str) -> None:
    """One seed decides the same tokens on every device."""
    made = [make_method(method, TREE) for _ in range(2)]
    lm = LM(random_model("llama"), "fused")
    lm.allocate(400)
    wanted = generate(lm, made[0], PROMPT, LENGTH, sampler=Sampler(0.8, 0.95, seed=5)).tokens
    with cpu_behind_cuda():
        there, clock = lm_on(two_devices, "fused"), Clock(torch.device("cuda:0"))
        sampler = Sampler(0.8, 0.95, seed=5)
        found = generate(there, made[1], PROMPT, LENGTH, sampler=sampler, clock=clock)
    assert found.tokens == wanted


def test_the_tie_check_crosses_devices() -> None:
    model = random_model("llama")
    wanted = float32_logits(model, PROMPT)
    with cpu_behind_cuda():
        found = float32_logits(moved(random_model("llama"), two_devices), PROMPT)
    assert wanted is not None and found is not None and not found.is_cuda
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_mixed_devices_are_refused() -> None:
    with cpu_behind_cuda():
        a, b = (torch.ones(3).to(f"cuda:{i}") for i in range(2))
        with pytest.raises(RuntimeError, match="same device"):
            a + b
        with pytest.raises(RuntimeError, match="host and on the device"):
            a + torch.ones(3)
