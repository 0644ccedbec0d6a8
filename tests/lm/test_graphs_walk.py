"""Random walks (`graphs_walk`) of `cuda_graphs` over its stand-ins: 1,100 calls per day, 110,000 in
the slow tier, and the faults that they are there for.

Bits are compared with `Anew`, which computes as the graphs do and remembers nothing; `fused`, which
adds in another order, tells what both would do wrong.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from conftest import random_model
from fake_cuda import CheckedCapture, cpu_behind_cuda, moved, planted
from graphs_walk import Mismatch, Walk, walk
from torch import Tensor

from skipbench.lm.cuda_graphs import buffers
from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.device import DeviceGraphs
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.engine import Engine, Sublayer
from skipbench.lm.metadata import AttentionMetadata
from skipbench.lm.model import LM

NEAR = 1e-3
"""Of `fused`, whose sums are in another order, so that an activation in 8 bits may round the other
way: 1e-4 is met by most walks and not by all."""


class Anew(CudaGraphsEngine):
    """Computes each sub-layer over buffers made for it alone: nothing is left of an earlier pass,
    and no graph is captured or replayed.
    """

    result_is_borrowed = False

    def made_of(self, layers: Any, eager: list[Sublayer], variant: str = "") -> list[Sublayer]:
        super().made_of(layers, eager, variant)
        (part,) = self.graphs.values()
        return [alone(part, variant, s, run) for s, run in enumerate(eager)]

    def run(self, *given: Any) -> Tensor:
        return Engine.run(self, *given)

    def capture_ahead(self, start: int, end: int) -> None:
        pass


def alone(part: DeviceGraphs, variant: str, s: int, eager: Sublayer) -> Sublayer:
    def run(hidden: Tensor, metadata: AttentionMetadata) -> Tensor:
        key = part.key_of(metadata, variant)
        if key is None or len(hidden) != metadata.rows:
            return eager(hidden, metadata)
        sizes = key.rows, part.hidden, part.cache.head_dim
        made = GraphBuffers(*sizes, part.cache.dtype, part.capture.device)
        made.load(metadata.token_rows)
        made.input_preparation(*part.rope)()
        out = made.view(metadata.rows)
        out.copy_(hidden)
        part.blocks[variant][s].work(made, key.size, key.own)()
        return out

    return run


class Full(EagerCapture):
    """Memory for graphs ends again and again, for a while."""

    count = 0

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        self.count += 1
        if self.count % 150 > 140:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().capture(work)


@dataclass(frozen=True)
class Tier:
    """Args:
    steps: calls per day.
    tape: `fake_cuda`: what Python looked up at capture is frozen.
    """

    family: str
    steps: int
    exact: bool = False
    tape: bool = False
    capture: type[EagerCapture] = EagerCapture

    def __str__(self) -> str:
        words = [self.family, *["tape"] * self.tape]
        return "-".join([*words, *["full"] * (self.capture is Full), *["bits"] * self.exact])


TIERS = [
    Tier("llama", 230, exact=True),
    Tier("llama", 270),
    Tier("mistral", 170, exact=True),
    Tier("qwen3", 180),
    Tier("qwen2", 235, capture=Full),
    Tier("llama", 15, tape=True),
]


@contextlib.contextmanager
def walker(tier: Tier) -> Iterator[Walk]:
    """Two models on their engines, as a tier says."""
    with contextlib.ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch().context())
        patch.setattr(buffers, "FIRST", 32)
        with contextlib.suppress(ImportError):  # its own test takes minutes: test_int8_triton.py
            patch.setattr("skipbench.contrib.lowbit.copy.int8_fault", lambda like: None)
        model, capture, faults = random_model(tier.family), tier.capture, list[str]
        if tier.tape:
            journal = stack.enter_context(cpu_behind_cuda())
            model, capture = moved(model, lambda name: "cuda:0"), CheckedCapture
            faults = partial(journal.lines, "order", "graph", "capture")
        graphs = LM(model, partial(CudaGraphsEngine, capture=capture))
        anew = partial(Anew, capture=EagerCapture)
        other = LM(random_model(tier.family), anew if tier.exact else "fused")
        yield Walk((graphs, other), 0.0 if tier.exact else NEAR, faults)


@pytest.mark.parametrize("tier", TIERS, ids=str)
def test_graphs_compute_what_an_engine_without_memory_computes(tier: Tier) -> None:
    with walker(tier) as made:
        walk(made, tier.steps, 1)


@pytest.mark.slow  # 109,000 calls, about a quarter of an hour
@pytest.mark.parametrize("tier", TIERS, ids=str)
def test_and_so_for_a_hundred_days(tier: Tier) -> None:
    for seed in range(2, 101):
        with walker(tier) as made:
            walk(made, tier.steps, seed)


def test_a_day_has_over_a_thousand_calls() -> None:
    assert sum(tier.steps for tier in TIERS) == 1100


FAULTS: dict[str, tuple[Any, str, str, tuple[Tier, ...]]] = {
    # function, text, text with the fault, the tiers that find it
    "inputs of an older pass": (
        DeviceGraphs.at_once, "metadata.rows:\n            return None\n        replay",
        "metadata.rows:\n            return None\n        self._prepared = True; replay",
        (TIERS[0], TIERS[1]),
    ),
    "a state that is borrowed": (
        Engine.keep, "if self.result_is_borrowed", "if False", (TIERS[0],),
    ),
    "a pass that a capture disturbed": (
        DeviceGraphs._recording, "(state)\n            self._metadata = None",
        "(state)\n            pass", (TIERS[1],),
    ),
    "a state that a capture disturbed": (
        DeviceGraphs._recording, "buffers.hidden.copy_(state)", "pass", (TIERS[0],),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("fault", "tier"), [(f, t) for f in FAULTS for t in FAULTS[f][3]], ids=str)
def test_a_planted_fault_is_found_within_a_day(
    fault: str, tier: Tier, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, old, new, _ = FAULTS[fault]
    planted(monkeypatch, inspect.unwrap(function), old, new)
    with walker(tier) as made, pytest.raises(Mismatch):
        walk(made, tier.steps, 1)
