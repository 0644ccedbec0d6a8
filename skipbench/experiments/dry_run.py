"""`dry_run`: a cell before it is run: its model, device, prompts and memory."""

from pathlib import Path

import torch

from skipbench.bench.load import preflight
from skipbench.bench.memory import GIB, weight_kind
from skipbench.config.run_config import RunConfig
from skipbench.config.schemas import EngineName
from skipbench.console import show_result


def dry_run(config: RunConfig, folder: Path, state: str) -> None:
    """Checks a cell, whose run in `folder` is in this `state`, and prints it. Raises SkipbenchError
    for whatever a run would refuse before it reads weights.
    """
    checks = preflight(config, folder)
    model, need, shape = config.model, checks.need, checks.model.architecture
    on_gpu = model.device != "cpu" and torch.cuda.is_available()
    engine = config.engine.name
    if engine == EngineName.cuda_graphs and not on_gpu:
        engine = EngineName.fused
    record: dict[str, object] = {
        **config.names,
        "path": model.path,
        "device": model.device,
        "dtype": weight_kind(model),
        "engine": str(engine),
        "threads": config.engine.threads,
        "layers": shape.layers if shape else None,
        "parameters": shape.parameters if shape else None,
        "skip": config.method.skip,
        "prompts": len(checks.rows),
        "prompt_tokens": checks.prompt_tokens,
        "max_new_tokens": config.dataset.max_new_tokens,
        "memory_bytes": need.total_bytes if need else None,
        "free_bytes": need.free_bytes if need else None,
        "folder": str(folder),
        "state": state,
    }
    size = f", {shape.parameters / 1e6:.0f}e6 parameters, {shape.layers} layers" if shape else ""
    skip = f", skip {config.method.skip}" if config.method.skip else ""
    memory = "unknown: the checkpoint does not say its sizes"
    if need:
        free = f" of {need.free_bytes / GIB:.1f} GiB that are free" if need.free_bytes else ""
        memory = f"{need.total_bytes / GIB:.1f} GiB{free}"
    lines = [
        f"model    {model.name}{size} ({model.path})",
        "runs on  {device}, {dtype}, engine {engine}, threads {threads}".format(**record),
        f"method   {config.method.name}{skip}",
        "prompts  {prompts} of {dataset}, about {prompt_tokens} tokens".format(**record)
        + f", and up to {config.dataset.max_new_tokens} new tokens each",
        f"memory   {memory}",
        f"{folder}: {state}",
    ]
    show_result(record, lambda: "\n".join(lines))
