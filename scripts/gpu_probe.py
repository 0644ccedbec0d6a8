"""What a GPU and its torch do, before any engine is timed: a line of JSON per figure.

    python scripts/gpu_probe.py [--small]       small: on the CPU, to show that it runs

Times are medians of replayed graphs, so that no launch counts; on a CPU of calls.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from importlib import metadata
from itertools import product
from typing import Any

import msgspec
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from skipbench.config.catalog import known_hardware
from skipbench.profile.roofline import device_name, match, memory_rates, read_bandwidth
from skipbench.runs.gpu import gpu

KERNELS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION")
ROWS = (1, 2, 4, 8, 9, 16, 17, 32, 33, 64)
PADDED = 16  # rows at which a strict engine would run every pass
SHAPES = {  # products of Llama-3-8B: [out, in]
    "qkv": (6144, 4096), "o": (4096, 4096), "gate and up": (28672, 4096), "down": (4096, 14336),
    "head": (128256, 4096),
}  # fmt: skip
CACHES_BYTES = 300e6  # weights are taken in turns that are larger than a GPU's caches
Line = dict[str, Any]
Figures = Iterator[Line]


class Probe:
    """The device, and the sizes of what is timed on it."""

    def __init__(self, small: bool) -> None:
        self.small, self.device = small, torch.device("cpu" if small else "cuda")
        self.dtype = torch.bfloat16

    def ms(self, call: Callable[[], object], repeats: int = 30) -> float:
        """Median milliseconds of a call, once it has been made."""
        call()
        if self.small:
            began = time.perf_counter()
            call()
            return 1e3 * (time.perf_counter() - began)
        call()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            call()
        times = []
        for _ in range(repeats):
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            graph.replay()
            last.record()
            last.synchronize()
            times.append(first.elapsed_time(last))
        return statistics.median(times)

    def normal(self, *sizes: int, dtype: torch.dtype | None = None) -> Tensor:
        return torch.randn(*sizes, device=self.device, dtype=dtype or self.dtype)

    def environment(self) -> Figures:
        facts: Line = {
            "python": sys.version.split()[0], "torch": torch.__version__,
            "transformers": metadata.version("transformers"), "cuda": torch.version.cuda,
            "cudnn": torch.backends.cudnn.version(), "cores": os.cpu_count(),
        }  # fmt: skip
        if not self.small:
            about = torch.cuda.get_device_properties(0)
            facts |= {"gpu": about.name, "multiprocessors": about.multi_processor_count}
            facts |= {"capability": f"{about.major}.{about.minor}", "bytes": about.total_memory}
            facts |= msgspec.to_builtins(gpu(f"GPU-{about.uuid}"))
        yield facts

    def ceilings(self) -> Figures:
        """Rates of the memory over several GiB, and the datasheet's."""
        name = match(device_name(self.device), known_hardware())
        sheet = known_hardware()[name].bandwidth if name else None
        line = {"datasheet GB/s": sheet / 1e9 if sheet else None}
        if self.small:
            yield line | {"read GB/s": read_bandwidth(self.device, 1 << 22) / 1e9}
        else:
            rates = memory_rates(self.device)
            yield line | {"read GB/s": rates.read / 1e9, "copy GB/s": rates.copy / 1e9}

    def attention_inputs(self, rows: int, context: int, dtype: torch.dtype | None = None) -> Any:
        """Queries of 32 heads in 8 groups, and a cache as the engines lay it out."""
        cache = self.normal(context, 16, 128, dtype=dtype)
        key, value = (t.transpose(0, 1)[None] for t in cache.chunk(2, 1))
        return self.normal(1, 8, 4 * rows, 128, dtype=dtype), key, value

    def kernels_chosen(self) -> Figures:
        one, wide = self.attention_inputs(1, 1000), self.attention_inputs(9, 1000)
        mask = torch.zeros(36, 1000, device=self.device, dtype=self.dtype)
        exact = self.attention_inputs(1, 1000, torch.float32)
        cases = {"one row": one, "9 rows, masked": (*wide, mask), "one row, float32": exact}
        for case, given in cases.items():
            chosen = SDPBackend(torch._fused_sdp_choice(*given))
            yield {"case": case, "kernel": chosen.name, "cuDNN allowed": _cudnn_allowed()}

    def layouts(self) -> Figures:
        """Strides of what attention returns: code that takes a view of it depends on them."""
        for name, dtype in product(KERNELS, (torch.float32, torch.bfloat16)):
            try:
                with sdpa_kernel(getattr(SDPBackend, name)):
                    out = F.scaled_dot_product_attention(*self.attention_inputs(1, 200, dtype))
            except RuntimeError:
                continue  # this kernel has no such type
            yield {"kernel": name, "dtype": str(dtype), "strides": str(out.stride())}

    def new_lengths(self) -> Figures:
        """Milliseconds of a call at a length that was not met before, and when met again."""
        query, key, value = self.attention_inputs(1, 1100)
        lengths = range(1000, 1004 if self.small else 1048)
        for name in ("as chosen", *KERNELS):
            free = name == "as chosen"
            times = []
            try:
                for _ in range(2):
                    began = time.perf_counter()
                    with nullcontext() if free else sdpa_kernel(getattr(SDPBackend, name)):
                        for n in lengths:
                            F.scaled_dot_product_attention(query, key[:, :, :n], value[:, :, :n])
                    if not self.small:
                        torch.cuda.synchronize()
                    times.append(1e3 * (time.perf_counter() - began) / len(lengths))
            except RuntimeError as error:
                yield {"kernel": name, "refused": str(error).partition("\n")[0][:100]}
                continue
            yield {"kernel": name, "new ms": times[0], "met ms": times[1]}

    def bits_by_rows(self) -> Figures:
        """Of 16 rows, how many get other bits alone, padded to 16, and in another place of 16."""
        for name, (outs, ins) in self.shapes():
            weight, rows = self.normal(outs, ins), self.normal(PADDED, ins)
            whole, zeros = rows @ weight.T, rows.new_zeros(PADDED, ins)
            alone = [r[None] @ weight.T for r in rows]
            padded = [torch.cat((r[None], zeros[1:])) @ weight.T for r in rows]
            moved = [torch.cat((rows[i:], zeros[:i])) @ weight.T for i in range(PADDED)]
            unlike = (sum(not torch.equal(w, o[0]) for w, o in zip(whole, others, strict=True))
                      for others in (alone, padded, moved))  # fmt: skip
            yield {"product": name, **dict(zip(("alone", "padded", "moved"), unlike, strict=True))}

    def attention(self) -> Figures:
        for context, rows in product((256,) if self.small else (2048, 16384), (1, 9, 32)):
            given = self.attention_inputs(rows, context)
            mask = torch.zeros(4 * rows, context, device=self.device, dtype=self.dtype)
            line: Line = {"context": context, "rows": rows}
            for name in KERNELS:
                try:
                    with sdpa_kernel(getattr(SDPBackend, name)):
                        m = None if name == "FLASH_ATTENTION" else mask
                        took = self.ms(lambda g=given, m=m: F.scaled_dot_product_attention(*g, m))
                except RuntimeError:
                    continue  # this kernel does not take it
                line[f"{name} us"] = 1e3 * took
            yield line

    def products(self) -> Figures:
        """GB/s at which products read their weights."""
        for name, (outs, ins) in self.shapes():
            size_bytes = 2 * outs * ins
            count = 1 if self.small else max(1, min(8, round(CACHES_BYTES / size_bytes)))
            weights = [self.normal(outs, ins) for _ in range(count)]
            line: Line = {"product": name}
            for rows in ROWS[:2] if self.small else ROWS:
                x = self.normal(rows, ins)
                took = self.ms(lambda x=x, ws=weights: [x @ w.T for w in ws]) / count
                line[f"{rows} rows"] = size_bytes / took / 1e6
            yield line

    def shapes(self) -> Sequence[tuple[str, tuple[int, int]]]:
        return [("o", (256, 256))] if self.small else list(SHAPES.items())


def _cudnn_allowed() -> bool:
    return bool(torch.backends.cuda.cudnn_sdp_enabled())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    probe = Probe(parser.parse_args().small)
    with torch.inference_mode():
        for figures in (
            probe.environment, probe.ceilings, probe.kernels_chosen, probe.layouts,
            probe.new_lengths, probe.bits_by_rows, probe.attention, probe.products,
        ):  # fmt: skip
            title = figures.__name__.replace("_", " ")
            try:
                for line in figures():
                    print(json.dumps({"table": title} | line), flush=True)
            except Exception as error:  # the next is made
                text = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
                print(json.dumps({"table": title, "error": text}), flush=True)


if __name__ == "__main__":
    main()
