"""The sub-layers of a pass in one call of C: every bit that they have one by one."""

import pytest
import torch
from conftest import random_model
from torch import Tensor

from skipbench.contrib.cpu.engine import CpuEngine
from skipbench.contrib.cpu.few_rows import few_rows_kernel
from skipbench.contrib.cpu.native_pass import NativePass
from skipbench.draft_plan import DraftPlan
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

PROMPT = [41, 22, 24, 53, 42, 16, 9, 35, 44, 0, 29, 47]
START = len(PROMPT)
ROWS = {
    "one row": TokenRows.chain(START, 1),
    "a chain": TokenRows.chain(START, 5).verified(),
    "a tree": TokenRows.tree(START, (-1, 0, 0, 1, 2, 2)).verified(),
    "behind scratch": TokenRows.chain(START + 3, 1, context_len=START),
    "at the beginning": TokenRows.chain(0, 1),
}
PLANS = ("", "attn:0;mlp:1", "int8", "int8;attn:1")


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def lm(request: pytest.FixtureRequest) -> LM:
    if (fault := few_rows_kernel(request.param)[1]) is not None:
        pytest.skip(fault)
    made = LM(random_model("llama").to(request.param))
    made.allocate(40)
    return made


def passed(lm: LM, rows: TokenRows, plan: str) -> list[Tensor]:
    """Every state of a pass, its result without them, and the cache behind it."""
    lm.cache.clear(0)
    lm.prefill(PROMPT)
    chosen, tokens, states = DraftPlan.parse(plan, lm.layers), [*range(rows.rows)], list[Tensor]()
    found = lm.run(lm.embed(tokens), rows, chosen, hidden_states=states)
    again = lm.run(lm.embed(tokens), rows, chosen)
    return [*states, found, again, *(layer.clone() for layer in lm.cache.rows)]


@pytest.mark.parametrize("plan", PLANS)
def test_a_pass_has_every_bit_of_one_by_one(
    lm: LM, plan: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, call = [0], NativePass.__call__

    def counted(self: NativePass, *given: object) -> Tensor:
        calls[0] += 1
        return call(self, *given)  # type: ignore[arg-type]

    monkeypatch.setattr(NativePass, "__call__", counted)
    _ = lm.engine.variant("int8").sublayers
    at_once = {name: passed(lm, rows, plan) for name, rows in ROWS.items()}
    prompts = few_rows_kernel(lm.dtype)[0] == "amx"  # pass in one call, too
    assert calls[0] == (2 + prompts) * len(ROWS)
    lm.allocate(400)  # the cache moves
    moved = passed(lm, ROWS["a tree"], plan)
    monkeypatch.setattr(CpuEngine, "run", FusedEngine.run)
    for name, rows in ROWS.items():
        for found, wanted in zip(at_once[name], passed(lm, rows, plan), strict=True):
            assert torch.equal(found, wanted[: len(found)]), name  # the cache has grown
    assert all(map(torch.equal, moved, passed(lm, ROWS["a tree"], plan)))


@pytest.mark.parametrize("rows", [65, 384, 385, 500])
def test_the_rows_of_a_prompt_have_the_bits_of_one_by_one(lm: LM, rows: int) -> None:
    if few_rows_kernel(lm.dtype)[0] != "amx":
        pytest.skip("prompts of so many tokens are torch's")
    lm.allocate(rows)
    tokens = torch.randint(48, (rows,), generator=torch.Generator().manual_seed(0)).tolist()
    logits = lm.prefill(tokens)
    caches = [layer.clone() for layer in lm.cache.rows]
    lm.cache.clear(0)
    alone = [lm.logits([token], TokenRows.chain(at, 1)) for at, token in enumerate(tokens)]
    assert torch.equal(logits, alone[-1])
    assert all(map(torch.equal, caches, lm.cache.rows))
