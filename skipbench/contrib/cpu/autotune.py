"""The autotuner of weight layouts: measures once which layout and product is fastest on a machine,
and keeps the result in a file.

A weight [out, in] can be kept as `rows` (as Hugging Face keeps it), as `columns` ([in, out] in
memory), both multiplied by `torch.mm`, `packed` by oneDNN, through two private operators of torch
that are used only where they agree with `F.linear`, or as `few_rows`: `rows` with a product of our
own.
"""

import contextlib
import itertools
import random
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import torch
import torch.nn.functional as F
from msgspec import Meta
from torch import Tensor

from skipbench.config.configurable import PositiveFloat
from skipbench.config.paths import cache_folder
from skipbench.contrib.cpu.few_rows import FEW_ROWS, FewRows, Product, Sum, few_rows_kernel
from skipbench.contrib.cpu.native import source_of
from skipbench.errors import SkipbenchError
from skipbench.runs.files import write_atomic
from skipbench.runs.provenance import cpu_name

ROWS = (1, 4, 9)  # row counts that are tuned: a step of decoding, and two sizes of verification
DRAFT_STEPS = 4  # one-row passes in a usual round: eight draft steps with half of the sub-layers
MIN_GAIN = 1.05  # keep a second copy of a weight only if it speeds up a round by at least 5 %
# The autotuner cycles through so much, so that it measures memory and not cache speed; models
# smaller than this are tuned with their own size.
AUTOTUNE_WORKING_SET_BYTES = 48 << 20
MOST_WEIGHTS = 256
PART_BYTES = 64 << 20  # of a larger weight only so much is tuned: memory bounds its time
REPEATS = 25  # after 7 the minimum for nine rows was still up to twice the final one

Times = dict[str, list[float]]  # microseconds of every layout for `ROWS` rows
LAYOUTS = ("rows", "columns", "packed", FEW_ROWS)


class LayoutChoice(NamedTuple):
    """Layouts for one row and for several; they are the same where one copy is kept."""

    one: str
    several: str

    @property
    def layouts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.one, self.several)))

    def __str__(self) -> str:
        same = self.one == self.several
        return self.one if same else f"{self.one} for one row, {self.several} for several"


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
        for c in itertools.starmap(LayoutChoice, itertools.product(times, times))
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


def products(weight: Tensor, bias: Tensor | None, layout: str = "") -> tuple[Product, Sum]:
    """`x [T, in] -> [T, out]` and `residual, x -> residual + product`, for a weight as `to_layout`
    gave it.
    """
    if layout == FEW_ROWS and (kernel := few_rows_kernel(weight.dtype)[0]):
        product = FewRows(weight, bias, kernel)
        return product, product.added
    if weight.is_mkldnn:
        pointwise = torch.ops.mkldnn._linear_pointwise
        plain, binary = pointwise.default, pointwise.binary
        return (lambda x: plain(x, weight, bias, "none", [], "")), (
            lambda r, x: binary(x, r, weight, bias, "add")
        )
    across = weight.t()
    if bias is None:
        return partial(torch.mm, mat2=across), partial(torch.addmm, mat2=across)
    biased = partial(torch.addmm, bias, mat2=across)
    return biased, (lambda r, x: r + biased(x))


def packing_unsupported(weight: Tensor) -> str | None:
    """The reason not to use the packed product for weights like this one; `None` for none."""
    try:
        product, added = products(to_layout(weight, "packed"), None)
        generator = torch.Generator().manual_seed(0)
        for rows in ROWS:
            x = torch.randn(rows, weight.shape[1], generator=generator).to(weight.dtype)
            residual = torch.randn(rows, weight.shape[0], generator=generator).to(weight.dtype)
            wanted = F.linear(x.float(), weight.float())
            largest = 1.0 + float(wanted.abs().max()) + float(residual.abs().max())
            tolerance = 4 * torch.finfo(weight.dtype).eps * largest * weight.shape[1] ** 0.5
            pairs = (product(x), wanted), (added(residual, x), wanted + residual.float())
            for result, right in pairs:
                if not float((result.float() - right).abs().max()) <= tolerance:
                    return "it does not agree with torch.nn.functional.linear"
    except (RuntimeError, AttributeError, NotImplementedError, TypeError) as error:
        return " ".join(str(error).split())[:120]
    return None


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
    working_set = min(AUTOTUNE_WORKING_SET_BYTES, pass_bytes)
    count = max(1, min(MOST_WEIGHTS, working_set // (outputs * inputs * dtype.itemsize)))
    weights = [
        (torch.randn(outputs, inputs, generator=generator) * inputs**-0.5).to(dtype)
        for _ in range(count)
    ]
    fault = packing_unsupported(weights[0])
    left_out = {"packed": fault is not None, FEW_ROWS: few_rows_kernel(dtype)[0] is None}
    layouts = [name for name in LAYOUTS if not left_out.get(name)]
    calls = {
        name: [products(to_layout(w, name), None, name)[0] for w in weights] for name in layouts
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
        for name in layouts:  # the minimum of several: other programs of the machine only ever add
            times[name].append(best[name])
    return times, fault


class Entry(msgspec.Struct):
    """One result in the file."""

    times: dict[
        str, Annotated[list[PositiveFloat], Meta(min_length=len(ROWS), max_length=len(ROWS))]
    ]
    fault: str | None


def cache_file() -> Path:
    """File with the autotuner's results of this user's machines."""
    return cache_folder() / "kernels.json"


def tuned(
    outputs: int, inputs: int, dtype: torch.dtype, pass_bytes: int = AUTOTUNE_WORKING_SET_BYTES
) -> tuple[Times, str | None]:
    """The file's result of an earlier `autotune` with this processor, torch, source of `few_rows`,
    number of threads, dtype, shape and amount; without one, tunes.
    """
    kernel, mib = few_rows_kernel(dtype)[0], min(AUTOTUNE_WORKING_SET_BYTES, pass_bytes) >> 20
    parts = [cpu_name(), torch.backends.cpu.get_cpu_capability(), f"torch {torch.__version__}"]
    parts += [f"{FEW_ROWS} {kernel} {source_of(kernel).digest}"] if kernel is not None else []
    parts += [f"{torch.get_num_threads()} threads", str(dtype), f"{inputs}x{outputs}", f"{mib} MiB"]
    key = "; ".join(parts)
    if (entry := _stored(key)[0]) is None:
        times, fault = autotune(outputs, inputs, dtype, pass_bytes)
        # a process that tuned at the same time may have stored one: all of a machine choose alike
        entry, entries = _stored(key)
        if entry is None:
            entry = Entry({name: [round(t, 2) for t in row] for name, row in times.items()}, fault)
            # without a cache folder that can be written to, every load tunes
            with contextlib.suppress(SkipbenchError):
                text = msgspec.json.format(msgspec.json.encode({**entries, key: entry}), indent=1)
                write_atomic(cache_file(), text.decode() + "\n")
    return entry.times, entry.fault


def _stored(key: str) -> tuple[Entry | None, dict[str, Any]]:
    """The file's entry of a key where it is valid, and all its entries as they are."""
    entries: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError, KeyError):  # ValueError: msgspec's, too
        entries = msgspec.json.decode(cache_file().read_bytes(), type=dict[str, Any])
        entry = msgspec.convert(entries[key], Entry)
        if {"rows", "columns"} <= set(entry.times) <= set(LAYOUTS):
            return entry, entries
    return None, entries
