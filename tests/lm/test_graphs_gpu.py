"""`engine=cuda_graphs` on a GPU: what was captured computes what fused computes, at every length,
and without waiting in a draft.
"""

from typing import Any

import pytest
import test_graphs
import torch
from conftest import DEVICE, NEEDS_GPU, ON_GPU, host_waits, make_method, random_model
from test_graphs import METHODS, PROMPT, PROMPTS
from test_graphs import short_buckets as short_buckets  # a fixture

from skipbench.decode.draft import State
from skipbench.decode.loop import generate
from skipbench.decode.sampling import Sampler
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.skipset import fixed_set

pytestmark = [pytest.mark.gpu, NEEDS_GPU, pytest.mark.usefixtures("short_buckets")]
LENGTH = 100 if ON_GPU else 20  # of a text


def on_gpu(family: str, engine: Any, dtype: torch.dtype = torch.float32, capacity: int = 300) -> LM:
    lm = LM(random_model(family).to(DEVICE, dtype), engine)
    lm.allocate(capacity)
    assert lm.engine.name == engine, lm.notes()
    return lm


@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_tokens_are_those_of_fused_at_every_length(family: str) -> None:
    lm, fused = on_gpu(family, "cuda_graphs"), on_gpu(family, "fused")
    wanted = generate(fused, make_method("vanilla"), PROMPTS[family], LENGTH).tokens
    for name, overrides in METHODS.items():
        found = generate(lm, make_method(name, *overrides), PROMPTS[family], LENGTH).tokens
        assert found == wanted, name


@torch.inference_mode()
def test_half_precision_logits_are_near_those_of_the_fused_engine() -> None:
    """What differs between two kernels is a few units of the last place; a wrong length differs by
    the size of the logits.
    """
    lm, fused = (on_gpu("llama", name, torch.bfloat16) for name in ("cuda_graphs", "fused"))
    for start in (20, 33, 70, 130):
        chains = TokenRows.chain(start, 1), TokenRows.chain(start, 9)
        for rows in (*chains, TokenRows.tree(start, (-1, 0, 0, 1))):
            for m in (lm, fused):
                m.prefill([7 * i % 61 for i in range(start)])
            found, wanted = (m.logits([5] * rows.rows, rows).float() for m in (lm, fused))
            assert float((found - wanted).norm()) <= 0.05 * float(wanted.norm())


@pytest.mark.parametrize("threshold", [0.0, 1e-9])
@torch.inference_mode()
def test_a_draft_chain_stays_on_the_device(threshold: float) -> None:
    """The drafted tokens stay on the device; with a threshold the host waits for an event a step,
    which torch does not count as a synchronisation.
    """
    lm = on_gpu("llama", "cuda_graphs")
    method = FixedSet("chain", DraftPlan.parse("attn:1;mlp:2", 4), Fixed(6, threshold))
    state = State(lm, PROMPT, Sampler(), 64, frozenset())
    method.begin(state)
    lm.prefill(PROMPT[:-1])
    method.propose(state, 6)  # records
    assert host_waits(lambda: method.propose(state, 6))[1] == 0


@torch.inference_mode()
def test_new_sets_record_nothing_and_long_texts_allocate_nothing() -> None:
    lm = on_gpu("llama", "cuda_graphs")
    method = make_method("uniform", "method.stop.threshold=0")
    for _ in range(2):  # a capture empties the allocator, so the text after it allocates anew
        generate(lm, method, PROMPT, LENGTH)
    known = set(test_graphs.captured(lm))
    for seed in range(5):
        lm.logits([5], TokenRows.chain(30, 1), fixed_set("random", 4, 0.5, seed))
    before = torch.cuda.memory_stats()["num_device_alloc"] if ON_GPU else 0
    for _ in range(5):
        generate(lm, method, PROMPT, LENGTH)
    assert not ON_GPU or torch.cuda.memory_stats()["num_device_alloc"] == before
    assert set(test_graphs.captured(lm)) == known
