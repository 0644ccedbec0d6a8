"""Draft passes in 8 and in 4 bits: they are the model of rounded weights over the shared cache, and
leave verification as it is.
"""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import DEVICE, NEEDS_GPU, ON_GPU, make_method, random_lm, random_model

from skipbench.bench import memory
from skipbench.bench.load import preflight
from skipbench.bench.memory import GIB, MARGIN, needed_bytes
from skipbench.config.compose import compose
from skipbench.contrib.lowbit.int4 import GROUPS, group_of, int4_fault, quantized_groups
from skipbench.contrib.lowbit.int4 import rounded as rounded_groups
from skipbench.contrib.lowbit.int8 import quantized_rows
from skipbench.contrib.lowbit.stop_by_price import IDLE, ByPrice
from skipbench.decode.draft import State
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.runs.cell import Cell

PROMPT = [3 + i * 7 % 50 for i in range(30)]


def prefilled(
    family: str, dtype: torch.dtype = torch.float32, strict: bool = False, engine: str = "fused"
) -> LM:
    lm = LM(random_model(family).to(dtype), engine, strict)
    lm.allocate(64)
    lm.prefill(PROMPT)
    return lm


def round_weights(lm: LM, variant: str) -> None:
    """Those of all sub-layers and the head, but weights without groups in 4 bits."""
    head = lm.model.lm_head
    head.weight = torch.nn.Parameter(head.weight.detach().clone())  # it may be the embedding's
    for weight in (*lm.model.model.layers.parameters(), head.weight):
        if weight.ndim == 2 and variant == "int8":
            scale, integers = quantized_rows(weight.detach())
            weight.data = integers * scale[:, None]
        elif weight.ndim == 2 and (group := group_of(weight)):
            weight.data = rounded_groups(weight.detach(), group)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("llama", "int8"),
        ("qwen2", "int8;attn:0;mlp:1"),  # it has biases
        ("qwen2", "int4"),
        ("llama", "int4;attn:0;mlp:1"),
    ],
)
def test_a_draft_is_the_model_of_rounded_weights(family: str, text: str) -> None:
    lm, other = prefilled(family), prefilled(family, engine="reference")
    plan = DraftPlan.parse(text, lm.layers)
    full = DraftPlan(plan.layers, plan.skipped)
    round_weights(other, plan.variant)
    for rows in (TokenRows.chain(30, 1), TokenRows.tree(30, (-1, 0, 0, 1, 2))):
        tokens = PROMPT[: rows.rows]
        found, wanted = lm.logits(tokens, rows, plan), other.logits(tokens, rows, full)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
        assert torch.equal(found, lm.logits(tokens, rows, plan)), "not deterministic"
        for layer, right in zip(lm.cache.rows, other.cache.rows, strict=True):
            torch.testing.assert_close(layer[:35], right[:35], rtol=1e-3, atol=1e-3)
        unlike = lm.logits(tokens, rows, full)
        assert (found - unlike).abs().max() > 3 * (found - wanted).abs().max()
    told, bits = " ".join(lm.notes()), plan.variant[-1]
    assert f"a copy of weights in {bits} bits for drafts takes" in told
    assert ("no faster" in told) == (not lm.engine.fast(plan.variant))
    assert ("read 5 weights as they are" in told) == (bits == "4")  # 48 inputs, and the head's 61


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("group", GROUPS)
def test_weights_in_4_bits_are_those_of_torchs_format(group: int, dtype: torch.dtype) -> None:
    """By its kernel for a CPU, which reads the same numbers, scales and zeros."""
    torch.manual_seed(0)
    weight, x = torch.randn(32, 3 * group).to(dtype), torch.randn(3, 3 * group).to(dtype)
    weight[3], weight[5, :group] = 0, 1.5
    made, near = rounded_groups(weight, group), weight.float().unflatten(1, (-1, group))
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


@pytest.mark.gpu
@NEEDS_GPU
@pytest.mark.parametrize("engine", ["fused", "cuda_graphs"])
@torch.inference_mode()
def test_the_kernel_of_a_gpu_is_captured_and_deterministic(engine: str) -> None:
    """Near the product of the rounded weights, and the same bits at each replay."""
    lm = LM(random_model("llama", 64).to(DEVICE, torch.bfloat16), engine)
    lm.allocate(100)
    assert not ON_GPU or (lm.engine.fast("int4") and int4_fault(lm.embed([0])) is None)
    plan = DraftPlan.parse("int4", lm.layers)
    lm.prefill(PROMPT)
    for rows in (1, 4):
        chain, tokens = TokenRows.chain(30, rows), [5, 6, 7, 8][:rows]
        each = [lm.logits(tokens, chain, plan) for _ in range(20)]
        assert all(torch.equal(one, each[0]) for one in each)
    assert not (ON_GPU and any("4 bits" in n and "no faster" in n for n in lm.notes()))


def lengths_by_price(row_prices: list[float], right: bool, rounds: int = 200) -> list[int]:
    """Draft lengths where a step costs half a pass, and all drafted tokens are right, or none."""
    rule, found = ByPrice(row_prices=row_prices), list[int]()
    rule.step, rule.prices = 0.5, rule.prices_at(State(None, [3]), rule.max_steps + 1)
    for _ in range(rounds):
        limit = rule.begin_draft()
        steps = next((n for n in range(1, limit) if rule.ends(0.9)), limit)
        found.append(steps)
        rule.update(steps if right else 0, steps)
    return found


def test_a_draft_is_as_long_as_its_price_allows() -> None:
    flat, steep = [1, 1, 1, 1, 1, 1], [1, 1.6, 2.8, 5.2, 10, 20]
    assert lengths_by_price(flat, right=True)[-1] > 12
    assert set(lengths_by_price(steep, right=True)[20:]) == {0, 1}  # no token saves its own row
    wrong = lengths_by_price(flat, right=False)
    assert wrong[-IDLE:].count(1) == 1 and wrong[-IDLE:].count(0) == IDLE - 1  # and tries again


def test_latencies_that_knapspec_is_given_price_its_drafts_too() -> None:
    """An MLP of 1 s and attention of 3 s, whatever this machine measures."""
    given = "method.latency=[1,0,3]", "method.stop.row_prices=[1,1,1,1,1,1]"
    method: Any = make_method("knapspec", "stop@method.stop=price", *given)
    assert not method.needs_latency
    lm = random_lm("llama", "fused")
    lm.allocate(64)
    lm.prefill([3, 1, 4])
    state = State(lm, [3, 1, 4, 1], None, 8)
    method.begin(state)
    method.skip = method.plan([0, 2])  # two of four attentions
    method.propose(state, 4)
    assert method.stop.step == (2 * 3 + 4 * 1) / (4 * 3 + 4 * 1)


def test_a_copy_in_8_bits_counts_in_the_memory_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A byte per weight, the head's among them, before weights are read; not without drafts."""
    words = ["model=llama2-7b", "limit=1", f"results={tmp_path}"]
    config = compose([*words, "method=int8", "dataset.max_new_tokens=64"])
    shape = config.model.architecture
    assert shape is not None
    exact = sum(needed_bytes(config.model, 64)) + MARGIN
    monkeypatch.setattr(memory, "free_bytes", lambda device: exact + shape.parameters - GIB)
    with pytest.raises(SkipbenchError, match=r"needs 19\.9 GiB"):
        preflight(Cell(config), held=True)
    monkeypatch.setattr(memory, "free_bytes", lambda device: exact + GIB)
    idle = compose(["method=auto", "method.explore=0"]).method.factory()
    assert not idle(layers=32).variant
