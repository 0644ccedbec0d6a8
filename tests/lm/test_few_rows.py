"""Our bfloat16 products: they are the linear function, a row has the same bits in any company, and
without a compiler torch's are used.
"""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import FAMILIES, random_model
from torch import Tensor

from skipbench.lm.cache import KVCache
from skipbench.lm.fused import weights
from skipbench.lm.fused.autotune import LayoutChoice, cache_file, choose, tuned
from skipbench.lm.fused.elementwise import native_norm, native_rotation, native_silu
from skipbench.lm.fused.few_rows import (
    FEW_ROWS,
    MOST_ROWS,
    few_rows_kernel,
    few_rows_products,
    functions,
)
from skipbench.lm.fused.native import UnavailableError, compiled, library
from skipbench.lm.fused.weights import MIB, Weight, Weights
from skipbench.lm.model import LM

SHAPES = [(33, 7), (1, 1), (2, 40), (31, 129), (64, 16), (100, 50), (576, 96)]
KERNELS = ["amx", "avx512"]


def kernel_or_skip(name: str | None = None) -> str:
    """A kernel that runs here, by default the one that is used."""
    try:
        found = functions()
    except UnavailableError as error:
        pytest.skip(f"no products of our own: {error}")
    if name is not None and name not in found:
        pytest.skip(f"the processor or the kernel has no {name}")
    return name or next(iter(found))


def forget() -> None:
    for known in (library, functions, few_rows_kernel):
        known.cache_clear()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine that has compiled nothing yet; gives its `PATH`, an empty folder."""
    kernel_or_skip()
    place = tmp_path / "bin"
    place.mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(place))
    forget()
    yield place
    forget()


def operands(inputs: int, outputs: int, rows: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weight, bias, x and a residual."""
    generator = torch.Generator().manual_seed(inputs * outputs)
    weight, bias, x, residual = (
        torch.randn(size, generator=generator).to(torch.bfloat16)
        for size in ((outputs, inputs), (outputs,), (rows, inputs), (rows, outputs))
    )
    return weight, bias, x, residual


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_linear_function_rounded_once(
    shape: tuple[int, int], biased: bool, kernel: str
) -> None:
    kernel_or_skip(kernel)
    weight, bias, x, residual = operands(*shape, 20)
    product, added = few_rows_products(weight, bias if biased else None, kernel)
    wanted = x.double() @ weight.double().t() + (bias.double() if biased else 0.0)
    in_float32 = 2e-7 * shape[0] * (x.double().abs() @ weight.double().abs().t() + 8.0)
    before = residual.clone()
    for rows in range(1, 21):
        for found, right in (
            (product(x[:rows]), wanted[:rows]),
            (added(residual[:rows], x[:rows]), wanted[:rows] + residual[:rows].double()),
        ):
            rounding = right.abs() * torch.finfo(torch.bfloat16).eps / 2
            assert ((found.double() - right).abs() <= rounding + in_float32[:rows]).all()
    assert torch.equal(residual, before), "the residual was overwritten"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_any_company(shape: tuple[int, int], kernel: str) -> None:
    kernel_or_skip(kernel)
    weight, bias, x, residual = operands(*shape, MOST_ROWS)
    product, added = few_rows_products(weight, bias, kernel)
    plain = torch.cat([product(row) for row in x.split(1)])
    summed = torch.cat([added(*pair) for pair in zip(residual.split(1), x.split(1), strict=True)])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for rows in (*range(1, 17), 40, MOST_ROWS):
                assert torch.equal(product(x[-rows:]), plain[-rows:])
                assert torch.equal(added(residual[:rows], x[:rows]), summed[:rows])
    finally:
        torch.set_num_threads(threads)


def test_rows_with_gaps_and_many_rows() -> None:
    kernel = kernel_or_skip()
    weight, bias, x, residual = operands(64, 48, MOST_ROWS + 6)
    product, added = few_rows_products(weight, bias, kernel)
    apart, held = torch.cat([x, x], 1)[:9, :64], torch.cat([residual, residual], 1)[:9, :48]
    assert not apart.is_contiguous() and torch.equal(product(apart), product(x[:9]))
    assert torch.equal(added(held, apart), added(residual[:9], x[:9]))
    wanted = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(product(x), wanted, rtol=0.02, atol=0.05)
    torch.testing.assert_close(added(residual, x), residual + wanted, rtol=0.02, atol=0.05)


def test_a_strict_product_of_more_rows_is_taken_in_parts() -> None:
    kernel_or_skip()
    weight, _, x, residual = operands(576, 96, MOST_ROWS + 9)
    product = Weight(weight, weight, None, LayoutChoice(FEW_ROWS, FEW_ROWS))
    each = range(len(x))
    assert torch.equal(product(x, 16), torch.cat([product(x[i : i + 1]) for i in each]))
    alone = [product.added(residual[i : i + 1], x[i : i + 1]) for i in each]
    assert torch.equal(product.added(residual, x, 16), torch.cat(alone))


@pytest.mark.parametrize("width", [576, 100, 7])
def test_the_norm_is_torchs_rounded_once(width: int) -> None:
    kernel_or_skip()
    weight, x = (
        torch.randn(n, generator=torch.Generator().manual_seed(0)) for n in (width, 40 * width)
    )
    weight, x = weight.to(torch.bfloat16), (3 * x).to(torch.bfloat16).view(40, width)
    norm = native_norm(weight, 1e-5)
    assert norm is not None and native_norm(weight.float(), 1e-5) is None
    found = norm(x)
    wanted = torch.nn.functional.rms_norm(x.double(), (width,), weight.double(), 1e-5)
    # half a unit of the last place, and what float32 adds before it is rounded
    assert ((found.double() - wanted).abs() <= wanted.abs() * (2**-8 + 1e-5)).all()
    assert all(
        torch.equal(norm(row), at) for row, at in zip(x.split(1), found.split(1), strict=True)
    )


@pytest.mark.parametrize(("heads", "kv", "d"), [(9, 3, 64), (4, 2, 8), (2, 2, 80)])
@pytest.mark.parametrize("rows", [1, 7])
def test_the_rotation_is_torchs_bit_for_bit(heads: int, kv: int, d: int, rows: int) -> None:
    kernel_or_skip()
    cache = KVCache([torch.device("cpu")], kv, d, torch.bfloat16)
    cache.allocate(20)
    generator = torch.Generator().manual_seed(0)
    qkv, cos, sin = (
        torch.randn(rows, n, d, generator=generator).to(torch.bfloat16)
        for n in (heads + 2 * kv, 1, 1)
    )
    rotate = native_rotation(cache, 0, qkv)
    assert rotate is not None and native_rotation(cache, 0, qkv.float()) is None
    query = rotate(qkv, cos, sin, 11)
    both = qkv[:, : heads + kv]
    both = torch.addcmul(both * cos, torch.roll(both, d // 2, -1), sin)
    wanted = torch.zeros_like(cache.rows[0])
    wanted[11 : 11 + rows] = torch.cat([both[:, heads:], qkv[:, heads + kv :]], 1)
    assert torch.equal(query, both[:, :heads]) and torch.equal(cache.rows[0], wanted)


@pytest.mark.parametrize("width", [16000, 100])
def test_silu_times_up_is_torchs_bit_for_bit(width: int) -> None:
    """For many finite bfloat16 numbers as gate, and with the greater width for nearly all."""
    kernel_or_skip()
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
    gate = every[every.isfinite()][: 4 * width].view(4, -1)
    up = torch.randn(gate.shape, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    silu_times = native_silu(gate)
    assert silu_times is not None and native_silu(gate.float()) is None
    found, wanted = silu_times(torch.cat([gate, up], 1)), torch.nn.functional.silu(gate) * up
    tiny = wanted.abs() < 2**-120  # ours takes what is smaller than a normal number for 0
    assert torch.equal(found[~tiny], wanted[~tiny])
    assert (found[tiny].abs() <= 2**-119).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_strict_holds_with_it(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The probe runs at load, bias and second copies included."""
    kernel_or_skip()
    monkeypatch.setattr(weights, "tuned", lambda *args: ({}, None))
    monkeypatch.setattr(weights, "choose", lambda *args: LayoutChoice(FEW_ROWS, FEW_ROWS))
    lm = LM(random_model(family).to(torch.bfloat16), strict=True)
    assert set(lm.engine.kernels.values()) == {FEW_ROWS}
    up = lm.model.model.layers[0].mlp.up_proj
    assert up.weight.untyped_storage().nbytes() == 2 * up.weight.numel() * 2, "not a part"


def test_it_is_chosen_for_any_number_of_rows_or_none() -> None:
    times = {"rows": [9.0, 9.0, 9.0], "packed": [8.0, 1.0, 1.0], FEW_ROWS: [1.0, 8.0, 8.0]}
    assert choose(times, lambda layouts: True) == LayoutChoice(FEW_ROWS, FEW_ROWS)
    times[FEW_ROWS] = [1.0, 80.0, 80.0]
    assert choose(times, lambda layouts: True) == LayoutChoice("packed", "packed")


def test_it_needs_no_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"rows": [9.0, 9.0, 9.0], "columns": [9.0, 9.0, 9.0], FEW_ROWS: [1.0, 1.0, 1.0]}
    monkeypatch.setattr(weights, "tuned", lambda *args: (times, None))
    for keep in (False, True):
        assert str(Weights(0, MIB)._choose(torch.zeros(512, 512), 2, keep)) == FEW_ROWS


def test_without_a_compiler_torch_multiplies_and_the_notes_say_so(bare: Path) -> None:
    like = torch.zeros(8, dtype=torch.bfloat16)
    notes = Weights(0, MIB).notes(like)
    assert any("no C compiler on the PATH; install gcc" in note for note in notes)
    assert not any("compiler" in note for note in Weights(0, MIB).notes(like.float()))
    assert native_norm(like, 1e-5) is None and FEW_ROWS not in tuned(64, 32, like.dtype, 1 << 14)[0]


def test_layouts_are_tuned_anew_where_it_becomes_available(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (64, 32, torch.bfloat16, 1 << 14)
    assert FEW_ROWS not in tuned(*shape)[0]
    in_float32 = tuned(64, 32, torch.float32, 1 << 14)[0]
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare.parent))
    forget()
    assert FEW_ROWS in tuned(*shape)[0]
    assert tuned(64, 32, torch.float32, 1 << 14)[0] == in_float32
    assert cache_file().read_text().count('"fault"') == 3


def test_a_compiler_that_fails_and_a_damaged_library_are_named(bare: Path) -> None:
    (bare / "gcc").write_text("#!/bin/sh\necho unrecognized option -mamx-tile >&2\nexit 1\n")
    (bare / "gcc").chmod(0o755)
    with pytest.raises(UnavailableError, match="gcc failed: unrecognized option -mamx-tile"):
        compiled()
    assert [p.name for p in (bare.parent / "skipbench").iterdir()] == []
    (bare / "gcc").write_text("#!/bin/sh\nwhile [ $1 != -o ]; do shift; done\necho no > $2\n")
    assert compiled().exists()
    kernel, fault = few_rows_kernel()
    assert kernel is None and fault is not None and f"; remove {compiled()}" in fault


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_library_that_others_may_have_written_is_not_loaded(bare: Path) -> None:
    (bare / "gcc").write_text("#!/bin/sh\nwhile [ $1 != -o ]; do shift; done\necho no > $2\n")
    (bare / "gcc").chmod(0o755)
    made = compiled()
    assert made.stat().st_mode & 0o777 == 0o700
    for owner, mode in ((1, 0o700), (0, 0o720), (0, 0o702)):
        os.chown(made, owner, 0)
        made.chmod(mode)
        with pytest.raises(UnavailableError, match="others may have written it"):
            compiled()


def test_a_folder_that_cannot_be_written_to_is_named(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "gcc").write_text("")
    (bare / "gcc").chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "gcc"))
    with pytest.raises(UnavailableError, match=r"make .*skipbench writable"):
        compiled()


def test_two_that_compile_at_once_leave_one_library(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a killed compilation left behind holds up nobody."""
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare.parent))
    left = bare.parent / "skipbench" / ".native-killed"
    left.mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: compiled(), range(2))
    assert first == second and few_rows_kernel()[0] is not None
    assert {p.name for p in left.parent.iterdir()} == {left.name, first.name}
