"""Fused weights in their fastest layouts; Hugging Face's modules become views of them."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.lm.families import parts_of
from skipbench.lm.fused.autotune import (
    LayoutChoice,
    choose,
    products,
    to_layout,
    tuned,
)
from skipbench.lm.fused.few_rows import (
    FEW_ROWS,
    MOST_ROWS,
    FewRows,
    Native,
    Product,
    few_rows_kernel,
)
from skipbench.lm.fused.int8 import Int8Weight
from skipbench.runs.provenance import cpu_flags

MIB = 1 << 20


def pass_bytes(model: Any) -> int:
    """Bytes of weights that a pass of one row reads: those of the layers, without experts that the
    row does not pass, and of the head; of the embedding table it only looks one row up.
    """
    parts = parts_of(model)
    modules = [m for layer in parts.layers for part in layer for m in part.modules]
    weights = {p for module in (*modules, parts.norm, parts.head) for p in module.parameters()}
    held: int = sum(p.numel() * p.element_size() for p in weights)
    return held - sum(mlp.inactive_bytes for _, mlp in parts.layers)


class Weight:
    """`x [T, in] -> x W^T + b [T, out]`, and the same added to a residual.

    With `most`, no product takes more rows at once: libraries choose their kernel, and with it the
    order of a sum, by the number of rows. That of `few_rows` adds in one order up to its own limit.
    """

    def __init__(
        self, one: Tensor, several: Tensor, bias: Tensor | None, choice: LayoutChoice
    ) -> None:
        """`one`, `several`: the weight [out, in] in the layouts for one row and for more."""
        self._one, self._add_one = products(one, bias, choice.one)
        self._several, self._add_several = products(several, bias, choice.several)
        self._same_bits = MOST_ROWS if choice.several == FEW_ROWS else 1
        self._plain, self._bias = several if one.is_mkldnn else one, bias
        self.outputs, self.inputs = one.shape

    @property
    def native(self) -> Native | None:
        """As `FewRows.native`; `None` where torch multiplies."""
        if isinstance(self._one, FewRows) and isinstance(self._several, FewRows):
            return self._several.native
        return None

    def transposed(self) -> tuple[Tensor, Tensor | None]:
        """The weight [in, out] as a plain tensor, and the bias [out]."""
        plain = self._plain
        return (plain.to_dense() if plain.is_mkldnn else plain).t(), self._bias

    def of_outputs(self, ids: Tensor) -> Product:
        """The product `x [T, in] -> [T, N]` of a copy of the outputs `ids` [N] alone."""
        across, bias = self.transposed()
        few = across.t().index_select(0, ids)
        ours = few.device.type == "cpu" and few_rows_kernel(few.dtype)[0] is not None
        return products(few, None if bias is None else bias[ids], FEW_ROWS if ours else "rows")[0]

    def __call__(self, x: Tensor, most: int | None = None) -> Tensor:
        if most is not None and x.shape[0] > max(most, self._same_bits):
            return torch.cat([self(part) for part in torch.split(x, most)])
        return self._one(x) if x.shape[0] == 1 else self._several(x)

    def added(self, residual: Tensor, x: Tensor, most: int | None = None) -> Tensor:
        """`residual` [T, out] + product; neither argument changes."""
        if most is not None and x.shape[0] > max(most, self._same_bits):
            parts = zip(torch.split(residual, most), torch.split(x, most), strict=True)
            return torch.cat([self.added(*part) for part in parts])
        return self._add_one(residual, x) if x.shape[0] == 1 else self._add_several(residual, x)


class ParallelWeight(Weight):
    """A rank's part of a weight: `join` makes the whole product of the ranks' products."""

    def __init__(
        self,
        one: Tensor,
        several: Tensor,
        bias: Tensor | None,
        choice: LayoutChoice,
        join: Callable[[Tensor], Tensor],
    ) -> None:
        super().__init__(one, several, bias, choice)
        self.join = join

    @property
    def native(self) -> None:
        """The parts of a product meet in Python."""

    def __call__(self, x: Tensor, most: int | None = None) -> Tensor:
        return self.join(super().__call__(x, most))

    def added(self, residual: Tensor, x: Tensor, most: int | None = None) -> Tensor:
        return residual + self(x, most)


W = TypeVar("W", Weight, Int8Weight)


class LayerWeights(NamedTuple, Generic[W]):
    """The fused weights of one decoder layer of Llama's form."""

    qkv: W
    output: W
    gate_up: W
    down: W


class Weights:
    """Makes the fused weights of one model, of which one pass reads `pass_bytes`; second layouts of
    weights may take `spare_mib` MiB.
    """

    def __init__(self, spare_mib: int, pass_bytes: int) -> None:
        self._spare, self._pass_bytes = spare_mib * MIB, pass_bytes
        self._chosen: dict[tuple[int, int], LayoutChoice] = {}
        self.kernels: dict[str, str] = {}  # layouts by shape, `INxOUT`
        self._faults: set[str] = set()

    def fuse(self, parent: Any, names: Sequence[str], count: int, keep: bool = False) -> Weight:
        """One weight of the linear modules `names` of `parent`, which use its memory from then on.

        Args:
            count: weights of this shape in the model; they share one choice.
            keep: the weight must also stay as it is, because it is an embedding too.
        """
        modules = [getattr(parent, name) for name in names]
        weights = [m.weight.data for m in modules]
        whole = torch.cat(weights) if len(weights) > 1 else weights[0]
        biases = [m.bias.data for m in modules if m.bias is not None]
        bias = torch.cat(biases) if biases else None
        choice = self._choose(whole, count, keep)
        made = {layout: to_layout(whole, layout) for layout in choice.layouts}
        if not keep:  # the modules get their part of the fused weight
            shared = made.get("rows", made.get("columns", made[choice.one]))
            packed = torch.nn.Parameter(shared, requires_grad=False) if shared.is_mkldnn else None
            end = 0
            for name, module in zip(names, modules, strict=True):
                start, end = end, end + module.weight.shape[0]
                if packed is None:
                    module.weight.data = shared[start:end]
                else:
                    setattr(parent, name, _Unpacking(packed, start, end, module.bias))
        layouts = made[choice.one], made[choice.several], bias, choice
        join = getattr(modules[0], "join", None)  # of `contrib/ranks/tensor_parallel.py`
        return Weight(*layouts) if join is None else ParallelWeight(*layouts, join)

    def notes(self, like: Tensor) -> list[str]:
        """Lines on the parts that this machine lacks for weights like this one."""
        if like.device.type != "cpu":
            return []
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

    def _choose(self, weight: Tensor, count: int, keep: bool) -> LayoutChoice:
        outputs, inputs = weight.shape
        if weight.device.type != "cpu":
            return LayoutChoice("rows", "rows")
        if (outputs, inputs) not in self._chosen:
            times, fault = tuned(outputs, inputs, weight.dtype, self._pass_bytes)
            each = weight.nbytes * count

            def extra(layouts: tuple[str, ...]) -> int:
                # few_rows are rows with another product
                held = {"rows" if name == FEW_ROWS else name for name in layouts}
                return each * (len(held | {"rows"} if keep else held) - 1)

            choice = choose(times, lambda layouts: extra(layouts) <= self._spare)
            self._spare -= extra(choice.layouts)
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
