"""The code path of a GPU on tensors that say `cuda:N` and compute on a CPU (`fake_cuda`): the
model's own tokens, few reads by the host, no operand in a wrong place, streams and graphs in order.
"""

import functools
import itertools
from typing import Any

import pytest
import torch
from conftest import (
    ANYWHERE,
    EVERY_ENGINE,
    make_method,
    random_lm,
    random_model,
    rest_slow,
    settings_of,
    shallow,
)
from contract import PROMPT, plain_greedy
from fake_cuda import Journal, PhaseClock, cpu_behind_cuda, lm_on, one_device, two_devices
from test_graphs import PROMPTS

from skipbench.decode.loop import Generation, generate, stream
from skipbench.decode.method import MethodCopies
from skipbench.decode.sampling import Sampler
from skipbench.profile.clock import Clock

LENGTH = 8
FAULTS = ("order", "graph", "capture", "kernel", "pageable")
TREE = "method.tree=[4,3,2,1]"
VARIANTS: dict[str, tuple[str, ...]] = {
    "greedy": (),
    "threshold": ("method.stop.threshold=0.01",),
    "tree": (TREE,),
    "sampling": (),
    "sampled tree": (TREE,),
}
DAILY = [
    ("uniform", "greedy", "cuda_graphs", one_device, "llama"),
    ("uniform", "threshold", "fused", two_devices, "llama"),
    ("uniform", "sampling", "fused", one_device, "mistral"),
    ("swift", "tree", "fused", two_devices, "llama"),
    ("vanilla", "greedy", "reference", two_devices, "mistral"),
    ("clasp", "greedy", "cuda_graphs", two_devices, "llama"),
]


def has(method: str, variant: str) -> bool:
    keys = settings_of(method)
    return ("tree" not in variant or "tree" in keys) and (variant != "threshold" or "stop" in keys)


OTHERS = [
    (*case, (one_device, two_devices)[i % 2], ("llama", "mistral")[i // 2 % 2])
    for i, case in enumerate(itertools.product(ANYWHERE, VARIANTS, EVERY_ENGINE))
    if has(*case[:2])
]
"""Every method, variant and engine; places and families in turn."""


@functools.cache
def greedy(family: str) -> list[int]:
    return plain_greedy(random_model(family), PROMPTS[family], LENGTH)


def excess(out: Generation, journal: Journal, method: str, variant: str) -> list[str]:
    """What the host did that it must not do, or more often than it may."""
    found = journal.lines(*FAULTS)
    rounds, steps = len(out.rounds), sum(r.steps for r in out.rounds)
    fetches = 2 * steps if variant == "sampled tree" else rounds
    if (method, variant) == ("uniform", "greedy"):  # tokens stay on the device
        fetches = 0
    # One transfer of the tokens per round, and one event per confidence; in verification one
    # transfer, and under sampling two more, of the chances and of the bonus; of a tree one more per
    # node whose first child is rejected: those that are accepted, and the one behind them.
    tree = any(how.tree for _, how in out.verified)
    verified = 3 * rounds + (sum(r.accepted + 1 for r in out.rounds) if tree else 0)
    if (
        journal.count("draft", "read") > fetches
        or journal.count("draft", "wait") > steps
        or journal.count("verify", "read", "wait") > (verified if "sampl" in variant else rounds)
        or journal.count("other", "read", "wait")
    ):
        found += journal.lines("read", "wait")
    return found


@pytest.mark.parametrize(
    ("method", "variant", "engine", "place", "family"),
    rest_slow([*DAILY, *(case for case in OTHERS if case not in DAILY)], DAILY.__contains__),
)
def test_tokens_are_the_models_and_the_host_reads_little(
    method: str, variant: str, engine: str, place: Any, family: str
) -> None:
    """Twice, as graphs are captured in the first text; one seed draws the same on every device."""
    own = ("method.share=false",) if method == "layerskip" and "tree" in variant else ()
    prompt = PROMPTS[family]
    ours, there = (make_method(method, *VARIANTS[variant], *own) for _ in range(2))

    def sampler() -> Sampler:
        return Sampler(0.8, 0.95, seed=5) if "sampl" in variant else Sampler()

    if "sampl" in variant:
        lm = random_lm(family, "fused")
        wanted = [generate(lm, ours, prompt, LENGTH, sampler=sampler()).tokens for _ in range(2)]
    else:
        wanted = [greedy(family)] * 2
    with cpu_behind_cuda() as journal:
        lm = lm_on(place, engine, random_model(family))
        journal.clear()
        clock: Any = Clock(torch.device("cuda:0"))
        first = generate(lm, there, prompt, LENGTH, sampler=sampler(), clock=clock)
        assert not journal.lines(*FAULTS)
        journal.clear()
        clock = PhaseClock(journal)
        second = generate(lm, there, prompt, LENGTH, sampler=sampler(), clock=clock)
        assert [first.tokens, second.tokens] == wanted
        assert not excess(second, journal, method, variant)


@pytest.mark.parametrize("engine", ["fused", "cuda_graphs"])
def test_the_next_round_is_launched_before_the_host_reads(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with EOS in the text, and where another request takes the cache in between."""
    method, prompts = make_method("vanilla"), [PROMPT, PROMPT[2:]]
    wanted = [plain_greedy(shallow("llama"), p, LENGTH) for p in prompts]
    eos = wanted[0][LENGTH - 3]
    cut = wanted[0].index(eos) + 1
    with cpu_behind_cuda() as journal:
        lm, waits = lm_on(one_device, engine, shallow("llama")), list[int]()
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
        for steps in itertools.zip_longest(*streams):
            for text, step in zip(texts, steps, strict=True):
                text += step.tokens if step else []
        assert texts == wanted
        assert not journal.lines("order", "graph", "capture")
