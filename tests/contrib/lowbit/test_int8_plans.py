"""Draft passes in 8 bits: they are the model of rounded weights over the shared cache,
and leave verification as it is.
"""

import pytest
import torch
from conftest import random_lm, random_model

from skipbench.contrib.lowbit.int8 import Int8Weight, int8_kernel, quantized_rows
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

PROMPT = [3 + i * 7 % 50 for i in range(30)]
PLANS = ["int8", "int8;attn:0;mlp:1"]
FAMILIES = ["llama", "qwen2"]  # the second has biases


def prefilled(
    family: str, dtype: torch.dtype = torch.float32, strict: bool = False, engine: str = "fused"
) -> LM:
    lm = LM(random_model(family).to(dtype), engine, strict)
    lm.allocate(64)
    lm.prefill(PROMPT)
    return lm


def rounded(lm: LM) -> LM:
    """The model with its layers' and its head's weights rounded."""

    def fake_quantized(module: torch.nn.Module) -> None:
        for name, weight in module.named_parameters():
            if name.endswith("weight") and weight.ndim == 2:
                scale, integers = quantized_rows(weight.detach())
                weight.data = integers * scale[:, None]

    fake_quantized(lm.model.model.layers)
    head = lm.model.lm_head
    head.weight = torch.nn.Parameter(head.weight.detach().clone())
    fake_quantized(head)
    return lm


@pytest.mark.parametrize("text", PLANS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_is_the_model_of_rounded_weights(family: str, text: str) -> None:
    lm, other = prefilled(family), prefilled(family, engine="reference")
    plan = DraftPlan.parse(text, lm.layers)
    full = DraftPlan(plan.layers, plan.skipped)
    rounded(other)
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
    plan = DraftPlan.parse("int8", lm.layers)
    for step, token in enumerate(tokens):
        lm.logits([token], TokenRows.chain(30 + step, 1), plan)
    assert not torch.equal(lm.cache.rows[1][:34], kept[1]), "the draft wrote nowhere"
    assert torch.equal(lm.score(tokens, rows), wanted)
    assert all(torch.equal(layer[:34], k) for layer, k in zip(lm.cache.rows, kept, strict=True))


def test_a_copy_is_made_once_and_its_size_is_said() -> None:
    lm = prefilled("llama")
    assert lm.engine.variant_bytes() == 0 and not any("8 bits" in note for note in lm.notes())
    plan, hidden = DraftPlan(lm.layers, variant="int8"), lm.embed([5])
    heads = [lm.head(hidden, plan) for _ in range(2)]
    head = Int8Weight(lm.model.lm_head.weight.detach(), None).nbytes
    assert torch.equal(*heads) and lm.engine.variant_bytes() == head
    lm.logits([5], TokenRows.chain(30, 1), plan)
    made = [lm.engine.variant("int8").sublayers for _ in range(2)]
    assert made[0] is made[1] and lm.engine.variant_bytes() > head
    assert any("a copy of weights in 8 bits for drafts takes" in note for note in lm.notes())
    slow = any("no faster" in note for note in lm.notes())
    assert slow == (int8_kernel()[0] is None)


def test_an_engine_without_products_of_8_bits_says_so() -> None:
    lm = random_lm("llama", "reference")
    plan = DraftPlan(lm.layers, variant="int8")
    with pytest.raises(SkipbenchError, match=r"engine=reference has no products of int8; use"):
        lm.logits([5], TokenRows.chain(0, 1), plan)
