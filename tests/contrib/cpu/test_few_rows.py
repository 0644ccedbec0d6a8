"""Our own products: they are the linear function, a row has the same bits in any company, and
without a compiler torch's are used.
"""

import ctypes
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from conftest import FAMILIES, random_model
from torch import Tensor

from skipbench.contrib.cpu.elementwise import native_norm, native_rotation, native_silu
from skipbench.contrib.cpu.few_rows import (
    MOST_ROWS,
    FewRows,
    few_rows_kernel,
    functions,
    most_rows,
    native_mlp,
)
from skipbench.contrib.cpu.native import AVX2, BFLOAT16, UnavailableError, compiled, library
from skipbench.contrib.cpu.weights import CpuWeights, FewRowsWeight
from skipbench.lm.cache import KVCache
from skipbench.lm.model import LM
from skipbench.runs.provenance import cpu_flags

SHAPES = [(33, 7), (1, 1), (2, 40), (31, 129), (64, 16), (100, 50), (576, 96)]
BF16, F32 = torch.bfloat16, torch.float32
VECTORS = ["amx", "avx512"]  # those of the library BFLOAT16
KERNELS = [*((name, BF16) for name in (*VECTORS, "avx2")), ("avx2", F32)]


def kernel_or_skip(name: str | None = None, dtype: torch.dtype = BF16) -> str:
    """A kernel that runs here, by default the one that is used."""
    try:
        available = functions(dtype)
    except UnavailableError as error:
        pytest.skip(f"no products of our own: {error}")
    if name is not None and name not in available:
        pytest.skip(f"the processor or the kernel has no {name}")
    return name or next(iter(available))


def forget() -> None:
    for known in (library, functions, few_rows_kernel):
        known.cache_clear()


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine that has compiled nothing yet; gives its `PATH`, a folder without a compiler. One
    named `later` there writes what this machine's wrote before, without its seconds.
    """
    kernel_or_skip()
    place = tmp_path / "bin"
    place.mkdir()
    own = [compiled(s) if s.flags <= cpu_flags() else "" for s in (AVX2, BFLOAT16)]
    copy, wait = (shutil.which(program) for program in ("cp", "sleep"))
    (place / "later").write_text(
        f"#!/bin/sh\ncase $* in *pass.c*) made={own[0]};; *) made={own[1]};; esac\n"
        f"while [ $1 != -o ]; do shift; done\n{wait} 0.3\n{copy} $made $2\n"
    )
    (place / "later").chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(place))
    forget()
    yield place
    forget()


def operands(
    inputs: int, outputs: int, rows: int, dtype: torch.dtype = BF16
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Weight, bias, x and a residual."""
    generator = torch.Generator().manual_seed(inputs * outputs)
    weight, bias, x, residual = (
        torch.randn(size, generator=generator).to(dtype)
        for size in ((outputs, inputs), (outputs,), (rows, inputs), (rows, outputs))
    )
    return weight, bias, x, residual


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_linear_function_rounded_once(
    shape: tuple[int, int], biased: bool, kernel: tuple[str, torch.dtype]
) -> None:
    name, dtype = kernel_or_skip(*kernel), kernel[1]
    weight, bias, x, residual = operands(*shape, most_rows(name, shape[0]) + 1, dtype)
    product = FewRows(weight, bias if biased else None, name)
    wanted = x.double() @ weight.double().t() + (bias.double() if biased else 0.0)
    in_float32 = 2e-7 * shape[0] * (x.double().abs() @ weight.double().abs().t() + 8.0)
    before = residual.clone()
    for rows in range(1, 21):
        for found, right in (
            (product(x[:rows]), wanted[:rows]),
            (product(x[:rows], residual[:rows]), wanted[:rows] + residual[:rows].double()),
        ):
            rounding = right.abs() * torch.finfo(dtype).eps / 2
            assert ((found.double() - right).abs() <= rounding + in_float32[:rows]).all()
    rounding = wanted.abs() * torch.finfo(dtype).eps / 2
    assert ((product(x).double() - wanted).abs() <= rounding + in_float32).all(), "a prompt's rows"
    assert torch.equal(residual, before), "the residual was overwritten"


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_row_has_the_same_bits_in_any_company(
    shape: tuple[int, int], kernel: tuple[str, torch.dtype]
) -> None:
    name = kernel_or_skip(*kernel)
    most = most_rows(name, shape[0])
    weight, bias, x, residual = operands(*shape, most, kernel[1])
    product = FewRows(weight, bias, name)
    plain = torch.cat([product(row) for row in x.split(1)])
    pairs = zip(x.split(1), residual.split(1), strict=True)
    summed = torch.cat([product(*pair) for pair in pairs])
    threads = torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            for rows in (*range(1, 17), 40, most):
                assert torch.equal(product(x[-rows:]), plain[-rows:])
                assert torch.equal(product(x[:rows], residual[:rows]), summed[:rows])
    finally:
        torch.set_num_threads(threads)


def test_rows_with_gaps_and_many_rows() -> None:
    kernel = kernel_or_skip()
    weight, bias, x, residual = operands(64, 48, most_rows(kernel, 64) + 6)
    product = FewRows(weight, bias, kernel)
    apart, held = torch.cat([x, x], 1)[:9, :64], torch.cat([residual, residual], 1)[:9, :48]
    assert not apart.is_contiguous() and torch.equal(product(apart), product(x[:9]))
    assert torch.equal(product(apart, held), product(x[:9], residual[:9]))
    wanted = torch.nn.functional.linear(x, weight, bias)
    torch.testing.assert_close(product(x), wanted, rtol=0.02, atol=0.05)
    torch.testing.assert_close(product(x, residual), residual + wanted, rtol=0.02, atol=0.05)


def test_a_strict_product_of_more_rows_is_taken_in_parts() -> None:
    kernel_or_skip()
    weight, _, x, residual = operands(576, 96, MOST_ROWS + 9)
    product = FewRowsWeight(weight)
    each = range(len(x))
    assert torch.equal(product(x, 16), torch.cat([product(x[i : i + 1]) for i in each]))
    alone = [product.added(residual[i : i + 1], x[i : i + 1]) for i in each]
    assert torch.equal(product.added(residual, x, 16), torch.cat(alone))


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize("width", [576, 100, 7])
def test_the_norm_is_torchs_rounded_once(width: int, dtype: torch.dtype) -> None:
    kernel_or_skip(None, dtype)
    weight, x = (
        torch.randn(n, generator=torch.Generator().manual_seed(0)) for n in (width, 40 * width)
    )
    weight, x = weight.to(dtype), (3 * x).to(dtype).view(40, width)
    norm = native_norm(weight, 1e-5)
    assert norm is not None and native_norm(weight.double(), 1e-5) is None
    found = norm(x)
    wanted = torch.nn.functional.rms_norm(x.double(), (width,), weight.double(), 1e-5)
    # half a unit of the last place, and what float32 adds before it is rounded
    half = torch.finfo(dtype).eps / 2
    assert ((found.double() - wanted).abs() <= wanted.abs() * (half + 1e-5 * (half + 0.1))).all()
    assert all(
        torch.equal(norm(row), at) for row, at in zip(x.split(1), found.split(1), strict=True)
    )


@pytest.mark.parametrize("dtype", [BF16, F32])
@pytest.mark.parametrize(("heads", "kv", "d"), [(9, 3, 64), (4, 2, 8), (2, 2, 80)])
@pytest.mark.parametrize("rows", [1, 7])
def test_the_rotation_is_torchs(heads: int, kv: int, d: int, rows: int, dtype: torch.dtype) -> None:
    """Bit for bit in bfloat16; in float32 torch rounds a product before it adds it."""
    kernel_or_skip(None, dtype)
    cache = KVCache([torch.device("cpu")], kv, d, dtype)
    cache.allocate(20)
    generator = torch.Generator().manual_seed(0)
    qkv, cos, sin = (
        torch.randn(rows, n, d, generator=generator).to(dtype) for n in (heads + 2 * kv, 1, 1)
    )
    rotate = native_rotation(cache, qkv)
    assert rotate is not None and native_rotation(cache, qkv.double()) is None
    query = rotate(qkv, cos, sin, cache.rows[0], 11)
    both = qkv[:, : heads + kv]
    both = torch.addcmul(both * cos, torch.roll(both, d // 2, -1), sin)
    wanted = torch.zeros_like(cache.rows[0])
    wanted[11 : 11 + rows] = torch.cat([both[:, heads:], qkv[:, heads + kv :]], 1)
    close = 0.0 if dtype == BF16 else 1e-6
    torch.testing.assert_close(query, both[:, :heads], rtol=0.0, atol=close)
    torch.testing.assert_close(cache.rows[0], wanted, rtol=0.0, atol=close)


@pytest.mark.parametrize("width", [16000, 100])
def test_silu_times_up_is_torchs(width: int) -> None:
    """Bit for bit for many finite bfloat16 numbers as gate, with the greater width for nearly all;
    for the same numbers in float32 up to what its exponential loses.
    """
    kernel_or_skip()
    every = torch.arange(-(1 << 15), 1 << 15).to(torch.int16).view(torch.bfloat16)
    gate = every[every.isfinite()][: 4 * width].view(4, -1)
    up = torch.randn(gate.shape, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    silu_times = native_silu(gate)
    assert silu_times is not None and native_silu(gate.double()) is None
    found, wanted = silu_times(torch.cat([gate, up], 1)), torch.nn.functional.silu(gate) * up
    tiny = wanted.abs() < 2**-120  # ours takes what is smaller than a normal number for 0
    assert torch.equal(found[~tiny], wanted[~tiny])
    assert (found[tiny].abs() <= 2**-119).all()
    wide, times = torch.cat([gate, up], 1).float(), native_silu(gate.float())
    assert times is not None
    exact = torch.nn.functional.silu(gate.double()) * up.double()
    assert ((times(wide) - exact).abs() <= exact.abs() * 2**-20 + 2**-119).all()


@pytest.mark.parametrize("width", [24, 96])
@pytest.mark.parametrize("inner", [32, 160])
def test_an_mlp_in_tiles_has_every_bit_of_its_two_products(width: int, inner: int) -> None:
    kernel = kernel_or_skip("amx")
    up, down = torch.randn(2 * inner, width).to(BF16), torch.randn(width, inner).to(BF16)
    first, second = FewRows(up, None, kernel), FewRows(down, None, kernel)
    silu, at = native_silu(up), native_mlp(first.native, second.native)
    assert silu is not None and at is not None
    both = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 5, ctypes.c_long)(at)
    for rows in (2, 16, 17, 33, 70):
        x, y = torch.randn(rows, width).to(BF16), torch.empty(rows, width, dtype=BF16)
        both(first.native[1], second.native[1], *(t.data_ptr() for t in (y, x, x)), rows)
        assert torch.equal(y, second(silu(first(x)), x)), rows


def test_an_mlp_with_a_bias_or_odd_sizes_keeps_its_two_products() -> None:
    kernel = kernel_or_skip("amx")
    for inner, bias in ((48, None), (32, torch.zeros(64, dtype=BF16))):
        first = FewRows(torch.zeros(2 * inner, 32, dtype=BF16), bias, kernel)
        second = FewRows(torch.zeros(32, inner, dtype=BF16), None, kernel)
        assert native_mlp(first.native, second.native) is None


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", [BF16, F32])
def test_strict_holds_with_it(family: str, dtype: torch.dtype) -> None:
    """The proof runs at load, biases included. Hugging Face's modules lent their weights, which are
    counted once, and compute what they did.
    """
    kernel = kernel_or_skip(None, dtype)
    model, tokens = random_model(family).to(dtype), torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5, 3]])
    wanted, held = model(tokens).logits, LM(random_model(family).to(dtype), "reference")
    lm = LM(model, strict=True)
    assert lm.engine.kernels == [f"few_rows {kernel}"] and lm.weight_bytes == held.weight_bytes
    up = lm.model.model.layers[0].mlp.up_proj
    assert up.weight.untyped_storage().nbytes() == 2 * up.weight.nbytes, "not a part"
    assert torch.equal(lm.model(tokens).logits, wanted)


def test_without_a_compiler_torch_multiplies_and_the_notes_say_so(bare: Path) -> None:
    like = torch.zeros(8, dtype=torch.bfloat16)
    (note,) = CpuWeights().notes(like)
    assert "no C compiler on the PATH; install gcc" in note
    made = CpuWeights().made(torch.zeros(64, 32, dtype=like.dtype), None)
    assert native_norm(like, 1e-5) is None and made.kernel == "torch"


def test_a_compiler_that_fails_and_a_damaged_library_are_named(bare: Path) -> None:
    (bare / "gcc").write_text("#!/bin/sh\necho unrecognized option -mfma >&2\nexit 1\n")
    (bare / "gcc").chmod(0o755)
    with pytest.raises(UnavailableError, match="gcc failed: unrecognized option -mfma"):
        compiled(AVX2)
    assert [p.name for p in (bare.parent / "skipbench" / "native").iterdir()] == []
    (bare / "gcc").write_text("#!/bin/sh\nwhile [ $1 != -o ]; do shift; done\necho no > $2\n")
    assert compiled(AVX2).exists()
    kernel, fault = few_rows_kernel(BF16)
    assert kernel is None and fault is not None and f"; remove {compiled(AVX2)}" in fault


def test_a_folder_that_cannot_be_written_to_is_named(
    bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (bare / "gcc").write_text("")
    (bare / "gcc").chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(bare / "gcc"))
    with pytest.raises(UnavailableError, match=r"make .*native writable"):
        compiled(AVX2)


def test_two_that_compile_at_once_leave_one_library(bare: Path) -> None:
    """What a killed compilation left behind holds up nobody."""
    (bare / "later").rename(bare / "gcc")
    left = bare.parent / "skipbench" / "native" / ".native-killed"
    left.mkdir(parents=True)
    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(lambda _: compiled(AVX2), range(2))
    assert first == second
    assert {p.name for p in left.parent.iterdir()} == {left.name, first.name}
    assert few_rows_kernel(BF16)[0] is not None
