"""Our 8-bit products: they are the linear function of rounded weights, in exact integers, so that a
row has the same bits in any company; without a kernel torch multiplies by the rounded weights.
"""

import pytest
import torch
from test_few_rows import SHAPES, kernel_or_skip, operands
from torch import Tensor

from skipbench.contrib.lowbit import int8
from skipbench.contrib.lowbit.int8 import Int8Weight, functions
from skipbench.contrib.lowbit.int8_gpu import GpuInt8Weight

KERNELS = ["amx", "avx512", "avx2"]
DTYPES = [torch.float32, torch.bfloat16]


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
@pytest.mark.parametrize("shape", [SHAPES[0], SHAPES[3], SHAPES[5]])
def test_it_is_the_product_of_integers_and_a_row_has_the_same_bits_in_any_company(
    shape: tuple[int, int], dtype: torch.dtype, kernel: str
) -> None:
    kernel_or_skip(kernel, of=lambda dtype: functions())
    weight, bias, x, residual = operands(*shape, 41, dtype)
    for biased in (None, bias):
        made = Int8Weight(weight, biased, kernel)
        plain, summed = exact(made, x, biased, None), exact(made, x, biased, residual)
        for count in (1, 2):
            torch.set_num_threads(count)
            for rows in (*range(1, 10), 16, 17, 41):
                assert torch.equal(made(x[-rows:], 1), plain[-rows:])
                assert torch.equal(made.added(residual[:rows], x[:rows]), summed[:rows])


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


def test_a_product_of_8_bits_by_torch_is_that_of_the_rounded_weight() -> None:
    torch.manual_seed(0)
    weight, bias = torch.randn(24, 40), torch.randn(24)
    x, residual = torch.randn(3, 40), torch.randn(3, 24)
    made = GpuInt8Weight(weight, bias, "no kernel")
    wanted = torch.nn.functional.linear(x, made.dequantized(), bias)
    torch.testing.assert_close(made(x), wanted)
    torch.testing.assert_close(made.added(residual, x), wanted + residual)
    made.add_to(residual, x)
    torch.testing.assert_close(residual, made.added(residual - wanted, x))
