"""Logits in float32 arithmetic, and how a divergence of low precision is judged by them."""

import pytest
import torch
from conftest import FAMILIES, random_lm, random_model

from skipbench.bench.cell import TIE_ULPS, _compare
from skipbench.lm.model import LM
from skipbench.lm.wide import wide_logits
from skipbench.runs.record import Arm, Seconds

TEXT = [5, 17, 3, 44, 9, 28, 51, 2, 13, 40, 6, 33]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ["modules", "lean"])
@torch.inference_mode()
def test_they_are_the_models_own_in_float32(family: str, engine: str) -> None:
    lm = random_lm(family, engine)
    torch.testing.assert_close(wide_logits(lm.model, TEXT), lm.prefill(TEXT)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_of_bfloat16_they_are_the_same_weights_without_its_rounding(family: str) -> None:
    rounded = random_model(family).to(torch.bfloat16)
    exact = LM(random_model(family).to(torch.bfloat16).float(), "modules")
    exact.allocate(64)
    lm = LM(rounded, "lean")  # whose weights may be packed
    lm.allocate(64)
    found = wide_logits(lm.model, TEXT)
    assert found is not None and found.dtype == torch.float32
    wanted = exact.prefill(TEXT)[0]
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max()))
    low = lm.prefill(TEXT)[0].float()
    assert float((found - wanted).abs().max()) < 0.5 * float((low - wanted).abs().max())


def arm(tokens: list[int]) -> Arm:
    return Arm(tokens, [], Seconds(0.0, 0.0, 0.0, 0.0, 0.0), "length")


@torch.inference_mode()
def test_a_gap_within_two_ulp_is_a_tie_and_a_wider_one_a_divergence() -> None:
    lm = LM(random_model("llama").to(torch.bfloat16), "lean")
    lm.allocate(64)
    logits = wide_logits(lm.model, TEXT)
    assert logits is not None
    order = logits.argsort(descending=True).tolist()
    ulp = torch.finfo(torch.bfloat16).eps * float(logits.abs().max())
    seen = set()
    for other in order[1:]:
        kind, at = _compare(lm, TEXT[:-2], arm([*TEXT[-2:], order[0]]), arm([*TEXT[-2:], other]), greedy=True)
        gap = float(logits[order[0]] - logits[other])
        assert at is not None and (at.position, at.logit_gap) == (2, pytest.approx(gap, abs=1e-5))
        assert kind == ("tie" if gap <= TIE_ULPS * ulp else "diverged")
        seen.add(kind)
    assert "diverged" in seen
    assert _compare(lm, TEXT, arm([1, 2]), arm([1, 2]), greedy=True) == ("identical", None)
