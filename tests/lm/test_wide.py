"""Logits in float32 arithmetic, and how a divergence of low precision is judged by them."""

import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import FAMILIES, random_lm, random_model
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("engine", ["reference", "fused"])
@torch.inference_mode()
def test_they_are_the_models_own_in_float32(family: str, engine: str) -> None:
    lm = random_lm(family, engine)
    torch.testing.assert_close(
        float32_logits(lm.model, TEXT), lm.prefill(TEXT), rtol=1e-4, atol=1e-4
    )
    rows = torch.cat([lm.prefill(TEXT[:end]) for end in (10, 11, 12)])
    torch.testing.assert_close(float32_logits(lm.model, TEXT, 3), rows, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
@torch.inference_mode()
def test_of_bfloat16_they_are_the_same_weights_without_its_rounding(family: str) -> None:
    rounded = random_model(family).to(torch.bfloat16)
    exact = LM(random_model(family).to(torch.bfloat16).float(), "reference")
    exact.allocate(64)
    lm = LM(rounded, "fused")  # whose weights may be packed
    lm.allocate(64)
    found = float32_logits(lm.model, TEXT)
    assert found is not None and found.dtype == torch.float32
    wanted = exact.prefill(TEXT)
    torch.testing.assert_close(found, wanted, rtol=1e-2, atol=1e-2 * float(wanted.abs().max()))
    low = lm.prefill(TEXT).float()
    assert float((found - wanted).abs().max()) < 0.5 * float((low - wanted).abs().max())


@torch.inference_mode()
def test_widened_weights_that_are_kept_change_nothing() -> None:
    model, kept = random_model("llama").to(torch.bfloat16), dict[int, torch.Tensor]()
    passes = [float32_logits(model, TEXT, 3, kept) for _ in range(2)]
    for logits in passes:
        torch.testing.assert_close(logits, float32_logits(model, TEXT, 3), rtol=0, atol=0)
    names = {id(p): p for p in model.parameters()}
    used = [name for name in kept if name in names]
    assert len(used) >= len(model.model.layers) * 9
    assert all(torch.equal(kept[name], names[name].float()) for name in used)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}


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


class Peak(TorchDispatchMode):
    """The most bytes that live at one time in the storages that operators made while this is on."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.most = 0
        self.known = weakref.WeakKeyDictionary[Any, int]()

    def _freed(self, size: int) -> None:
        self.live -= size

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for given in tree_leaves((args, kwargs)):
            if isinstance(given, torch.Tensor):
                self.known.setdefault(given.untyped_storage(), 0)
        out = func(*args, **(kwargs or {}))
        for made in tree_leaves(out):
            if isinstance(made, torch.Tensor) and made.untyped_storage() not in self.known:
                size = made.untyped_storage().nbytes()
                self.known[made.untyped_storage()] = size
                weakref.finalize(made.untyped_storage(), self._freed, size)
                self.live += size
                self.most = max(self.most, self.live)
        return out


class Calls(TorchFunctionMode):
    """The arguments of every call of scaled dot product attention."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[Any, dict[str, Any]]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.nn.functional.scaled_dot_product_attention:
            self.found.append((args, kwargs or {}))
        return func(*args, **(kwargs or {}))


@pytest.mark.slow
def test_memory_at_16k_tokens_and_64_heads() -> None:
    """The shapes of a 70B model, without numbers: the check has room beside the weights."""
    config = transformers.LlamaConfig(
        hidden_size=8192, intermediate_size=28672, num_hidden_layers=1, num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=1000, max_position_embeddings=16384, dtype="bfloat16",
    )  # fmt: skip
    with FakeTensorMode(), torch.no_grad():
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        with Peak() as whole:
            float32_logits(model, [1] * 16384)
        # at least the weights of one projection, and the hidden states
        assert 2**30 < whole.most < 2**31
        last, cached = torch.empty(1, 64, wide.CHUNK, 128), torch.empty(1, 8, 16384, 128)
        mask = torch.empty(1, 1, wide.CHUNK, 16384)
        # as a GPU does whose other kernels refuse
        with sdpa_kernel(SDPBackend.MATH), Peak() as held:
            wide._attend(None, last, cached, cached, mask, 0.1)
    assert 2**28 < held.most < 2**30  # scores of one call, some times


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


def refuses(model: Any, tokens: list[int]) -> Any:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 GiB")


@pytest.mark.parametrize(
    ("scored", "why"),
    [
        (refuses, "OutOfMemoryError: CUDA out of memory"),
        (lambda *_: torch.full((1, 2048), float("nan")), "not finite"),
    ],
)
def test_a_check_that_cannot_be_made_keeps_the_sample(
    scored: Callable[..., Any], why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Vanilla's last token is bent, so that the outputs part; then the check fails as it would for
    want of memory.
    """
    decode = bench_arm.ArmRunner.decode

    def bent(bench: bench_arm.ArmRunner, method: Any, *rest: Any) -> bench_arm.Decoded:
        decoded = decode(bench, method, *rest)
        if method.name == "vanilla":
            decoded.arm.tokens[-1] += 1
        return decoded

    monkeypatch.setattr(bench_arm.ArmRunner, "decode", bent)
    monkeypatch.setattr(LM, "float32_logits", scored)
    settings = [
        "method=uniform",
        "limit=2",
        "engine.warmup=0",
        "dataset.max_new_tokens=8",
        f"results={tmp_path}",
    ]
    assert run_cell(compose(settings))
    run = read_run(*run_folders(tmp_path))
    assert run.status.state == "done"
    assert [arm.lossless for arm in run.arms] == ["unchecked"] * 2
    for arm in run.arms:
        assert arm.divergence is not None and arm.divergence.logit_gap is None
        assert why in str(arm.divergence.error)
    assert run.measured.lossless.unchecked == 2
    assert lossless(run.measured).text == "0/2" and exceptions(run.measured) == ["2 unchecked"]
