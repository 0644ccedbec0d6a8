"""Fused weights whose products of few rows are our own, where a processor has the kernel."""

from torch import Tensor

from skipbench.contrib.cpu.few_rows import MOST_ROWS, FewRows, Native, few_rows_kernel
from skipbench.lm.fused.weights import Weight, Weights


class FewRowsWeight(Weight):
    """A weight as Hugging Face keeps it, multiplied by `few_rows.c`."""

    same_bits = MOST_ROWS

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        super().__init__(weight, bias)
        kernel, _ = few_rows_kernel(weight.dtype)
        assert kernel is not None
        self.kernel = f"few_rows {kernel}"
        self._ours = FewRows(weight.contiguous(), bias, kernel)

    @property
    def native(self) -> Native:
        return self._ours.native

    def product(self, x: Tensor) -> Tensor:
        return self._ours(x)

    def sum(self, residual: Tensor, x: Tensor) -> Tensor:
        return self._ours(x, residual)


class CpuWeights(Weights):
    """Ours where there is a kernel, else torch's."""

    def made(self, whole: Tensor, bias: Tensor | None) -> Weight:
        ours = few_rows_kernel(whole.dtype)[0] is not None
        return FewRowsWeight(whole, bias) if ours else Weight(whole, bias)

    def notes(self, like: Tensor) -> list[str]:
        fault = few_rows_kernel(like.dtype)[1]
        return [f"products of few rows are torch's ({fault})"] if fault else []
