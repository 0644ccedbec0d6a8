"""Weights in 4 bits: torch's format, drafts of the rounded model, and the kernel on a GPU."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from common import random_model
from test_int8_plans import prefilled

from skipbench.contrib.lowbit.int4 import GROUPS, group_of, int4_fault, quantized_groups, rounded
from skipbench.draft_plan import DraftPlan
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.cuda_graphs.engine import CudaGraphsEngine
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

PLANS = ["int4", "int4;attn:0;mlp:1"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", GROUPS)
def test_rounded_weights_are_those_of_torchs_format(group: int, dtype: torch.dtype) -> None:
    """By its kernel for a CPU, which reads the same numbers, scales and zeros."""
    torch.manual_seed(0)
    weight, x = torch.randn(32, 3 * group).to(dtype), torch.randn(3, 3 * group).to(dtype)
    weight[3], weight[5, :group] = 0, 1.5
    made, near = rounded(weight, group), weight.float().unflatten(1, (-1, group))
    off = (made.float() - weight.float()).unflatten(1, (-1, group)).abs().amax(2)
    reach = near.amax(2) - near.amin(2)
    assert (off <= reach / 30 + near.abs().amax(2) / 100).all()  # half a step, and bfloat16's
    assert made.dtype == dtype and (made[3].abs() < 1e-4).all()
    ((scales, numbers),) = quantized_groups(weight, group)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(numbers.flatten(1).int(), 2)
    given = packed, group, scales.transpose(0, 1).contiguous().to(dtype)
    found = torch.ops.aten._weight_int4pack_mm_for_cpu(x, *given)
    wanted = F.linear(x, made)
    assert float((found - wanted).norm()) < 0.01 * float(wanted.norm())


def test_shapes_that_have_groups() -> None:
    shapes = (8, 4096), (960, 576), (64, 96), (64, 100), (61, 128)
    assert [group_of(torch.empty(shape)) for shape in shapes] == [128, 64, 32, None, None]


def copied(lm: LM) -> LM:
    """The model with its layers' weights rounded."""
    for weight in lm.model.model.layers.parameters():
        if weight.ndim == 2 and (group := group_of(weight)):
            weight.data = rounded(weight.detach(), group)
    return lm


@pytest.mark.parametrize("text", PLANS)
def test_a_draft_is_the_model_of_rounded_weights(text: str) -> None:
    """Products of 48 inputs, and the head of 61 outputs, stay as they are, as a note says."""
    lm, other = prefilled("qwen2"), prefilled("qwen2", engine="reference")
    plan = DraftPlan.parse(text, lm.layers)
    full = DraftPlan(plan.layers, plan.skipped)
    copied(other)
    assert not lm.engine.fast("int4")
    for rows in (TokenRows.chain(30, 1), TokenRows.tree(30, (-1, 0, 0, 1, 2))):
        tokens = [3 + i * 7 % 50 for i in range(rows.rows)]
        found, wanted = lm.logits(tokens, rows, plan), other.logits(tokens, rows, full)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        assert torch.equal(found, lm.logits(tokens, rows, plan)), "not deterministic"
        unlike = lm.logits(tokens, rows, full)
        assert (found - unlike).abs().max() > 3 * (found - wanted).abs().max()
    told = " ".join(lm.notes())
    assert "a copy of weights in 4 bits for drafts takes" in told and "no faster" in told
    assert "read 5 weights as they are" in told
    assert lm.engine.variant_bytes() > 0


def test_graphs_replay_a_draft_of_fused() -> None:
    graphs: Any = partial(CudaGraphsEngine, capture=EagerCapture)
    lms = [prefilled("llama", engine=engine) for engine in (graphs, "fused")]
    for text in ("int4", "int4;mlp:1"):
        plan = DraftPlan.parse(text, 4)
        found, wanted = (lm.logits([5], TokenRows.chain(30, 1), plan) for lm in lms)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    assert lms[0].engine.name == "cuda_graphs" and lms[0].engine.variant_bytes() > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is at hand")
@pytest.mark.parametrize("engine", ["fused", "cuda_graphs"])
@torch.inference_mode()
def test_the_kernel_of_a_gpu_is_captured_and_deterministic(engine: str) -> None:
    """Near the product of the rounded weights, and the same bits at each replay."""
    lm = LM(random_model("llama", 64).to("cuda", torch.bfloat16), engine)
    lm.allocate(100)
    assert lm.engine.fast("int4") and int4_fault(lm.embed([0])) is None
    plan = DraftPlan.parse("int4", lm.layers)
    lm.prefill([3 + i * 7 % 50 for i in range(30)])
    for rows in (1, 4):
        chain, tokens = TokenRows.chain(30, rows), [5, 6, 7, 8][:rows]
        each = [lm.logits(tokens, chain, plan) for _ in range(20)]
        assert all(torch.equal(one, each[0]) for one in each)
    assert not any("4 bits" in note and "no faster" in note for note in lm.notes())
