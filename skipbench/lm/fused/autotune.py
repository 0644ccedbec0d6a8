"""Which layout of a weight, and which product, is fastest on this machine: tuned once, then kept in
a file of the machine's.

A weight [out, in] can be kept as `rows` (as Hugging Face keeps it), as `columns` ([in, out] in
memory), both multiplied by `torch.mm`, or `packed` by oneDNN, through two private operators of
torch that are used only where they agree with `F.linear`. No layout wins everywhere: in float32
`columns` was fastest for one row and slow for nine, `packed` the other way round. In bfloat16
there may be `few_rows`, too: `rows` with a product of our own (`few_rows.py`).
"""

import contextlib
import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor

from skipbench.errors import SkipbenchError
from skipbench.lm.fused.few_rows import (
    FEW_ROWS,
    Product,
    Sum,
    few_rows_kernel,
    few_rows_products,
)
from skipbench.runs.files import write_atomic
from skipbench.runs.provenance import cpu_name

ROWS = (1, 4, 9)
"""Row counts that are tuned: a step of decoding, and two sizes of verification."""
DRAFT_STEPS = 4  # one-row passes in a usual round: eight draft steps with half of the sub-layers
MIN_GAIN = 1.05  # keep a second copy of a weight only if it speeds up a round by at least 5 %
AUTOTUNE_WORKING_SET_BYTES = 48 << 20
"""Total size of the weights that the autotuner cycles through, so that it measures memory and not
cache speed. Models smaller than this are tuned with their own size.
"""
MOST_WEIGHTS = 256
# of a larger weight only so much is tuned: its time is bound by memory, and grows with its size
PART_BYTES = 64 << 20
# after 7 the least for nine rows was still up to twice what it came down to, and the wrong layout
# won
REPEATS = 25

Times = dict[str, list[float]]
"""Microseconds of every layout for `ROWS` rows."""
LAYOUTS = ("rows", "columns", "packed", FEW_ROWS)


@dataclass(frozen=True)
class LayoutChoice:
    """Layouts for one row and for several; they are the same where one copy is kept."""

    one: str
    several: str

    @property
    def layouts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.one, self.several)))

    def __str__(self) -> str:
        return (
            self.one
            if self.one == self.several
            else f"{self.one} for one row, {self.several} for several"
        )


def choose(times: Times, allowed: Callable[[tuple[str, ...]], bool]) -> LayoutChoice:
    """The fastest layouts for a round of draft steps and verification, of those that memory allows;
    `rows` always is. `few_rows` is taken for any number of rows or none, as its bits are the same
    for all.
    """

    def cost(choice: LayoutChoice) -> float:
        several = times[choice.several]
        return DRAFT_STEPS * times[choice.one][0] + sum(several[1:]) / len(several[1:])

    pairs = [
        c
        for c in (LayoutChoice(a, b) for a in times for b in times)
        if c.layouts == ("rows",)
        or (allowed(c.layouts) and (c.one == c.several or FEW_ROWS not in c.layouts))
    ]
    single = min((c for c in pairs if c.one == c.several), key=cost)
    double = min(pairs, key=cost)
    return double if cost(double) * MIN_GAIN < cost(single) else single


def to_layout(weight: Tensor, layout: str) -> Tensor:
    """`weight` [out, in] in a layout; `rows` and `few_rows` are the weight itself."""
    if layout == "columns":
        return weight.t().contiguous().t()
    if layout == "packed":
        packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), ROWS[-1])
        return packed
    return weight.contiguous() if layout == FEW_ROWS else weight


def products_of(weight: Tensor, bias: Tensor | None, layout: str) -> tuple[Product, Sum]:
    """As `products`, for a weight that `to_layout` gave."""
    kernel = few_rows_kernel()[0] if layout == FEW_ROWS else None
    return products(weight, bias) if kernel is None else few_rows_products(weight, bias, kernel)


def products(weight: Tensor, bias: Tensor | None) -> tuple[Product, Sum]:
    """`x [T, in] -> [T, out]` and `residual, x -> residual + product`, for a weight in any layout
    of torch's.
    """
    if weight.is_mkldnn:
        plain, binary = (
            torch.ops.mkldnn._linear_pointwise.default,
            torch.ops.mkldnn._linear_pointwise.binary,
        )
        return (lambda x: plain(x, weight, bias, "none", [], "")), (
            lambda r, x: binary(x, r, weight, bias, "add")
        )
    across = weight.t()
    if bias is None:
        return partial(torch.mm, mat2=across), partial(torch.addmm, mat2=across)
    biased = partial(torch.addmm, bias, mat2=across)
    return biased, (lambda r, x: r + biased(x))


def packing_unsupported(weight: Tensor) -> str | None:
    """Why the packed product cannot be used for weights like this one, `None` if it can."""
    try:
        product, added = products(to_layout(weight, "packed"), None)
        generator = torch.Generator().manual_seed(0)
        for rows in ROWS:
            x = torch.randn(rows, weight.shape[1], generator=generator).to(weight.dtype)
            residual = torch.randn(rows, weight.shape[0], generator=generator).to(weight.dtype)
            wanted = F.linear(x.float(), weight.float())
            room = (
                4
                * torch.finfo(weight.dtype).eps
                * (1.0 + float(wanted.abs().max()) + float(residual.abs().max()))
            )
            for found, right in (
                (product(x), wanted),
                (added(residual, x), wanted + residual.float()),
            ):
                if not float((found.float() - right).abs().max()) <= room * weight.shape[1] ** 0.5:
                    return "it does not agree with torch.nn.functional.linear"
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        return " ".join(str(error).split())[:120]
    return None


def few_rows_of(dtype: torch.dtype) -> str | None:
    """The kernel of `few_rows` for weights of a dtype on a CPU; `None` where there is none."""
    return few_rows_kernel()[0] if dtype == torch.bfloat16 else None


@torch.inference_mode()
def autotune(
    outputs: int, inputs: int, dtype: torch.dtype, pass_bytes: int = AUTOTUNE_WORKING_SET_BYTES
) -> tuple[Times, str | None]:
    """Times of every layout for random weights of that shape, and why packing was left out.

    Args:
        pass_bytes: weights that one pass of the model reads.
    """
    outputs = max(1, min(outputs, PART_BYTES // (inputs * dtype.itemsize)))
    generator = torch.Generator().manual_seed(0)
    count = max(
        1,
        min(
            MOST_WEIGHTS,
            min(AUTOTUNE_WORKING_SET_BYTES, pass_bytes) // (outputs * inputs * dtype.itemsize),
        ),
    )
    weights = [
        (torch.randn(outputs, inputs, generator=generator) * inputs**-0.5).to(dtype)
        for _ in range(count)
    ]
    fault = packing_unsupported(weights[0])
    left_out = {"packed"} if fault else set()
    if few_rows_of(dtype) is None:
        left_out.add(FEW_ROWS)
    layouts = [name for name in LAYOUTS if name not in left_out]
    calls = {
        name: [products_of(to_layout(w, name), None, name)[0] for w in weights] for name in layouts
    }
    times: Times = {name: [] for name in layouts}
    order = random.Random(0)
    for rows in ROWS:
        x = torch.randn(rows, inputs, generator=generator).to(dtype)
        best = dict.fromkeys(layouts, float("inf"))
        for _ in range(REPEATS):
            for name in order.sample(layouts, len(layouts)):
                # the first time brings back what the other layouts have displaced from the caches
                for _ in range(2):
                    began = time.perf_counter()
                    for call in calls[name]:
                        call(x)
                best[name] = min(best[name], (time.perf_counter() - began) / count * 1e6)
        for name in layouts:  # the least of several: other programs of the machine only ever add
            times[name].append(best[name])
    return times, fault


def cache_file() -> Path:
    """File with the autotuner's results of this user's machines."""
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        / "skipbench"
        / "kernels.json"
    )


def tuned(
    outputs: int, inputs: int, dtype: torch.dtype, pass_bytes: int = AUTOTUNE_WORKING_SET_BYTES
) -> tuple[Times, str | None]:
    """`autotune`, or what the file holds of an earlier one with this processor, torch, `few_rows`,
    number of threads, dtype, shape and amount.
    """
    parts = [cpu_name(), torch.backends.cpu.get_cpu_capability(), f"torch {torch.__version__}"]
    if (kernel := few_rows_of(dtype)) is not None:
        parts.append(f"{FEW_ROWS} {kernel}")
    key = "; ".join(
        [
            *parts,
            f"{torch.get_num_threads()} threads",
            str(dtype),
            f"{inputs}x{outputs}",
            f"{min(AUTOTUNE_WORKING_SET_BYTES, pass_bytes) >> 20} MiB",
        ]
    )
    known = _read().get(key)
    if not _is_valid(known):
        times, fault = autotune(outputs, inputs, dtype, pass_bytes)
        known = _store(
            key,
            {"times": {k: [round(v, 2) for v in row] for k, row in times.items()}, "fault": fault},
        )
    return known["times"], known["fault"]


def _store(key: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Stores an entry and returns it, or the one of a process that tuned at the same time: all of a
    machine choose alike.
    """
    found = _read()
    if _is_valid(earlier := found.get(key)):
        return earlier
    # a home that cannot be written to costs a race at every load, no more
    with contextlib.suppress(SkipbenchError):
        write_atomic(cache_file(), json.dumps(found | {key: entry}, indent=1) + "\n")
    return entry


def _read() -> dict[str, Any]:
    """The file's entries; none where it is missing or broken, and the next race writes it anew."""
    try:
        found = json.loads(cache_file().read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_valid(entry: Any) -> TypeGuard[dict[str, Any]]:
    if (
        not isinstance(entry, dict)
        or not isinstance(entry.get("times"), dict)
        or "fault" not in entry
    ):
        return False
    rows = entry["times"].values()
    return {"rows", "columns"} <= set(entry["times"]) <= set(LAYOUTS) and all(
        isinstance(r, list)
        and len(r) == len(ROWS)
        and all(isinstance(t, float) and t > 0 for t in r)
        for r in rows
    )
