"""Passes of the engine of graphs on a planted model, a line of JSON per figure.

python scripts/gpu_passes.py FIGURES [--small] [--shape NAME]

ceilings    the machine, and the rates of its memory
kernels     where the time of a pass goes
rows        bits of rows, verified together and alone; logits beside those of float32
passes      by rows, context and sizes
plans       a draft step by plan
long        allocations in long texts
"""

import argparse
import json
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from importlib import metadata
from typing import Any

import msgspec
import torch

from scripts.gpu_predictions import CONTEXTS, ROWS, SMALL_CONTEXT, SMALLEST
from skipbench.config.catalog import known_hardware, shape_of
from skipbench.decode.loop import generate
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import VARIANTS, DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm import proof
from skipbench.lm.model import LM
from skipbench.lm.proof import compare_rows
from skipbench.lm.rows import TokenRows
from skipbench.methods.fixed import FixedSet
from skipbench.models.load import make_lm
from skipbench.models.random_weights import planted_model
from skipbench.profile.clock import synchronize, timed
from skipbench.profile.roofline import (
    device_name,
    match,
    memory_rates,
    read_bandwidth,
    row_bytes,
)
from skipbench.runs.gpu import gpu
from skipbench.skipset import planted_set

WORDS = 500
SHOWN = 15  # kernels of a pass
OWN = ("attend_splits", "qkv_rotated", "linear", "gated")  # kernels of a layer that are ours
Found = dict[str, Any]  # a line that is printed
Figures = Iterator[Found]


def engine_of(lm: LM, asked: str = "cuda_graphs") -> Found:
    """The engine that runs, and the one that was asked for, if another."""
    name = lm.engine.name
    other = {"engine_asked": asked} if name != asked else {}
    return {"engine": name, **other, "notes": "; ".join(lm.notes())}


def model_of(small: bool, shape: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A planted model: half of its sub-layers are redundant and known."""
    sizes, device = shape_of(shape), "cpu" if small else "cuda"
    return planted_model(sizes, planted_set(sizes.layers, 0.5, 0), 0, dtype, device, WORDS)


def graphs(small: bool, shape: str, capacity: int) -> LM:
    """A model on graphs, strict where that can be kept."""
    lm = make_lm(model_of(small, shape), "cuda_graphs", None)
    lm.allocate(capacity)
    return lm


def prompt(length: int) -> list[int]:
    return [7 * i % WORDS for i in range(length)]


def milliseconds(lm: LM, context: int, rows: int, plan: DraftPlan | None, calls: int) -> float:
    """Of a pass after `context` tokens: the least of three means."""

    def steps() -> None:
        for _ in range(calls):
            lm.logits([5] * rows, TokenRows.chain(context, rows).verified(), plan)

    steps()  # captures; a set of sub-layers has a graph of its own from its 8th use on
    return 1e3 * min(timed(steps, lm.output_device) for _ in range(3)) / calls


def ceilings(small: bool, shape: str) -> Figures:
    """The machine; rates of its memory over several GiB, and the datasheet's."""
    facts: Found = {
        "python": sys.version.split()[0], "torch": torch.__version__,
        "transformers": metadata.version("transformers"), "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "cores": os.cpu_count(),
    }  # fmt: skip
    device = torch.device("cpu" if small else "cuda")
    if not small:
        about = torch.cuda.get_device_properties(0)
        facts |= {"gpu": about.name, "multiprocessors": about.multi_processor_count}
        facts |= {"capability": f"{about.major}.{about.minor}", "bytes": about.total_memory}
        facts |= msgspec.to_builtins(gpu(f"GPU-{about.uuid}"))
    yield {"table": "environment"} | facts
    name = match(device_name(device), known_hardware())
    sheet = known_hardware()[name].bandwidth if name else None
    line: Found = {"table": "ceilings", "datasheet GB/s": sheet / 1e9 if sheet else None}
    if small:
        yield line | {"read GB/s": read_bandwidth(device, 1 << 22) / 1e9}
    else:
        rates = memory_rates(device)
        yield line | {"read GB/s": rates.read / 1e9, "copy GB/s": rates.copy / 1e9}


def passes(small: bool, shape: str) -> Figures:
    """Milliseconds of a pass by rows and context, and of a draft without half of the sub-layers;
    the share of a copy's rate at which weights and cache are read.
    """
    copy = None if small else memory_rates(torch.device("cuda")).copy
    sizes = {shape: (CONTEXTS, ROWS), SMALLEST: ((SMALL_CONTEXT,), (1, 9))}
    for name, (contexts, every) in ({shape: ((20, 40), ROWS)} if small else sizes).items():
        lm = graphs(small, name, contexts[-1] + 16)
        half, calls = planted_set(lm.layers, 0.5, 0), 1 if small else 20
        for context in contexts:
            lm.prefill(prompt(context))
            of = {"table": "", "model": name, "context": context}
            read_s = copy and (lm.weight_bytes + context * row_bytes(lm)) / copy
            whole = dict[int, float]()
            for rows in every:
                whole[rows] = ms = milliseconds(lm, context, rows, None, calls)
                share = {"share": ms / whole[1], "of copy": read_s and 1e3 * read_s / ms}
                yield of | engine_of(lm) | {"rows": rows, "plan": "whole", "ms": ms} | share
            ms = milliseconds(lm, context, 1, half, calls)
            yield of | engine_of(lm) | {"rows": 1, "plan": "half", "ms": ms, "share": ms / whole[1]}
        yield {"table": "graphs", "model": name, **engine_of(lm), **lm.engine.captured()._asdict()}


def plans(small: bool, shape: str) -> Figures:
    """Milliseconds of a draft step by plan and context, and as a share of a whole pass."""
    contexts, calls = ((20, 40), 2) if small else ((2048, 15_000), 20)
    lm = graphs(small, shape, contexts[-1] + 16)
    half = planted_set(lm.layers, 0.5, 0)
    made = [DraftPlan.of(lm.layers), half]
    made += [replace(plan, variant=name) for name in VARIANTS for plan in made[:2]]
    for context in contexts:
        lm.prefill(prompt(context))
        whole: float | None = None
        for plan in made:
            ms = milliseconds(lm, context, 1, plan, calls)  # quantises, too
            whole = whole or ms
            line = {"table": "", **engine_of(lm), "model": shape, "context": context}
            yield line | {"plan": short(plan), "ms": ms, "share of a pass": ms / whole}


def short(plan: DraftPlan) -> str:
    """A plan's text, its skip set as a share."""
    rest = str(replace(plan, skipped=frozenset()))
    left_out = f"{plan.ratio:.0%} of sub-layers left out" if plan.skipped else ""
    rest = re.sub(r"^(int\d)[^;]*", r"\1", rest)
    return "; ".join(filter(None, (rest, left_out))) or "whole"


def kernels(small: bool, shape: str) -> Figures:
    """The kernels of a whole pass that take longest, and all together, by torch.profiler; on a CPU
    its operators.
    """
    context = 20 if small else 2048
    lm = graphs(small, shape, context + 16)
    lm.prefill(prompt(context))

    def call() -> object:
        return lm.logits([5], TokenRows.chain(context, 1))

    for _ in range(3):
        call()
    wall_us = 1e6 * timed(call, lm.output_device)
    kinds, devices = torch.profiler.ProfilerActivity, torch.autograd.DeviceType
    with torch.profiler.profile(activities=[kinds.CPU, *[kinds.CUDA] * (not small)]) as run:
        call()
        synchronize(lm.output_device)
    times = [
        (e.key, e.count, float(e.self_cpu_time_total if small else e.self_device_time_total))
        for e in run.key_averages()
        if e.device_type == (devices.CPU if small else devices.CUDA)
    ]
    total, table = sum(us for _, _, us in times), {"table": "a whole pass"}
    ours = [name for name in OWN if any(name in key for key, _, _ in times)]
    own = {"own": ", ".join(ours), "lacking": ", ".join(n for n in OWN if n not in ours)}
    together = {"kernel": "all", "calls": sum(n for _, n, _ in times), "us": total}
    yield table | engine_of(lm) | together | {"share": total / wall_us, "of wall us": wall_us} | own
    for name, count, us in sorted(times, key=lambda t: -t[2])[:SHOWN]:
        yield table | {"kernel": name[:100], "calls": count, "us": us, "share": us / total}


def rows(small: bool, shape: str) -> Figures:
    """Rows verified together against the same rows alone, bit by bit; then logits."""
    name = "4x64" if small else "4x2048"
    for dtype in (torch.bfloat16, torch.float32):
        model, kind = model_of(small, name, dtype), str(dtype).removeprefix("torch.")
        cases = (
            {"cuda_graphs": 10_000, "fused": 2000} if kind == "bfloat16" else {"cuda_graphs": 2000}
        )
        for engine, count in cases.items():
            line: Found = {"table": "rows", "dtype": kind, "strict": True}
            try:
                lm = LM(model, engine, strict=True)
                found = compare_rows(lm, 8 if small else count)
                yield line | engine_of(lm, engine) | found._asdict()
            except SkipbenchError as error:
                yield line | {"engine": engine, "refused": str(error)}
        yield logits(model)


def logits(model: Any) -> Found:
    """How far logits are from those of float32, relative to these: of graphs, and of fused."""
    lm, fused = LM(model, "cuda_graphs"), LM(model, "fused")
    apart = {"graphs": 0.0, "fused": 0.0}
    for context, count in ((20, 1), (57, 9), (250, 16)):
        text = prompt(context + count)
        wanted = lm.float32_logits(text, count)
        assert wanted is not None
        for name, one in (("graphs", lm), ("fused", fused)):
            one.allocate(512)
            one.prefill(text[:context])
            found = one.logits(text[context:], TokenRows.chain(context, count)).float().cpu()
            off = float((found - wanted).norm() / wanted.norm())
            apart[name] = max(apart[name], off if off == off else float("inf"))
    kind = str(lm.dtype).removeprefix("torch.")
    return {"table": "logits", "dtype": kind} | engine_of(lm) | apart


def long(small: bool, shape: str) -> Figures:
    """Allocations that the driver saw in long texts, once every length has been met."""
    context, tokens, texts = (40, 12, 1) if small else (2048, 1024, 4)
    lm = graphs(small, shape, context + tokens + 64)
    method = FixedSet("planted", planted_set(lm.layers, 0.5, 0), Fixed(8))
    stats: Callable[[], Found] = dict if small else torch.cuda.memory_stats
    for _ in range(2):  # a capture empties the allocator, so the text after it allocates anew
        generate(lm, method, prompt(context), tokens)
    before = stats().get("num_device_alloc", 0)
    for _ in range(texts):
        generate(lm, method, prompt(context), tokens)
    made = stats().get("num_device_alloc", 0) - before
    yield {"table": "long texts", **engine_of(lm), "tokens": texts * tokens, "allocations": made}


PARTS = {
    "ceilings": ceilings, "kernels": kernels, "rows": rows, "passes": passes, "plans": plans,
    "long": long,
}  # fmt: skip


def show(figures: Figures, small: bool) -> None:
    """Prints lines as they come."""
    torch.set_num_threads(1)  # on a busy machine two threads can stall one another
    proof.PROBED = 8 if small else proof.PROBED
    with torch.inference_mode():
        for line in figures:
            print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", choices=PARTS)
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--shape", default="llama3-8b")
    args = parser.parse_args()
    show(PARTS[args.figures](args.small, args.shape), args.small)


if __name__ == "__main__":
    main()
