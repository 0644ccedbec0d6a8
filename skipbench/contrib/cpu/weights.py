"""Fused weights in the layouts that are fastest on a processor."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.contrib.cpu.autotune import LayoutChoice, choose, products, to_layout, tuned
from skipbench.contrib.cpu.few_rows import FEW_ROWS, MOST_ROWS, FewRows, Native, few_rows_kernel
from skipbench.lm.fused.weights import Join, Weight, Weights
from skipbench.runs.provenance import cpu_flags


class LayoutWeight(Weight):
    """A weight in one layout for one row, and in one for more."""

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None = None,
        join: Join | None = None,
        several: Tensor | None = None,
        choice: LayoutChoice | None = None,
    ) -> None:
        """`weight`, `several`: [out, in], laid out as `choice` says; without one, as it is."""
        several = weight if several is None else several
        super().__init__(several if weight.is_mkldnn else weight, bias, join)
        if choice is None:
            ours = few_rows_kernel(weight.dtype)[0] is not None
            choice = LayoutChoice(*2 * [FEW_ROWS if ours else "rows"])
        self._one, self._add_one = products(weight, bias, choice.one)
        self._several, self._add_several = products(several, bias, choice.several)
        self.same_bits = MOST_ROWS if choice.several == FEW_ROWS else 1

    @property
    def native(self) -> Native | None:
        """As `FewRows.native`; `None` where torch multiplies, or ranks meet in Python."""
        if self.join is None and isinstance(self._one, FewRows):
            return self._several.native if isinstance(self._several, FewRows) else None
        return None

    def transposed(self) -> tuple[Tensor, Tensor | None]:
        plain = self._weight
        return (plain.to_dense() if plain.is_mkldnn else plain).t(), self._bias

    def product(self, x: Tensor) -> Tensor:
        return self._one(x) if x.shape[0] == 1 else self._several(x)

    def sum(self, residual: Tensor, x: Tensor) -> Tensor:
        return self._add_one(residual, x) if x.shape[0] == 1 else self._add_several(residual, x)


class LayoutWeights(Weights):
    """Chooses the layouts of the weights of one model by their times on this machine."""

    def __init__(self, spare_mib: int, pass_bytes: int) -> None:
        super().__init__(spare_mib, pass_bytes)
        self._chosen: dict[tuple[int, int], LayoutChoice] = {}
        self._faults: set[str] = set()

    def laid_out(
        self, whole: Tensor, bias: Tensor | None, join: Join | None, count: int, keep: bool
    ) -> tuple[Weight, Tensor]:
        choice = self.choose(whole, count, keep)
        made = {layout: to_layout(whole, layout) for layout in choice.layouts}
        shared = made.get("rows", made.get("columns", made[choice.one]))
        weight = LayoutWeight(made[choice.one], bias, join, made[choice.several], choice)
        return weight, shared

    def share(self, parent: Any, modules: dict[str, Any], shared: Tensor) -> None:
        if not shared.is_mkldnn:
            super().share(parent, modules, shared)
            return
        packed, end = torch.nn.Parameter(shared, requires_grad=False), 0
        for name, module in modules.items():
            start, end = end, end + module.weight.shape[0]
            setattr(parent, name, _Unpacking(packed, start, end, module.bias))

    def notes(self, like: Tensor) -> list[str]:
        lines = [
            f"packed products are left out ({fault}); torch's plain ones took 1.5 times as "
            "long in bfloat16 where both were measured"
            for fault in sorted(self._faults)
        ]
        flags = cpu_flags()
        ours = "avx2" in flags and like.dtype in (torch.float32, torch.bfloat16)
        if ours and (fault := few_rows_kernel(like.dtype)[1]):
            lines.append(
                f"products of few rows are torch's ({fault}); ours took 0.6 of their time where "
                "both were measured"
            )
        if like.dtype == torch.bfloat16 and flags and "amx_bf16" not in flags:
            vectors = "avx512_bf16" in flags
            used = "AVX-512 bf16" if vectors else "float32 arithmetic on bfloat16 weights"
            lines.append(
                f"this processor has no AMX: {used} instead, and verifying several rows "
                "costs more than with it"
            )
        return lines

    def choose(self, weight: Tensor, count: int, keep: bool) -> LayoutChoice:
        """Layouts of the weights of a shape; arguments as those of `fuse`."""
        outputs, inputs = weight.shape
        if (outputs, inputs) not in self._chosen:
            times, fault = tuned(outputs, inputs, weight.dtype, self.pass_bytes)
            each = weight.nbytes * count

            def extra(layouts: tuple[str, ...]) -> int:
                # few_rows are rows with another product
                held = {"rows" if name == FEW_ROWS else name for name in layouts}
                return each * (len(held | {"rows"} if keep else held) - 1)

            choice = choose(times, lambda layouts: extra(layouts) <= self.spare_bytes)
            self.spare_bytes -= extra(choice.layouts)
            self._chosen[outputs, inputs] = choice
            self.kernels[f"{inputs}x{outputs}"] = str(choice)
            self._faults |= {fault} if fault else set()
        return self._chosen[outputs, inputs]


class _Unpacking(torch.nn.Module):
    """A linear module over a part of a packed weight, which is one parameter of all modules that
    share it, so that `parameters()` counts it once. It unpacks at every call.
    """

    def __init__(
        self, packed: torch.nn.Parameter, start: int, end: int, bias: Tensor | None
    ) -> None:
        super().__init__()
        self.packed, self._start, self._end, self.bias = packed, start, end, bias

    @property
    def weight(self) -> Tensor:
        return self.packed.to_dense()[self._start : self._end]

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype), self.bias)
