"""Draft passes by a plan: what a window hides, and what a head of few tokens computes."""

from typing import Any

import pytest
import torch
from conftest import make_method, random_lm, random_model

from skipbench.decode.loop import generate
from skipbench.draft_plan import SINKS, DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.metadata import AttentionMetadata, RotaryCache
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows

PROMPT = [3 + i * 7 % 50 for i in range(30)]


@pytest.mark.parametrize("engine", ["fused", "reference"])
def test_a_window_is_the_model_that_lacks_the_positions(engine: str) -> None:
    lm = random_lm("llama", engine)
    lm.allocate(64)
    lm.prefill(PROMPT)
    end, window = len(PROMPT), 6
    plan = DraftPlan(lm.layers, frozenset(range(2, lm.sublayers)), window=window)
    rows = TokenRows.chain(end, 1)
    found = lm.logits([5], rows, plan)
    everything = lm.logits([5], rows, DraftPlan.of(lm.layers, plan.skipped))
    hidden = slice(SINKS, end + 1 - window)
    kept = lm.cache.rows[0].clone()
    assert not torch.equal(found, everything)
    lm.cache.rows[0][hidden] = torch.randn_like(lm.cache.rows[0][hidden])
    assert torch.equal(lm.logits([5], rows, plan), found)  # nothing hidden is read
    lm.cache.rows[0].copy_(kept)
    for seen in (SINKS - 1, end + 1 - window):  # and all that is seen is
        lm.cache.rows[0][seen] += 1.0
        assert not torch.equal(lm.logits([5], rows, plan), found)
        lm.cache.rows[0].copy_(kept)


@pytest.mark.parametrize("engine", ["fused", FusedEngine], ids=["own kernels", "torch"])
def test_rows_in_a_window_see_what_they_see_one_by_one(engine: Any) -> None:
    """Several rows of one pass, the first of which the window hides nothing from."""
    lm, tokens = LM(random_model("llama"), engine), [5, 9, 2, 7]
    lm.allocate(64)
    lm.prefill(PROMPT)
    end = len(PROMPT)
    plan = DraftPlan(lm.layers, frozenset({3}), window=end - SINKS + 1)
    alone = [lm.logits([t], TokenRows.chain(end + n, 1), plan) for n, t in enumerate(tokens)]
    for draft_plan in (plan, plan.cheaper(window=plan.window + 9 if plan.window else None)):
        found = lm.logits(tokens, TokenRows.chain(end, 4), draft_plan)
        same = torch.isclose(found, torch.cat(alone), rtol=1e-4, atol=1e-5).all(-1)
        assert same.all() if draft_plan is plan else not same[1:].any()


def test_rows_that_passes_share_have_the_window_of_each_plan() -> None:
    lm = random_lm("llama", "fused")
    lm.allocate(64)
    lm.prefill(PROMPT)
    rows = TokenRows.chain(len(PROMPT), 1)
    shared = lm.metadata(rows)
    for window in (6, 9, None):
        plan = DraftPlan(lm.layers, window=window)
        assert torch.equal(lm.logits([5], shared, plan), lm.logits([5], rows, plan))


def test_a_window_hides_as_much_on_every_device() -> None:
    devices = [torch.device(name) for name in ("cpu", "meta")]
    tables = {device: RotaryCache({}, torch.float32, device, 64) for device in devices}
    rows = AttentionMetadata(TokenRows.chain(30, 3), tables[devices[0]], tables)
    there = rows.windowed(6).on(devices[1])
    assert there.draft_window == 6 and there.tables is tables[devices[1]]
    assert rows.on(devices[1]).draft_window is None


def test_a_wide_window_hides_nothing() -> None:
    lm = random_lm("llama", "fused")
    lm.allocate(64)
    lm.prefill(PROMPT)
    rows = TokenRows.chain(len(PROMPT), 1)
    wide = DraftPlan(lm.layers, window=len(PROMPT))
    assert torch.equal(lm.logits([5], rows, wide), lm.logits([5], rows))


def test_a_head_of_likely_tokens_has_their_logits_and_no_others() -> None:
    lm = random_lm("llama", "fused")
    lm.allocate(64)
    lm.prefill(PROMPT)
    rows, ids = TokenRows.chain(len(PROMPT), 1), torch.tensor([2, 5, 40])
    full = lm.logits([5], rows)
    few = lm.logits([5], rows, DraftPlan(lm.layers, head="likely"), likely=ids)
    torch.testing.assert_close(few[:, ids], full[:, ids])
    assert few.isfinite().sum() == len(ids)


@pytest.mark.parametrize(
    "options", [("kv_window=5",), ("head=likely",), ("kv_window=3", "tree=[3,2,1,1]")]
)
def test_tokens_stay_the_models_own(options: tuple[str, ...]) -> None:
    lm: LM = random_lm("llama", "fused")
    wanted = generate(lm, make_method("vanilla", layers=lm.layers), PROMPT, 24, frozenset())
    given = [f"method.{option}" for option in options]
    method = make_method("fixed", 'method.skip="mlp:1"', *given, layers=lm.layers)
    out = generate(lm, method, PROMPT, 24, frozenset())
    assert out.tokens == wanted.tokens
    assert str(method.skip) != "mlp:1"


@pytest.mark.parametrize("name", ["layerskip", "del"])
def test_states_that_verification_continues_from_are_the_full_models(name: str) -> None:
    with pytest.raises(SkipbenchError, match=r"kv_window=8.*wanted"):
        make_method(name, "method.kv_window=8")
