"""The report of a GPU says what ran, and is fooled by nothing: healthy reports of cards, by their
datasheets, are without a false line; each fault that is planted stands in the first lines.
"""

from collections import defaultdict
from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest
import torch

from scripts import gpu_passes, gpu_verdict
from scripts.gpu_page import page, wrong
from scripts.gpu_predictions import H100, H100_COPY, SIZES, SMALL_CONTEXT, card_of, predictions
from scripts.gpu_steps import MOST, STEPS, held, limit_of_first
from skipbench.config.catalog import known_hardware
from skipbench.lm import proof
from skipbench.lm.cuda_graphs import on_cpu
from skipbench.lm.cuda_graphs.capture import EagerCapture
from skipbench.lm.engines import EAGER_GRAPHS

Report = dict[str, Any]
# times an H100's launches and gaps: that card, another of its generation, a small one of another
GAPS = {"h100-sxm": 1.0, "h200": 1.0, "a100-40gb": 1.4}
METRICS: Report = {"samples": 8, "tokens_per_s": 150.0, "speedup": {"e2e": 1.1}, "M": 2.0,
                   "vanilla": {"tokens_per_s": 140.0}, "lossless": {"identical": 8}}  # fmt: skip


def healthy(name: str) -> Report:
    """What a card that meets its datasheet prints, at 90 % of its memory's rate."""
    sheet, on = known_hardware()[name], {"engine": "cuda_graphs", "notes": ""}
    assert sheet.bandwidth and sheet.memory_bytes
    copy_gb = 0.905 * sheet.bandwidth / 1e9
    facts = {"table": "environment", "gpu": sheet.devices[0], "bytes": sheet.memory_bytes}
    facts |= {"capability": "8.0" if name.startswith("a100") else "9.0"}
    rate: Report = {"table": "ceilings", "copy GB/s": copy_gb}
    predicted = defaultdict[str, list[Report]](list)
    for one, of in zip(predictions(card_of([facts, rate])), predictions(H100), strict=True):
        value = one.value
        if one.key == "ms":
            size, theirs = SIZES[one.line["model"]], SIZES[of.line["model"]]
            context = one.line.get("context", SMALL_CONTEXT)
            gaps = of.value - 1e3 * theirs.read(context) / H100_COPY
            value = GAPS[name] * gaps * size.layers / theirs.layers
            value += 1e3 * size.read(context) / copy_gb
        predicted[one.step].append(on | one.line | {one.key: value})
    predicted["kernels"][0] |= {"own": "linear, gated", "lacking": ""}
    bits = {"table": "rows", "strict": True, "compared": 10_003, "differing": 0, "first": "",
            "gap": 0.0}  # fmt: skip
    logits = {"table": "logits", "fused": 0.006}
    found = {
        "environment and ceilings": [facts, rate],
        "rows": [
            on | bits | {"dtype": "bfloat16"}, on | bits | {"dtype": "float32"},
            on | logits | {"dtype": "bfloat16", "graphs": 0.007},
            on | logits | {"dtype": "float32", "graphs": 2e-6, "fused": 2e-6},
        ],
        "engines": ends("bfloat16", 0),
        "engines in float32": ends("float32", 12),
        "cells": [on | {"method": "swift", "dtype": "bfloat16", "metrics": METRICS}],
        "tests": [{"kind": "tests", "test": "test_a", "outcome": "passed"}],
        "long texts": [on | {"table": "long texts", "allocations": 0}],
    } | predicted  # fmt: skip
    steps = [
        {"name": step.name, "shows": step.shows, "state": "done", "why": "", "seconds": 1.0,
         "found": found.get(step.name, [{"engine": "fused"}]), "tail": ""} for step in STEPS
    ]  # fmt: skip
    known = {"commit": "abc", "began": "now", "seconds": 900.0, "budget_s": 1500.0}
    return {"steps": steps, "rehearsal": False} | known


def ends(dtype: str, as_fused: int) -> list[Report]:
    on = {"engine": "cuda_graphs", "notes": "", "dtype": dtype, "strict": dtype != "float32"}
    cell = {"table": "both engines, end to end", "texts": 12, "as vanilla": 12}
    return [
        *(on | {"table": "start", "from": k, "first token s": 9.0} for k in ("cold", "warm")),
        *(on | cell | {"method": m, "graphs / fused": 1.6, "as fused": as_fused, "alpha": 1.0}
          for m in ("vanilla", "planted")),
        on | {"table": "late rounds", "texts": 12, "equal": 12},
        on | {"table": "two requests", "texts": 8, "equal": 8},
        on | {"table": "memory", "GiB of graphs": 0.9},
    ]  # fmt: skip


def head(report: Report) -> str:
    """The first lines, and what is wrong."""
    return page(report).partition("## The report")[0]


@pytest.mark.parametrize("name", GAPS)
def test_a_healthy_card_has_no_false_line(name: str) -> None:
    report = healthy(name)
    assert wrong(report["steps"]) == []
    assert "**default: yes**" in head(report) and "**no**" not in head(report)
    rate = 0.905e-9 * (known_hardware()[name].bandwidth or 0)
    assert (f"card's {rate:,.0f} GB/s of a copy" in page(report)) == (name != "h100-sxm")


TRITON = "engine=cuda_graphs: Triton is not installed; engine=fused is used instead"
STRICT = "engine.strict=true cannot be kept on cuda:0 in bfloat16: 3 of 100 rows"
SLOW = {"name": "passes", "state": "failed", "why": "killed after its 90 s"}
FAULTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    # gate or condition: lines that have these values get those, and what the page says
    "engine": ("cells", {}, {"engine": "fused", "engine_asked": "cuda_graphs"},
               "cells: engine fused in place of cuda_graphs"),
    "notes": ("cells", {}, {"notes": TRITON}, TRITON),
    "kernels": ("kernels", {}, {"lacking": "attend_splits"}, "kernels: no attend_splits"),
    "strict": ("rows", {"dtype": "bfloat16", "table": "rows"}, {"refused": STRICT},
               f"strict refused, cuda_graphs: {STRICT}"),
    "strict by default": ("engines", {"table": "start"}, {"strict": False}, "not strict in half"),
    "rows that differ": ("rows", {"dtype": "bfloat16", "table": "rows"}, {"differing": 1},
                         "1 of 10,003 rows differ"),
    "logits": ("rows", {"table": "logits", "dtype": "bfloat16"}, {"graphs": 0.012},
               "logits are off by 0.012 in bfloat16"),
    "outputs": ("cells", {}, {"metrics": METRICS | {"lossless": {"identical": 7, "diverged": 1}}},
                "outputs of swift: 1 diverged"),
    "texts": ("engines in float32", {"method": "vanilla"}, {"as fused": 11},
              "vanilla, 11 of 12 texts as fused"),
    "late": ("engines", {"table": "late rounds"}, {"equal": 11}, "late rounds, 11 of 12 texts"),
    "drafts": ("engines", {"method": "planted"}, {"alpha": 0.8}, "alpha of the planted set is 0.8"),
    "allocations": ("long texts", {}, {"allocations": 3}, "3 device allocations"),
    "tests": ("tests", {}, {"outcome": "failed", "why": "off"}, "test test_a: off"),
    "steps": ("passes", {}, {}, "passes: failed: killed after its 90 s"),
    "predictions": ("passes", {"rows": 9, "context": 8000}, {"ms": 21.0}, "is 21, predicted"),
    "a figure that is missing": ("draft plans", {"plan": "int8"}, {"plan": "-"}, "is missing"),
    "fused faster": ("engines", {"method": "planted"}, {"graphs / fused": 0.97},
                     "the slowest cell | 1 or more | 0.97, planted"),
    "GiB": ("engines", {"table": "memory"}, {"GiB of graphs": 2.5}, "driver | at most 2 | 2.5"),
    "cold": ("engines", {"from": "cold"}, {"first token s": 99.0}, "compiled | at most 60 | 99"),
    "few rows": ("rows", {"table": "rows"}, {"compared": 2000}, "alone | 0 of 10,000 | 0 of 2,000"),
}  # fmt: skip
NO_DEFAULT = {"drafts", "allocations", "tests", "steps", "predictions", "a figure that is missing"}
"""Faults that stand among the wrong lines, and say nothing of the choice of an engine."""


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_stands_in_the_first_lines(fault: str) -> None:
    report, (name, having, new, says) = healthy("h200"), FAULTS[fault]
    step = next(step for step in report["steps"] if step["name"] == name)
    step |= SLOW if fault == "steps" else {}
    for line in step["found"]:
        if all(line.get(key) == value for key, value in having.items()):
            line |= new
    found = head(report)
    assert says in found and ("**default: no**" in found) == (fault not in NO_DEFAULT)
    assert says in found.partition("## Wrong")[0] or fault in NO_DEFAULT


def test_every_gate_has_a_fault_and_what_was_not_measured_is_no_yes() -> None:
    assert {*gpu_verdict.GATES} <= FAULTS.keys()
    report = healthy("h200")
    report["steps"] = [s for s in report["steps"] if not s["name"].startswith("engines")]
    assert "**default: no**" in head(report) and "not measured" in head(report)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["off by 1 %", "rows", "memory", "Triton"])
@torch.inference_mode()
def test_a_fault_in_the_engine_is_found_by_a_rehearsal(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proof, "PROBED", 8)
    linear: Callable[..., torch.Tensor] = on_cpu.linear
    attend: Callable[..., torch.Tensor] = on_cpu.attend_splits
    if fault != "Triton":  # else, on this machine, graphs fall back to fused
        monkeypatch.setenv(EAGER_GRAPHS, "1")
    if fault == "off by 1 %":
        monkeypatch.setattr(on_cpu, "attend_splits", lambda *given: 1.01 * attend(*given))
    if fault == "rows":
        monkeypatch.setattr(on_cpu, "linear", lambda x, *on: linear(x, *on) * (1 + len(x) / 999))
    if fault == "memory":
        captures = iter(range(12))

        def capture(self: EagerCapture, work: Callable[[], None]) -> Callable[[], None]:
            if next(captures, None) is None:
                raise torch.OutOfMemoryError("CUDA out of memory")
            work()
            return work

        monkeypatch.setattr(EagerCapture, "capture", capture)
    figures = gpu_passes.passes if fault == "memory" else gpu_passes.rows
    lines = [*islice(figures(True, "4x64"), 5 if fault == "memory" else 1)]
    if fault == "off by 1 %":  # strict, all the same
        lines.append(gpu_passes.logits(gpu_passes.model_of(True, "4x64", torch.float32)))
    says = {
        "off by 1 %": "in float32, wanted at most 0.0001", "rows": "strict refused",
        "memory": "has no memory left", "Triton": "engine fused in place of cuda_graphs",
    }  # fmt: skip
    report = healthy("h200")
    next(step for step in report["steps"] if step["name"] == "rows")["found"] = lines
    found = head(report).partition("condition of")[0]
    assert says[fault] in found and "**no**" in found


@pytest.mark.parametrize(("name", "whole"), [("h100-sxm", 1500), ("a100-40gb", 2700)])
def test_a_budget_holds_whole_steps_and_time_that_is_left_goes_on(name: str, whole: float) -> None:
    slower = card_of(healthy(name)["steps"][0]["found"]).slower
    assert held(STEPS, whole, slower) == list(STEPS)
    few = held(STEPS, 1200, slower)
    needed = [step.limit_s(slower) for step in few]
    assert sum(needed) <= 1200 and len(few) >= 6
    assert limit_of_first(few, 1200, slower) == pytest.approx(
        min(MOST * needed[0], 1200 - sum(needed[1:]))
    )
    assert limit_of_first(few, 5000, slower) == MOST * needed[0]
