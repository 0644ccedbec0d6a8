"""`dry_run`: what a cell would run, and how long it would take, once nothing refused it."""

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
"""RMS norms of one row that take as long as the calls of a sub-layer on a CPU do beside the reading
of its weights: 5.4 to 5.9 with the fused engine on models of 5 and 12 layers in float32.
"""
START_S = 8.0
"""Imports, and loading beside the reading of the weights: 8 to 11 s of CPU time on a 2-core Xeon
with other programs beside it.
"""


def describe(config: RunConfig, found: Preflight, folder: Path, state: str) -> dict[str, Any]:
    """A cell in plain values: model, method, prompts, bytes and seconds; its folder, and the state
    of what is there.
    """
    model, engine, need = config.model, config.engine, found.need
    shape = found.model.sizes
    seconds, how = _seconds(config, found)
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
        "prompts": len(found.rows),
        "prompt_tokens": found.prompt_tokens,
        "prompt_tokens_counted": found.prompts is not None,
        "max_new_tokens": config.dataset.max_new_tokens,
        "memory_bytes": need.total_bytes if need else None,
        "free_bytes": need.free_bytes if need else None,
        "estimated_s": seconds,
        "estimated_from": how,
        "folder": str(folder),
        "state": state,
    }


def text(found: Preflight, plain: Mapping[str, Any]) -> str:
    """`describe` for the terminal, the folder and its state in the last line."""
    need, new = found.need, plain["max_new_tokens"]
    size = (
        f": {plain['parameters'] / 1e6:.0f}e6 parameters, {plain['layers']} layers"
        if plain["parameters"]
        else ""
    )
    threads = f", {plain['threads']} CPU thread{'s' if plain['threads'] > 1 else ''}"
    skip = plain["skip"]
    if skip and plain["layers"]:
        left_out = SkipSet.parse(skip, plain["layers"])
        count = len(left_out.attention) + len(left_out.mlp)
        skip = f"{skip} ({count} of {2 * plain['layers']} sub-layers)"
    about = "" if plain["prompt_tokens_counted"] else "about "
    memory = "unknown: the checkpoint does not say its sizes"
    if need:
        memory = f"{need.total_bytes / GIB:.1f} GiB: {need.text(str(plain['dtype']))}"
    seconds = plain["estimated_s"]
    time = (
        "unknown: the model's sizes are"
        if seconds is None
        else f"at most about {duration(seconds)}, both arms as slow as vanilla and every output of "
        f"{new} tokens ({plain['estimated_from']})"
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
    told = [f"{name:<9}{value}" for name, value in rows.items()]
    return "\n".join([*told, f"{plain['folder']}: {plain['prompts']} samples, {plain['state']}"])


def _seconds(config: RunConfig, found: Preflight) -> tuple[float | None, str | None]:
    """Seconds of loading and of both arms of every prompt, and what the estimate rests on."""
    if found.model.sizes is None or not found.rows:
        return None, None
    shape, on_gpu = found.model.sizes, config.model.device != "cpu" and torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    prompt, tokens = found.prompt_tokens // len(found.rows), config.dataset.max_new_tokens
    context, weights = prompt + tokens // 2, found.need.weight_bytes if found.need else 0
    dtype = getattr(torch, str(config.model.dtype))
    rates = roofline(device, dtype, weights, known_hardware())
    facts = Hardware([rates.name], None, rates.bandwidth, {str(config.model.dtype): rates.flops})
    fixed_s = START_S + weights / LOADED_PER_S
    path = latency_path(config.model, config.engine, device_name(device), Path(config.results))
    if (record := valid_record(path)) is not None:  # a run or `profile` measured this engine here
        step_s, how = record.model.verify_s(context, 1), "from profiled latencies"
    else:
        how = f"from {rates.source} memory bandwidth"
        step_s = datasheet_of(found.model, facts).verify_s(context, 1)
        if not on_gpu:  # a GPU computes while the host calls
            step_s += 2 * shape.layers * NORMS_PER_SUBLAYER * norm_s(shape.hidden, dtype)
        fixed_s += passes_to_measure() * step_s
    one = arm_s(found.model, facts, prompt, tokens, step_s)
    warmup = min(config.engine.warmup, len(found.rows))
    return fixed_s + 2 * (len(found.rows) + warmup) * one, how
