"""Logits in float32 arithmetic, and how a divergence of low precision is judged by them."""

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import FAMILIES, random_lm, random_model, rest_slow
from described import DESCRIBED, described_lm, described_model
from torch import Tensor
from torch.overrides import TorchFunctionMode

from skipbench.bench import arm as bench_arm
from skipbench.bench.arm import _compare
from skipbench.config.compose import compose
from skipbench.decode.lossless import TIE_ULPS
from skipbench.experiments.row import run_cell
from skipbench.lm import float32 as wide
from skipbench.lm.float32 import float32_logits
from skipbench.lm.fused.engine import FusedEngine
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.report.values import exceptions, lossless
from skipbench.runs.reading import run_folders
from skipbench.runs.record import Arm, Seconds
from skipbench.runs.run import read_run

TEXT = [5, 17, 3, 44, 9, 28, 51, 2, 13, 40, 6, 33]


OTHERS = [*DESCRIBED, "stablelm", "phi"]
DAILY = (*FAMILIES, "gemma2", "granite", "phi", "phi3")


@pytest.mark.parametrize("family", rest_slow([*FAMILIES, *OTHERS], DAILY.__contains__))
@torch.inference_mode()
def test_they_are_the_models_own_in_float32_and_of_bfloat16_without_its_rounding(
    family: str,
) -> None:
    known = family in FAMILIES
    lm = random_lm(family, "fused") if known else described_lm(family)
    model = random_model(family) if known else described_model(family)
    rows = torch.cat([lm.prefill(TEXT[:end]) for end in (10, 11, 12)])
    for count in (1, 3):
        found = float32_logits(model, TEXT, count)
        torch.testing.assert_close(found, rows[-count:], rtol=1e-4, atol=1e-4)
    low = copy.deepcopy(model).to(torch.bfloat16)
    ids, rounded = torch.tensor([TEXT]), copy.deepcopy(low).float()
    coarse, wanted = (m(ids, use_cache=False).logits[0, -1:].float() for m in (low, rounded))
    low = LM(low, "fused").model if known else low  # whose weights may be packed
    before = {k: v.clone() for k, v in low.state_dict().items()}
    found = float32_logits(low, TEXT)
    assert found is not None and found.dtype == torch.float32
    assert all(torch.equal(before[k], v) for k, v in low.state_dict().items())
    assert float((found - wanted).abs().max()) < 0.5 * float((coarse - wanted).abs().max())


def arm(tokens: list[int]) -> Arm:
    return Arm(tokens, [], Seconds(0.0, 0.0, 0.0, 0.0, 0.0), "length")


@torch.inference_mode()
def test_a_gap_within_two_ulp_is_a_tie_and_a_wider_one_a_divergence() -> None:
    lm = LM(random_model("llama").to(torch.bfloat16), "fused")
    lm.allocate(64)
    found = float32_logits(lm.model, TEXT)
    assert found is not None
    logits = found[0]
    order = logits.argsort(descending=True).tolist()
    ulp = torch.finfo(torch.bfloat16).eps * float(logits.abs().max())
    seen = set()
    for other in order[1:]:
        kind, at = _compare(
            lm, TEXT[:-2], arm([*TEXT[-2:], order[0]]), arm([*TEXT[-2:], other]), greedy=True
        )
        gap = float(logits[order[0]] - logits[other])
        assert at is not None and (at.position, at.logit_gap) == (2, pytest.approx(gap, abs=1e-5))
        assert kind == ("tie" if gap <= TIE_ULPS * ulp else "diverged")
        seen.add(kind)
    assert "diverged" in seen
    assert _compare(lm, TEXT, arm([1, 2]), arm([1, 2]), greedy=True) == ("identical", None)


class Calls(TorchFunctionMode):
    """The arguments of every call of scaled dot product attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, dict[str, Any]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.found.append((args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", FAMILIES)
def test_chunks_change_nothing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(family)
    with torch.inference_mode():
        whole = float32_logits(model, TEXT)
        monkeypatch.setattr(wide, "CHUNK", 5)
        monkeypatch.setattr(wide, "HEAD_ROWS", 20)
        monkeypatch.setattr(wide, "SCORES", 2 * 4 * len(TEXT))  # two rows of 4 heads
        torch.testing.assert_close(float32_logits(model, TEXT), whole, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_no_mask_meets_grouped_heads(family: str) -> None:
    """On a GPU only the kernel that holds all scores and copies of all keys takes both."""
    model = random_model(family)
    lm = LM(model, FusedEngine)  # as on a GPU
    lm.allocate(64)
    storage = {rows.untyped_storage().data_ptr() for rows in lm.cache.rows}
    with torch.inference_mode(), Calls() as calls:
        lm.prefill(TEXT)
        prefilled = len(calls.found)
        lm.logits([3, 4, 5], TokenRows.chain(len(TEXT), 3).verified())
        lm.logits([3, 4, 5], TokenRows.tree(len(TEXT), (-1, 0, 0)).verified())
        verified = calls.found[prefilled:]
        # not copied
        assert all(key.untyped_storage().data_ptr() in storage for (_, key, *_), _ in verified)
        assert len(verified) == 2 * lm.layers
        float32_logits(model, TEXT)
    for args, more in calls.found:
        assert len(args) < 4 or args[3] is None or not more.get("enable_gqa"), (
            "a mask and grouped heads"
        )


def test_a_check_that_cannot_be_made_keeps_the_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vanilla's last token is bent, so that the outputs part; then the check of the first sample
    fails as it would for want of memory, and that of the second gives no number.
    """
    decode, samples = bench_arm.ArmRunner.decode, list[int]()

    def scored(*_: Any) -> Tensor:
        samples.append(1)
        if len(samples) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB")
        return torch.full((1, 2048), float("nan"))

    def bent(bench: bench_arm.ArmRunner, method: Any, *rest: Any) -> bench_arm.Decoded:
        decoded = decode(bench, method, *rest)
        if method.name == "vanilla":
            decoded.arm.tokens[-1] += 1
        return decoded

    monkeypatch.setattr(bench_arm.ArmRunner, "decode", bent)
    monkeypatch.setattr(LM, "float32_logits", scored)
    words = ["limit=2", "dataset.max_new_tokens=2", "engine.warmup=0", f"results={tmp_path}"]
    assert run_cell(compose(["method=uniform", *words]))
    run = read_run(*run_folders(tmp_path))
    assert run.status.state == "done"
    assert [arm.lossless for arm in run.arms] == ["unchecked"] * 2
    told = ("OutOfMemoryError: CUDA out of memory", "not finite")
    for arm, why in zip(run.arms, told, strict=True):
        assert arm.divergence is not None and arm.divergence.logit_gap is None
        assert why in str(arm.divergence.error)
    assert run.measured.lossless.unchecked == 2
    assert lossless(run.measured).text == "0/2" and exceptions(run.measured) == ["2 unchecked"]
