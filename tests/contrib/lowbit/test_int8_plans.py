"""Draft passes in 8 bits: they are the model of rounded weights over the shared cache,
and leave verification as it is.
"""

import pytest
import torch
from conftest import random_lm, random_model
from torch import Tensor

from skipbench.contrib.lowbit.int8 import Int8Weight, int8_kernel, quantized_rows
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

PROMPT = [3 + i * 7 % 50 for i in range(30)]
PLANS = ["int8:all;head:int8", "int8-attn:0;int8-mlp:1", "int8:all;attn:0;window:6", "head:int8"]
FAMILIES = ["llama", "qwen2"]  # the second has biases


def prefilled(
    family: str, dtype: torch.dtype = torch.float32, strict: bool = False, engine: str = "fused"
) -> LM:
    lm = LM(random_model(family).to(dtype), engine, strict)
    lm.allocate(64)
    lm.prefill(PROMPT)
    return lm


def rounded(lm: LM, plan: DraftPlan) -> LM:
    """The model with the weights that a plan reads in fewer bits rounded, one after another."""

    def fake_quantized(module: torch.nn.Module) -> None:
        for name, weight in module.named_parameters():
            if name.endswith("weight") and weight.ndim == 2:
                scale, integers = quantized_rows(weight.detach())
                weight.data = integers * scale[:, None]

    layers = lm.model.model.layers
    for s, _ in plan.changed:
        fake_quantized(layers[s // 2].mlp if s % 2 else layers[s // 2].self_attn)
    if plan.head == "int8":
        head = lm.model.lm_head
        head.weight = torch.nn.Parameter(head.weight.detach().clone())
        fake_quantized(head)
    return lm


@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_is_the_model_of_rounded_weights(family: str, text: str) -> None:
    lm, other = prefilled(family), prefilled(family, engine="reference")
    plan = DraftPlan.parse(text, lm.layers)
    full = DraftPlan(plan.layers, plan.skipped, window=plan.window)
    rounded(other, plan)
    for rows in (TokenRows.chain(30, 1), TokenRows.tree(30, (-1, 0, 0, 1, 2))):
        tokens = PROMPT[: rows.rows]
        found, wanted = lm.logits(tokens, rows, plan), other.logits(tokens, rows, full)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        for layer, right in zip(lm.cache.rows, other.cache.rows, strict=True):
            torch.testing.assert_close(layer[:35], right[:35], rtol=1e-3, atol=1e-3)
        unlike = lm.logits(tokens, rows, full)
        assert (found - unlike).abs().max() > 3 * (found - wanted).abs().max()


@pytest.mark.parametrize("strict", [False, True])
def test_verification_has_the_same_bits_after_a_draft_in_8_bits(strict: bool) -> None:
    lm = prefilled("llama", torch.bfloat16, strict)
    rows, tokens = TokenRows.chain(30, 4).verified(), [5, 6, 7, 8]
    wanted, kept = lm.score(tokens, rows), [layer[:34].clone() for layer in lm.cache.rows]
    plan = DraftPlan.parse("int8:all;head:int8;window:6", lm.layers)
    for step, token in enumerate(tokens):
        lm.logits([token], TokenRows.chain(30 + step, 1), plan)
    assert not torch.equal(lm.cache.rows[1][:34], kept[1]), "the draft wrote nowhere"
    assert torch.equal(lm.score(tokens, rows), wanted)
    assert all(torch.equal(layer[:34], k) for layer, k in zip(lm.cache.rows, kept, strict=True))


def test_a_copy_is_made_once_and_its_size_is_said() -> None:
    lm = prefilled("llama")
    assert lm.engine.variant_bytes() == 0 and not any("8 bits" in note for note in lm.notes())
    lm.logits([5], TokenRows.chain(30, 1), DraftPlan.parse("int8-mlp:0", lm.layers))
    first = lm.engine.variant_bytes()
    hidden = lm.embed([5])
    heads = [lm.head(hidden, DraftPlan.parse("head:int8", lm.layers)) for _ in range(2)]
    made = [lm.engine.variant("int8").sublayers for _ in range(2)]
    assert torch.equal(*heads) and made[0] is made[1]
    head = Int8Weight(lm.model.lm_head.weight.detach(), None).nbytes
    assert first > 0 and lm.engine.variant_bytes() == first + head
    assert any("a copy of weights in 8 bits for drafts takes" in note for note in lm.notes())
    slow = any("no faster" in note for note in lm.notes())
    assert slow == (int8_kernel()[0] is None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_head_of_likely_tokens_is_a_copy_of_its_rows(dtype: torch.dtype) -> None:
    lm = prefilled("llama", dtype)
    plan = DraftPlan.parse("head:likely", lm.layers)
    hidden = torch.randn(3, lm.config.hidden_size).to(dtype)
    full = lm.head(hidden)

    def check(ids: Tensor) -> None:
        found = lm.head(hidden, plan, ids)
        torch.testing.assert_close(found[:, ids], full[:, ids])
        found[:, ids] = float("-inf")
        assert (found == float("-inf")).all() and found.shape == full.shape

    ids = torch.tensor([1, 7, 40])
    check(ids)
    made = lm.engine._likely
    check(ids)
    assert lm.engine._likely is made, "a copy per call"
    check(torch.tensor([0, 2]))


def test_an_engine_without_products_of_8_bits_says_so() -> None:
    lm = random_lm("llama", "reference")
    plan = DraftPlan.parse("int8:all", lm.layers)
    with pytest.raises(SkipbenchError, match=r"engine=reference has no products of int8; use"):
        lm.logits([5], TokenRows.chain(0, 1), plan)
