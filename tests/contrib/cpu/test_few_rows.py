"""Our own products: they are the linear function, and a row has the same bits in any company."""

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import FAMILIES, random_model
from torch import Tensor

from skipbench.contrib.cpu.elementwise import native_norm, native_rotation, native_silu
from skipbench.contrib.cpu.few_rows import MOST_ROWS, FewRows, functions, most_rows, native_mlp
from skipbench.contrib.cpu.native import UnavailableError
from skipbench.contrib.cpu.weights import FewRowsWeight
from skipbench.lm.cache import KVCache
from skipbench.lm.model import LM

SHAPES = [(33, 7), (1, 1), (2, 40), (31, 129), (64, 16), (100, 50), (576, 96)]
BF16, F32 = torch.bfloat16, torch.float32
VECTORS = ["amx", "avx512"]  # those of the library BFLOAT16
KERNELS = [*((name, BF16) for name in (*VECTORS, "avx2")), ("avx2", F32)]


def kernel_or_skip(
    name: str | None = None, dtype: torch.dtype = BF16, of: Callable[..., Any] = functions
) -> str:
    """A kernel that runs here, by default the one that is used."""
    try:
        available = of(dtype)
    except UnavailableError as error:
        pytest.skip(f"no products of our own: {error}")
    if name is not None and name not in available:
        pytest.skip(f"the processor or the kernel has no {name}")
    return name or str(next(iter(available)))


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
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_linear_function_and_a_row_has_the_same_bits_in_any_company(
    shape: tuple[int, int], kernel: tuple[str, torch.dtype]
) -> None:
    """Rounded once; with a bias where the number of outputs is odd."""
    name, dtype = kernel_or_skip(*kernel), kernel[1]
    weight, bias, x, residual = operands(*shape, (most := most_rows(name, shape[0])) + 1, dtype)
    given = bias if shape[1] % 2 else None
    product, before = FewRows(weight, given, name), residual.clone()
    wanted = x.double() @ weight.double().t() + (0.0 if given is None else bias.double())
    in_float32 = 2e-7 * shape[0] * (x.double().abs() @ weight.double().abs().t() + 8.0)
    plain = torch.cat([product(row) for row in x.split(1)])
    pairs = zip(x.split(1), residual.split(1), strict=True)
    summed = torch.cat([product(*pair) for pair in pairs])
    of_prompt = product(x)  # more rows than it takes at once
    for found, right in (
        (plain, wanted),
        (of_prompt, wanted),
        (summed, wanted + residual.double()),
    ):
        rounding = right.abs() * torch.finfo(dtype).eps / 2
        assert ((found.double() - right).abs() <= rounding + in_float32).all()
    for count in (1, 2):
        torch.set_num_threads(count)
        for rows in (*range(1, 21), 40, most):
            assert torch.equal(product(x[:most][-rows:]), plain[:most][-rows:])
            assert torch.equal(product(x[:rows], residual[:rows]), summed[:rows])
    assert torch.equal(residual, before), "the residual was overwritten"


def test_rows_with_gaps_and_many_rows() -> None:
    kernel = kernel_or_skip()
    weight, bias, x, residual = operands(64, 48, most_rows(kernel, 64) + 6)
    product = FewRows(weight, bias, kernel)
    apart, held = torch.cat([x, x], 1)[:9, :64], torch.cat([residual, residual], 1)[:9, :48]
    assert not apart.is_contiguous() and torch.equal(product(apart), product(x[:9]))
    assert torch.equal(product(apart, held), product(x[:9], residual[:9]))
    wanted = torch.nn.functional.linear(x, weight, bias)
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
@pytest.mark.parametrize(
    ("heads", "kv", "d", "rows"), [(9, 3, 64, 7), (4, 2, 8, 1), (4, 2, 8, 7), (2, 2, 80, 7)]
)
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


@pytest.mark.parametrize(("width", "inner"), [(24, 160), (96, 32)])
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
