"""The autotuning of weight layouts: what is chosen, what is kept of it, and that every layout
computes the same.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import random_model

from skipbench.contrib.cpu import autotune as kernels
from skipbench.contrib.cpu import weights
from skipbench.contrib.cpu.autotune import (
    LayoutChoice,
    autotune,
    cache_file,
    choose,
    packing_unsupported,
    products,
    to_layout,
    tuned,
)
from skipbench.contrib.cpu.weights import LayoutWeights
from skipbench.lm.fused.weights import MIB, pass_bytes
from skipbench.lm.model import LM
from skipbench.lm.rows import TokenRows
from skipbench.profile.latency import part_bytes

SMALL = (64, 32, torch.float32, 1 << 14)  # a shape that is tuned in a moment
FAST_ONE = {"rows": [5.0, 9.0, 9.0], "columns": [2.0, 20.0, 20.0], "packed": [3.0, 4.0, 4.0]}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tuned(*SMALL)  # compiles where every test finds it
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def needs_packing(dtype: torch.dtype) -> None:
    fault = packing_unsupported(torch.randn(64, 32).to(dtype))
    if fault is not None:
        pytest.skip(f"no packed products of {dtype} here: {fault}")


def test_the_choice_is_the_cheapest_round_that_memory_allows() -> None:
    # Four one-row products and one of several: 4 * 2 + 4 with both copies, 4 * 3 + 4 packed alone.
    assert choose(FAST_ONE, lambda layouts: True) == LayoutChoice("columns", "packed")
    assert choose(FAST_ONE, lambda layouts: len(layouts) == 1) == LayoutChoice("packed", "packed")
    assert choose(FAST_ONE, lambda layouts: False) == LayoutChoice("rows", "rows")
    near = FAST_ONE | {"columns": [2.9, 20.0, 20.0]}  # 15.6 against 16: not worth a second copy
    assert choose(near, lambda layouts: True) == LayoutChoice("packed", "packed")
    assert (
        str(LayoutChoice("columns", "packed")) == "columns for one row, packed for several"
        and str(LayoutChoice("rows", "rows")) == "rows"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layout", ["rows", "columns", "packed"])
@pytest.mark.parametrize("biased", [False, True])
def test_every_layout_is_the_linear_function(layout: str, dtype: torch.dtype, biased: bool) -> None:
    if layout == "packed":
        needs_packing(dtype)
    torch.manual_seed(0)
    weight, bias = torch.randn(48, 40).to(dtype), torch.randn(48).to(dtype) if biased else None
    product, added = products(to_layout(weight, layout), bias)
    for rows in (1, 2, 9, 70):
        x, residual = torch.randn(rows, 40).to(dtype), torch.randn(rows, 48).to(dtype)
        wanted, before = (
            F.linear(x.double(), weight.double(), None if bias is None else bias.double()),
            residual.clone(),
        )
        near: dict[str, float] = (
            {"rtol": 0.02, "atol": 0.2} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
        )
        torch.testing.assert_close(product(x).double(), wanted, **near)
        torch.testing.assert_close(added(residual, x).double(), wanted + residual.double(), **near)
        assert torch.equal(residual, before), "the residual was overwritten"


def test_every_layout_is_tuned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    times, fault = tuned(*SMALL)
    assert {"rows", "columns"} <= set(times) and all(
        len(t) == len(kernels.ROWS) and min(t) > 0 for t in times.values()
    )
    assert ("packed" in times) == (fault is None)

    def again(*args: Any) -> Any:
        raise AssertionError("tuned again")

    monkeypatch.setattr(kernels, "autotune", again)
    assert tuned(*SMALL)[0] == times
    for other in ((65, 32, torch.float32), (64, 32, torch.bfloat16)):
        with pytest.raises(AssertionError, match="tuned again"):
            tuned(*other)
    for owner, name in ((torch, "get_num_threads"), (kernels, "cpu_name")):
        with monkeypatch.context() as patch, pytest.raises(AssertionError, match="tuned again"):
            patch.setattr(owner, name, lambda: "another")
            tuned(*SMALL)


def test_of_processes_that_tune_at_once_the_first_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layouts in one sweep could part where sums tie."""
    tune = kernels.autotune

    def slower(*args: Any) -> Any:
        monkeypatch.setattr(kernels, "autotune", tune)
        tuned(*args)  # another process, faster than this one
        return {name: [t + 1e9 for t in row] for name, row in tune(*args)[0].items()}, None

    monkeypatch.setattr(kernels, "autotune", slower)
    times, _ = tuned(*SMALL)
    assert max(max(row) for row in times.values()) < 1e9 and tuned(*SMALL)[0] == times


SHORT = '{"KEY": {"times": {"rows": [1.0]}, "fault": null}}'
NEGATIVE = '{"KEY": {"times": {"rows": [1, 2, -3.0], "columns": [1, 1, 1.0]}, "fault": null}}'


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"KEY": 1}', SHORT, NEGATIVE])
def test_a_broken_file_is_written_anew(text: str) -> None:
    tuned(*SMALL)
    sound = cache_file().read_text()
    key = next(iter(json.loads(sound)))
    cache_file().write_text(text.replace("KEY", key))
    times, _ = tuned(*SMALL)
    entry = json.loads(cache_file().read_text())[key]
    assert set(entry["times"]) == set(times) and min(map(min, times.values())) > 0


def test_a_file_that_cannot_be_written_costs_nothing_else(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert tuned(*SMALL)[0]


def test_other_entries_of_the_file_stay() -> None:
    cache_file().parent.mkdir(parents=True)
    other = {"of another version": {"times": {"tiles": [1.0]}, "fault": None}, "of another form": 1}
    cache_file().write_text(json.dumps(other))
    tuned(*SMALL)
    tuned(32, 32, torch.float32)
    stored = json.loads(cache_file().read_text())
    assert len(stored) == 4 and stored.items() >= other.items()


def test_a_private_operator_that_is_wrong_or_missing_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    needs_packing(torch.float32)
    right = kernels.products

    def wrong(weight: torch.Tensor, bias: torch.Tensor | None) -> Any:
        product, added = right(weight, bias)
        return (lambda x: product(x) * 1.001), added

    monkeypatch.setattr(kernels, "products", wrong)
    assert (
        packing_unsupported(torch.randn(64, 32))
        == "it does not agree with torch.nn.functional.linear"
    )
    monkeypatch.undo()

    def missing(weight: torch.Tensor, layout: str) -> torch.Tensor:
        raise AttributeError(
            "'_OpNamespace' 'mkldnn' object has no attribute '_reorder_linear_weight'"
        )

    monkeypatch.setattr(kernels, "to_layout", missing)
    fault = packing_unsupported(torch.randn(64, 32))
    assert fault is not None and "no attribute" in fault


def test_without_packing_the_engine_runs_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "packing_unsupported", lambda weight: "not built with oneDNN")
    lm = LM(random_model("llama"))
    assert any(
        "packed products are left out (not built with oneDNN)" in line for line in lm.notes()
    )
    assert lm.engine.kernels and not any("packed" in text for text in lm.engine.kernels.values())


@pytest.mark.parametrize(  # every family, and every choice on two
    ("choice", "family"),
    [
        (LayoutChoice("packed", "packed"), "llama"),
        (LayoutChoice("packed", "packed"), "mistral"),
        (LayoutChoice("columns", "packed"), "qwen2"),
        (LayoutChoice("columns", "packed"), "llama"),
        (LayoutChoice("columns", "columns"), "qwen3"),
        (LayoutChoice("columns", "columns"), "qwen2"),
        (LayoutChoice("rows", "columns"), "mistral"),
        (LayoutChoice("rows", "columns"), "qwen3"),
    ],
)
@pytest.mark.slow
def test_the_model_is_the_same_with_any_layout(
    choice: LayoutChoice, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so are the Hugging Face modules that lent their weights, which are stored and counted
    once unless the choice says twice.
    """
    needs_packing(torch.float32)
    monkeypatch.setattr(weights, "choose", lambda times, allowed: choice)
    plain = random_model(family)
    lm = LM(random_model(family))
    lm.allocate(64)
    tokens = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3]
    assert (
        lm.weight_bytes
        == LM(random_model(family), "reference").weight_bytes
        == pass_bytes(lm.model)
    )
    sizes = part_bytes(lm)
    assert lm.layers * (sizes["attention"] + sizes["mlp"]) + sizes["head"] == lm.weight_bytes
    with torch.inference_mode():
        wanted = plain(torch.tensor([tokens])).logits[0]
        torch.testing.assert_close(
            lm.model(torch.tensor([tokens])).logits[0], wanted, rtol=1e-3, atol=1e-4
        )
        lm.prefill(tokens[:4])
        for n, rows in ((4, 1), (5, 2), (7, 3)):
            logits = lm.logits(tokens[n : n + rows], TokenRows.chain(n, rows))
            torch.testing.assert_close(logits, wanted[n : n + rows], rtol=1e-3, atol=1e-4)
    q, up = lm.model.model.layers[0].self_attn.q_proj, lm.model.model.layers[0].mlp.up_proj
    assert isinstance(q, torch.nn.Linear) == (choice.layouts != ("packed",))
    if isinstance(q, torch.nn.Linear):
        assert q.weight.untyped_storage().nbytes() > q.weight.numel() * 4, (
            "a copy of its own instead of a part"
        )
        assert up.weight.untyped_storage().nbytes() == 2 * up.weight.numel() * 4


def test_second_copies_stay_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "tuned", lambda *args: (FAST_ONE, None))

    def second(spare_mib: int, keep: bool) -> LayoutChoice:
        made = LayoutWeights(spare_mib, 2 * MIB)
        return made.choose(torch.zeros(512, 512), 2, keep)

    assert second(2, keep=False) == LayoutChoice("columns", "packed")  # two weights of 1 MiB
    assert second(1, keep=False) == LayoutChoice("packed", "packed")
    # the table of an embedding stays beside both
    assert second(4, keep=True) == LayoutChoice("columns", "packed")
    assert second(2, keep=True) == LayoutChoice("packed", "packed")
    assert second(1, keep=True) == LayoutChoice("rows", "rows")
    made = LayoutWeights(3, 2 * MIB)  # MiB for all shapes together: the first takes 2 of them
    found = [made.choose(torch.zeros(512, inputs), 2, False) for inputs in (512, 511)]
    assert found == [LayoutChoice("columns", "packed"), LayoutChoice("packed", "packed")]


def test_missing_instructions_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    like = torch.zeros(1, dtype=torch.bfloat16)
    for flags, says in (
        ({"amx_bf16"}, None),
        ({"avx512_bf16"}, "AVX-512 bf16 instead"),
        ({"avx2"}, "float32 arithmetic"),
    ):
        monkeypatch.setattr(weights, "cpu_flags", lambda flags=flags: flags)
        lines = LayoutWeights(0, MIB).notes(like)
        assert (lines == []) if says is None else (says in lines[-1])
        assert LayoutWeights(0, MIB).notes(like.float()) == []


@pytest.mark.slow
def test_as_much_is_tuned_as_a_pass_of_the_model_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    laid: list[str] = []
    monkeypatch.setattr(
        kernels, "to_layout", lambda w, layout: (laid.append(layout), to_layout(w, layout))[1]
    )
    for amount, count in ((12 << 10, 3), (1 << 10, 1), (10**9, kernels.MOST_WEIGHTS)):
        laid.clear()
        autotune(32, 32, torch.float32, amount)
        assert laid.count("rows") == laid.count("columns") == count
    tuned(32, 32, torch.float32, 4 << 20)
    tuned(32, 32, torch.float32, 8 << 20)
    assert len(json.loads(cache_file().read_text())) == 2


@pytest.mark.slow
def test_a_part_of_a_large_weight_is_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: set[tuple[int, ...]] = set()

    def spy(weight: torch.Tensor, layout: str) -> torch.Tensor:
        seen.add(tuple(weight.shape))
        return to_layout(weight, layout)

    monkeypatch.setattr(kernels, "to_layout", spy)
    monkeypatch.setattr(kernels, "PART_BYTES", 32 * 4 * 24)
    autotune(1000, 32, torch.float32)
    assert seen == {(24, 32)}
