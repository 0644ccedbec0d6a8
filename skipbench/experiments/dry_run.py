"""`dry_run`: what a cell would run, and how long that would take."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from skipbench.bench.latency_file import latency_path, passes_to_measure, valid_record
from skipbench.bench.memory import GIB, weight_kind
from skipbench.bench.preflight import Preflight
from skipbench.config.catalog import known_hardware
from skipbench.config.hardware import Hardware
from skipbench.config.run_config import RunConfig
from skipbench.console import duration
from skipbench.experiments.costs import LOADED_PER_S, arm_s, datasheet_of
from skipbench.profile.roofline import device_name, norm_s, roofline
from skipbench.skipset import SkipSet

NORMS_PER_SUBLAYER = 5.5
"""Time of a sub-layer's calls on a CPU, beside the reading of its weights, in RMS norms of one row:
5.4 to 5.9 with the fused engine on models of 5 and 12 layers in float32.
"""
START_S = 8.0
"""Imports, and loading without the reading of the weights: 8 to 11 s of CPU on a 2-core Xeon."""


def describe(config: RunConfig, checks: Preflight, folder: Path, state: str) -> dict[str, Any]:
    """A cell in plain values: model, method, prompts, bytes and seconds; its folder, and the state
    of what is there.
    """
    model, engine, need = config.model, config.engine, checks.need
    shape = checks.model.sizes
    seconds, how = _seconds(config, checks)
    return {
        **config.names,
        "path": model.path,
        "device": model.device,
        "dtype": weight_kind(model),
        "engine": engine.name.value,
        "threads": engine.threads,
        "layers": shape.layers if shape else None,
        "parameters": shape.parameters if shape else None,
        "skip": config.method.skip,
        "prompts": len(checks.rows),
        "prompt_tokens": checks.prompt_tokens,
        "prompt_tokens_counted": checks.prompts is not None,
        "max_new_tokens": config.dataset.max_new_tokens,
        "memory_bytes": need.total_bytes if need else None,
        "free_bytes": need.free_bytes if need else None,
        "estimated_s": seconds,
        "estimated_from": how,
        "folder": str(folder),
        "state": state,
    }


def text(checks: Preflight, plain: Mapping[str, Any]) -> str:
    """`describe` for the terminal, the folder and its state in the last line."""
    need, new, layers, skip = checks.need, plain["max_new_tokens"], plain["layers"], plain["skip"]
    size = f": {plain['parameters'] / 1e6:.0f}e6 parameters, {layers} layers" if layers else ""
    threads = f", {plain['threads']} CPU thread{'s' if plain['threads'] > 1 else ''}"
    if skip and layers:
        skipped = SkipSet.parse(skip, layers)
        count = len(skipped.attention) + len(skipped.mlp)
        skip = f"{skip} ({count} of {2 * layers} sub-layers)"
    about = "" if plain["prompt_tokens_counted"] else "about "
    memory = "unknown: the checkpoint does not say its sizes"
    time = "unknown: the model's sizes are"
    if need:
        memory = f"{need.total_bytes / GIB:.1f} GiB: {need.text(str(plain['dtype']))}"
    if plain["estimated_s"] is not None:
        time = (
            f"at most about {duration(plain['estimated_s'])}, both arms as slow as vanilla and "
            f"every output of {new} tokens ({plain['estimated_from']})"
        )
    rows = {
        "model": f"{plain['model']}{size} ({plain['path']})",
        "runs on": f"{plain['device']}, {plain['dtype']}, engine {plain['engine']}{threads}",
        "method": f"{plain['method']}{f', skip {skip}' if skip else ''}",
        "prompts": f"{plain['prompts']} of {plain['dataset']}, {about}{plain['prompt_tokens']} "
        f"tokens, and up to {new} new tokens each",
        "memory": memory,
        "time": time,
    }
    lines = [f"{name:<9}{value}" for name, value in rows.items()]
    return "\n".join([*lines, f"{plain['folder']}: {plain['prompts']} samples, {plain['state']}"])


def _seconds(config: RunConfig, checks: Preflight) -> tuple[float | None, str | None]:
    """Seconds of loading and of both arms of every prompt, and the source of the estimate."""
    model, shape, rows = checks.model, checks.model.sizes, len(checks.rows)
    if shape is None or not rows:
        return None, None
    on_gpu = config.model.device != "cpu" and torch.cuda.is_available()
    device, dtype = torch.device("cuda" if on_gpu else "cpu"), str(config.model.dtype)
    prompt, tokens = checks.prompt_tokens // rows, config.dataset.max_new_tokens
    context, weights = prompt + tokens // 2, checks.need.weight_bytes if checks.need else 0
    rates = roofline(device, getattr(torch, dtype), weights, known_hardware())
    facts = Hardware([rates.name], None, rates.bandwidth, {dtype: rates.flops})
    fixed_s = START_S + weights / LOADED_PER_S
    path = latency_path(config.model, config.engine, device_name(device), Path(config.results))
    if (record := valid_record(path)) is not None:  # a run or `profile` measured this engine here
        step_s, how = record.model.verify_s(context, 1), "from profiled latencies"
    else:
        how = f"from {rates.source} memory bandwidth"
        step_s = datasheet_of(model, facts).verify_s(context, 1)
        if not on_gpu:  # a GPU computes while the host calls
            norms_s = NORMS_PER_SUBLAYER * norm_s(shape.hidden, getattr(torch, dtype))
            step_s += 2 * shape.layers * norms_s
        fixed_s += passes_to_measure() * step_s
    arms = 2 * (rows + min(config.engine.warmup, rows))
    return fixed_s + arms * arm_s(model, facts, prompt, tokens, step_s), how
