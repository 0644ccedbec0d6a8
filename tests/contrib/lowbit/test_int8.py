"""Our 8-bit products: they are the linear function of rounded weights, in exact integers, so that a
row has the same bits in any company; without a kernel torch multiplies by the rounded weights.
"""

import pytest
import torch
from test_few_rows import SHAPES
from torch import Tensor

from skipbench.contrib.cpu.native import UnavailableError, library
from skipbench.contrib.lowbit import int8
from skipbench.contrib.lowbit.int8 import Int8Weight, functions, int8_kernel

KERNELS = ["amx", "avx512", "avx2"]
DTYPES = [torch.float32, torch.bfloat16]


def kernel_or_skip(name: str) -> str:
    try:
        found = functions()
    except UnavailableError as error:
        pytest.skip(f"no products of our own: {error}")
    if name not in found:
        pytest.skip(f"the processor has no {name}")
    return name


def operands(inputs: int, outputs: int, rows: int, dtype: torch.dtype) -> list[Tensor]:
    """Weight, bias, x and a residual."""
    generator = torch.Generator().manual_seed(inputs * outputs)
    sizes = (outputs, inputs), (outputs,), (rows, inputs), (rows, outputs)
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


def exact(made: Int8Weight, x: Tensor, bias: Tensor | None, residual: Tensor | None) -> Tensor:
    """The product by the kernel's own steps: integers, two scales, sums, each rounded once."""
    wide, most = x.float(), torch.tensor(float(made._described.most))
    magnitude = wide.abs().amax(1, keepdim=True)
    integers = (wide * (most / magnitude)).round().to(torch.int64)
    weights = made._held[:, : made.inputs].to(torch.int64)
    sums = integers @ weights.t()
    assert int((integers.abs() @ weights.abs().t()).max()) < 1 << 31
    y = sums.float() * (made._scale * (magnitude / most))
    y = y if bias is None else y + bias.float()
    return (y if residual is None else y + residual.float()).to(x.dtype)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_the_product_of_integers_and_a_row_has_the_same_bits_in_any_company(
    shape: tuple[int, int], dtype: torch.dtype, kernel: str
) -> None:
    kernel_or_skip(kernel)
    weight, bias, x, residual = operands(*shape, 41, dtype)
    threads = torch.get_num_threads()
    for biased in (None, bias):
        made = Int8Weight(weight, biased, kernel)
        plain, summed = exact(made, x, biased, None), exact(made, x, biased, residual)
        try:
            for count in (1, 2):
                torch.set_num_threads(count)
                for rows in (*range(1, 10), 16, 17, 41):
                    assert torch.equal(made(x[-rows:], 1), plain[-rows:])
                    assert torch.equal(made.added(residual[:rows], x[:rows]), summed[:rows])
        finally:
            torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_weight_is_quantised_as_torch_does(dtype: torch.dtype) -> None:
    kernel_or_skip("avx2")
    weight = operands(100, 50, 1, dtype)[0]
    weight[3], weight[4, 7] = 0, 1e3
    made, (scale, rounded) = Int8Weight(weight, None), int8.quantized_rows(weight)
    assert torch.equal(made._scale, scale) and torch.equal(made._held[:, :100], rounded)
    assert not made._held[:, 100:].any()
    assert torch.equal(made._sums, rounded.sum(1, dtype=torch.int32))
    largest = int(rounded.abs().sum(1, dtype=torch.int64).max())
    assert made._described.most == min((1 << 15) - 1, ((1 << 31) - 1) // largest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_only_the_weights_lose_precision(dtype: torch.dtype) -> None:
    weight, bias, x, _ = operands(576, 96, 5, dtype)
    made = Int8Weight(weight, bias)
    step = weight.float().abs().amax(1, keepdim=True) / 127
    assert ((made.dequantized() - weight.float()).abs() <= step * 0.5001).all()
    wanted = x.double() @ made.dequantized().double().t() + bias.double()
    error = (made(x).double() - wanted).abs().max()
    assert error < (0.004 if dtype == torch.float32 else 0.3)
    assert made.inputs == 576 and 576 * 96 < made.nbytes < 576 * 96 * 1.05


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_largest_sums_fit(kernel: str) -> None:
    """All weights and inputs at their bounds: 16384 inputs leave the activations 10 bits."""
    kernel_or_skip(kernel)
    made = Int8Weight(torch.ones(5, 16384), None, kernel)
    assert made._described.most == 1032
    x = torch.ones(1, 16384)
    torch.testing.assert_close(made(x), torch.full((1, 5), 16384.0), rtol=1e-5, atol=0)
    torch.testing.assert_close(made(-x), torch.full((1, 5), -16384.0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_that_are_zero_tiny_or_not_finite(dtype: torch.dtype) -> None:
    weight, bias, x, _ = operands(100, 50, 6, dtype)
    made = Int8Weight(weight, bias)
    wanted = made(x)
    x[0], x[1], x[2, 7], x[3, 99] = 0, 1e-38, float("nan"), float("inf")
    found = made(x)
    assert torch.equal(found[:2], bias.expand(2, -1)) and torch.equal(found[4:], wanted[4:])
    assert not found[2:4].isfinite().any()
    zeros = Int8Weight(0 * weight, bias)
    assert torch.equal(zeros(x[4:]), bias.expand(2, -1))
    # a denormal number on the way would take a hundred times as long
    assert zeros._scale.min() * x[4:].abs().max() / zeros._described.most > torch.finfo().tiny


def test_a_sum_between_two_numbers_of_bfloat16_goes_to_the_even_one() -> None:
    bias, residual = torch.tensor([1, 1 + 2**-7]), torch.full((1, 2), 2**-8)
    made = Int8Weight(torch.ones(2, 8).bfloat16(), bias.bfloat16())
    found = made.added(residual.bfloat16(), torch.zeros(1, 8).bfloat16())
    assert found.tolist() == [[1, 1 + 2**-6]]


def test_rows_with_gaps_and_a_weight_of_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias, x, residual = operands(64, 50, 9, torch.float32)
    whole, (scale, rounded) = (
        Int8Weight(weight.t().contiguous().t(), bias),
        int8.quantized_rows(weight),
    )
    monkeypatch.setattr(int8, "CHUNK_BYTES", 64 * 4 * 12)
    assert all(map(torch.equal, int8.quantized_rows(weight), (scale, rounded)))
    apart, held = torch.cat([x, x], 1)[:, :64], torch.cat([residual, residual], 1)[:, :50]
    assert not apart.is_contiguous() and torch.equal(whole(apart), whole(x))
    assert torch.equal(whole.added(held, apart), whole.added(residual, x))


@pytest.mark.parametrize("dtype", [*DTYPES, torch.float16])
def test_without_a_kernel_torch_multiplies_by_the_rounded_weights(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, bias, x, residual = operands(100, 50, 6, dtype)
    monkeypatch.setattr(int8, "int8_kernel", lambda: (None, "none"))
    made = Int8Weight(weight, bias)
    wanted = x.double() @ made._plain.double().t() + bias.double()
    torch.testing.assert_close(made(x).double(), wanted, rtol=0.02, atol=0.05)
    torch.testing.assert_close(made.added(residual, x), residual + made(x))
    assert made.nbytes >= weight.nbytes, "the size of what is kept"


def test_a_processor_without_the_instructions_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for known in (library, functions, int8_kernel):
        known.cache_clear()
    try:
        with monkeypatch.context() as patched:
            patched.setattr("skipbench.contrib.cpu.native.cpu_flags", set)
            assert int8_kernel() == (None, "the processor has no AVX2")
    finally:
        for known in (library, functions, int8_kernel):
            known.cache_clear()
