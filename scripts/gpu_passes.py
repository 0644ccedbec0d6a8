"""Passes of the engines on a planted model, a line of JSON per figure.

    python scripts/gpu_passes.py passes [--small]          by rows, context and sizes
    python scripts/gpu_passes.py plans [--small]           a draft step by plan
    python scripts/gpu_passes.py kernels [--small]         where the time of a pass goes
    python scripts/gpu_passes.py strict [--small]          bits of rows, verified together and alone
    python scripts/gpu_passes.py rounds RESULTS DEVICE     what the host takes of a round
    python scripts/gpu_passes.py rounds RESULTS            the same of runs that are there

small: on the CPU, to show that it runs.
"""

import argparse
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from scripts.gpu_predictions import CONTEXTS, ROWS, SMALL_CONTEXT
from skipbench.cli.main import dispatch
from skipbench.config.catalog import shape_of
from skipbench.draft_plan import VARIANTS, DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.lm.model import LM
from skipbench.lm.proof import compare_rows
from skipbench.lm.rows import TokenRows
from skipbench.metrics.acceptance import rounds_with_sets
from skipbench.models.random_weights import planted_model
from skipbench.profile.clock import timed
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run
from skipbench.skipset import planted_set

WORDS = 500
SHOWN = 15  # kernels of a pass
Found = dict[str, Any]  # a line that is printed
Figures = Iterator[Found]


def engine_of(lm: LM, asked: str = "cuda_graphs") -> Found:
    """The engine that runs, and the one that was asked for, if another."""
    name = lm.engine.name
    return {"engine": name} | ({"engine_asked": asked} if name != asked else {})


def graphs(small: bool, capacity: int) -> LM:
    """A model on graphs."""
    shape = shape_of("4x64" if small else "llama3-8b")
    device, dtype = ("cpu", torch.float32) if small else ("cuda", torch.bfloat16)
    model = planted_model(shape, planted_set(shape.layers, 0.5, 0), 0, dtype, device, WORDS)
    lm = LM(model, "cuda_graphs")
    lm.allocate(capacity)
    return lm


def strict_lm(small: bool, name: str, capacity: int) -> tuple[LM, Found]:
    """A model of these sizes on graphs, strict where that can be kept, and a line on it."""
    shape = shape_of(name)
    device, dtype = ("cpu", torch.float32) if small else ("cuda", torch.bfloat16)
    model = planted_model(shape, planted_set(shape.layers, 0.5, 0), 0, dtype, device, WORDS)
    line: Found = {"table": "strict", "model": name}
    try:
        lm = LM(model, "cuda_graphs", strict=True)
    except SkipbenchError as error:
        lm = LM(model, "cuda_graphs")
        line |= {"refused": str(error)[:200]}
    lm.allocate(capacity)
    return lm, line | {"notes": "; ".join(lm.notes())}


def milliseconds(lm: LM, context: int, rows: int, plan: DraftPlan | None, calls: int) -> float:
    """Of a pass after `context` tokens: the least of three means."""

    def steps() -> None:
        for _ in range(calls):
            lm.logits([5] * rows, TokenRows.chain(context, rows).verified(), plan)

    steps()  # captures; a set of sub-layers has a graph of its own from its 8th use on
    return 1e3 * min(timed(steps, lm.output_device) for _ in range(3)) / calls


@torch.inference_mode()
def passes(small: bool) -> Figures:
    """Milliseconds of a pass by rows and context, and of a draft without half of the sub-layers."""
    sizes = {"llama3.1-8b": (CONTEXTS, ROWS), "smollm2-135m": ((SMALL_CONTEXT,), (1, 9))}
    for name, (contexts, all_rows) in ({"4x64": ((20, 40), ROWS)} if small else sizes).items():
        lm, line = strict_lm(small, name, contexts[-1] + 16)
        half, calls = planted_set(lm.layers, 0.5, 0), 1 if small else 20
        for context in contexts:
            lm.prefill([7 * i % WORDS for i in range(context)])
            of = {"table": "", "model": name, **engine_of(lm), "context": context}
            whole = dict[int, float]()
            for rows in all_rows:
                whole[rows] = ms = milliseconds(lm, context, rows, None, calls)
                share = {"share": ms / whole[1]}
                yield of | {"rows": rows, "plan": "whole", "ms": ms} | share
            ms = milliseconds(lm, context, 1, half, calls)
            yield of | {"rows": 1, "plan": "half", "ms": ms, "share": ms / whole[1]}
        yield line | lm.engine.captured()._asdict()


@torch.inference_mode()
def plans(small: bool) -> Figures:
    """Milliseconds of a draft step by plan and context, and as a share of a whole pass."""
    contexts, calls = ((20, 40), 2) if small else ((2048, 15_000), 20)
    lm = graphs(small, contexts[-1] + 16)
    half = planted_set(lm.layers, 0.5, 0)
    made = [DraftPlan.of(lm.layers), half]
    made += [replace(plan, variant=name) for name in VARIANTS for plan in made[:2]]
    for context in contexts:
        lm.prefill([7 * i % WORDS for i in range(context)])
        whole: float | None = None
        for plan in made:
            ms = milliseconds(lm, context, 1, plan, calls)  # quantises, too
            whole = whole or ms
            line = {"table": "", **engine_of(lm), "context": context}
            yield line | {"plan": short(plan), "ms": ms, "share of a pass": ms / whole}
    yield {"table": "notes", **engine_of(lm), "notes": "; ".join(lm.notes())}


def short(plan: DraftPlan) -> str:
    """A plan's text, its skip set as a share."""
    rest = str(replace(plan, skipped=frozenset()))
    left_out = f"{plan.ratio:.0%} of sub-layers left out" if plan.skipped else ""
    rest = re.sub(r"^(int\d)[^;]*", r"\1", rest)
    return "; ".join(filter(None, (rest, left_out))) or "whole"


@torch.inference_mode()
def kernels(small: bool) -> Figures:
    """Kernels of one whole pass and of one without half of the sub-layers, by torch.profiler."""
    context = 20 if small else 2048
    lm = graphs(small, context + 16)
    half = planted_set(lm.layers, 0.5, 0)
    lm.prefill([7 * i % WORDS for i in range(context)])
    for what, skip in (("a whole pass", None), ("half a pass", half)):

        def call(skip: Any = skip) -> object:
            return lm.logits([5], TokenRows.chain(context, 1), skip)

        for _ in range(3):
            call()
        wall_us = 1e6 * timed(call, lm.output_device)
        yield from _kernels(call, wall_us, f"{what}, {lm.engine.name}", small)


def _kernels(call: Callable[[], object], wall_us: float, title: str, small: bool) -> Figures:
    """The kernels that take longest, and all together; on a CPU its operators."""
    kinds = torch.profiler.ProfilerActivity
    watched = [kinds.CPU] if small else [kinds.CPU, kinds.CUDA]
    with torch.profiler.profile(activities=watched) as run:
        call()
        if not small:
            torch.cuda.synchronize()
    wanted = torch.autograd.DeviceType.CPU if small else torch.autograd.DeviceType.CUDA
    times = [
        (e.key, e.count, float(e.self_cpu_time_total if small else e.self_device_time_total))
        for e in run.key_averages()
        if e.device_type == wanted
    ]
    total = sum(us for _, _, us in times)
    together = {"kernel": "all", "calls": sum(n for _, n, _ in times), "us": total}
    yield {"table": title, **together, "share": total / wall_us, "of wall us": wall_us}
    for name, count, us in sorted(times, key=lambda t: -t[2])[:SHOWN]:
        yield {"table": title, "kernel": name[:100], "calls": count, "us": us, "share": us / total}


def strict(small: bool) -> Figures:
    """Rows verified together against the same rows alone, bit by bit, without `strict` and with."""
    shape = shape_of("2x64" if small else "4x2048")
    device, dtype = ("cpu", torch.float32) if small else ("cuda", torch.bfloat16)
    model = planted_model(shape, DraftPlan.of(shape.layers), 0, dtype, device, WORDS)
    cases = (("cuda_graphs", True, 10_000), ("cuda_graphs", False, 2000), ("fused", True, 2000))
    for engine, wanted, rows in cases:
        line: Found = {"table": "", "engine": engine, "strict": wanted}
        try:
            lm = LM(model, engine, wanted)
            line |= engine_of(lm, engine)
            found = compare_rows(lm, 20 if small else rows)
            yield line | found._asdict()
        except SkipbenchError as error:
            yield line | {"refused": str(error)[:200]}


def small_model(results: Path, device: str) -> None:
    """Runs of the embedded model, whose passes are short, for `rounds`."""
    limit, tokens = (2, 8) if device == "cpu" else (8, 64)
    words = ["engine=cuda_graphs", "model=tiny", f"model.device={device}", f"limit={limit}"]
    words += ["dataset=mini-stories", f"dataset.max_new_tokens={tokens}", f"results={results}"]
    dispatch(["method=prompt-lookup,suffix,recycling,auto", *words, "--json"])


def rounds(results: Path) -> None:
    """Of every run the milliseconds of a round by phase and by rows, and how far a line through
    every other prompt's rounds predicts those of the others.
    """
    for folder in run_folders(results):
        run = read_run(folder)
        if run.provenance.layers is None or len(run.sound) < 2:
            continue
        halves = [list[tuple[int, float]](), list[tuple[int, float]]()]
        for number, arm in enumerate(run.arms):
            shown = rounds_with_sets(arm, run.provenance.layers)
            rows = [1 + counts.nodes + how.extra_rows for counts, _, how in shown]
            halves[number % 2] += zip(rows, arm.round_s, strict=True)
        every = [*halves[0], *halves[1]]
        slope, base = np.polyfit(*zip(*halves[0], strict=True), 1)
        line = {"rounds": run.method, "n": len(every), "rows": fmean(n for n, _ in every)}
        for phase in ("draft", "verify", "adapt", "other"):
            total = sum(getattr(arm.seconds, phase) for arm in run.arms)
            line[f"{phase} ms"] = 1e3 * total / len(every)
        line |= {"round ms": 1e3 * base, "row ms": 1e3 * slope}
        predicted = sum(base + slope * n for n, _ in halves[1]) / sum(s for _, s in halves[1])
        print(json.dumps(line | {"predicted": predicted}), flush=True)


PARTS = {"passes": passes, "plans": plans, "kernels": kernels, "strict": strict}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("figures", choices=(*PARTS, "rounds"))
    parser.add_argument("of", nargs="*", help="RESULTS DEVICE, of rounds")
    parser.add_argument("--small", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.figures == "rounds":
        results, *device = args.of
        for one in device:
            small_model(Path(results), one)
        rounds(Path(results))
        return
    for line in PARTS[args.figures](args.small):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
