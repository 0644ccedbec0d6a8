"""Triton kernels of `cuda_graphs.ops` against torch's operators, in Triton's interpreter or on a
GPU.
"""

from functools import partial

import contract
import pytest
import torch
from conftest import here, make_method, random_model
from described import made
from interpreted import DEVICE
from interpreted import kernels as kernels  # a fixture
from test_graphs import PROMPTS
from test_graphs import short_buckets as short_buckets  # a fixture
from torch import Tensor

from skipbench.decode.loop import generate
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs import on_cpu, ops
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.llama import rotated, silu_times
from skipbench.lm.model import LM
from skipbench.lm.proof import compare_rows
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet

pytestmark = pytest.mark.usefixtures("kernels")
TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}
"""Largest norm of a difference from float32 arithmetic, as a share: one rounding of an output."""
NO_NORMS = (None, None, 0.0, 0.0)


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape).to(DEVICE, dtype)


def error(found: Tensor, wanted: Tensor) -> float:
    assert found.isfinite().all()
    return float((found.float() - wanted.float()).norm() / wanted.float().norm())


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_silu_times(dtype: torch.dtype) -> None:
    gate_up = drawn(3, 2 * 1030, dtype=dtype)
    assert error(ops.silu_times(gate_up), silu_times(gate_up)) < TOLERANCES[dtype] / 2


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_rotate_and_write(dtype: torch.dtype, normed: bool) -> None:
    heads, kv, d = 6, 2, 12
    qkv, cos, sin = (drawn(3, n, d, dtype=dtype) for n in (heads + 2 * kv, 1, 1))
    cache, target = drawn(20, 2 * kv, d, dtype=dtype), torch.tensor([4, 9, 5], device=DEVICE)
    wanted, norms, own = cache.clone(), None, NO_NORMS
    if normed:
        weights = [drawn(d, dtype=dtype) for _ in range(2)]
        pairs = zip(weights, (1e-5, 1e-3), strict=True)
        norms = [partial(on_cpu.rms_norm, norm=w, eps=e) for w, e in pairs]
        own = (*weights, 1e-5, 1e-3)
    both = rotated(qkv, kv, norms, cos, sin)
    wanted[target] = torch.cat((both[:, heads:], qkv[:, heads + kv :]), 1)
    query = ops.rotate_and_write(qkv, cos, sin, target, cache, *own)
    assert max(error(query, both[:, :heads]), error(cache, wanted)) < TOLERANCES[dtype] / 2


@pytest.mark.slow  # a minute each in the interpreter
@torch.inference_mode()
@pytest.mark.parametrize("dtype", TOLERANCES)
def test_no_row_depends_on_those_beside_it(dtype: torch.dtype) -> None:
    """As tests/lm/test_strict_graphs.py, by the kernels themselves; the first context of two lies
    before the border of a part.
    """
    engine = partial(CudaGraphsEngine, capture=EagerCapture)
    model = made("llama", num_hidden_layers=1).to(DEVICE, dtype)
    lm = LM(model, engine)
    found = compare_rows(lm, 30, contexts=(57, 121))
    assert found.compared >= 30 and (found.differing, found.first) == (0, "")


@pytest.mark.slow
@torch.inference_mode()
def test_a_plans_logits_are_those_of_fused() -> None:
    """Skipped sub-layers and 8 bits in graphs, of which no more are captured."""
    engine = partial(CudaGraphsEngine, capture=EagerCapture)
    lms = [LM(random_model("llama").to(DEVICE), e) for e in (engine, "fused")]
    plan, *low = (DraftPlan.parse(p, 4) for p in here(("attn:1;mlp:2", "int8")))
    for lm in lms:
        lm.allocate(64)
        lm.prefill(PROMPTS["llama"] * 2)
    part, graphs = lms[0].engine.graphs[DEVICE], []  # type: ignore[attr-defined]  # as above
    for start, of in ((24, plan), (25, plan), (20, DraftPlan.of(4)), *((26, of) for of in low)):
        found, wanted = (lm.logits([5], TokenRows.chain(start, 1), of) for lm in lms)
        assert error(found, wanted) < 1e-4
        graphs.append(part.graphs)
    assert len(set(graphs[:3])) == 1  # those of a variant are captured at its first use


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mistral"])
def test_tokens_are_those_of_the_plain_model(family: str) -> None:
    """float32, rows of a chain and of a tree, over two buckets, and in Mistral with a window."""
    engine = partial(CudaGraphsEngine, capture=EagerCapture)
    lm = LM(random_model(family).to(DEVICE), engine)
    lm.allocate(100)
    prompt = PROMPTS[family] * 2
    wanted = contract.plain_greedy(lm.model, prompt, 10)
    tree = FixedSet("tree", DraftPlan.parse("attn:1;mlp:2", 4), Fixed(2, 0.0), (2, 2, 1, 1))
    for method in (make_method("vanilla"), tree):
        assert generate(lm, method, prompt, 10).tokens == wanted, method.name
