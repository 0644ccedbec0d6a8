"""`dry_run`: a cell before it is run: its model, device, prompts and memory."""

import torch

from skipbench.bench.load import preflight
from skipbench.bench.memory import GIB, check_memory, longest, weight_kind
from skipbench.console import show_result
from skipbench.experiments.resolve import checked_run
from skipbench.models.outline import sized
from skipbench.runs.cell import Cell


def dry_run(cell: Cell) -> None:
    """Checks a cell whose skip set is known, and prints it. Raises SkipbenchError for whatever a
    run would refuse before it reads weights.
    """
    config, folder = cell.config, cell.folder
    state = "missing" if config.fresh else checked_run(cell).status.state
    prompts, model = preflight(cell), sized(config.model)
    shape, rows = model.architecture, cell.examples
    total, free = check_memory(model, config.dataset, rows) or (None, None)
    tokens = sum(len(p.ids) for p in prompts or ())
    on_gpu = model.device != "cpu" and torch.cuda.is_available()
    engine = config.engine.name
    if engine == "cuda_graphs" and not on_gpu:
        engine = "fused"
    record: dict[str, object] = {
        **config.names,
        "path": model.path,
        "device": model.device,
        "dtype": weight_kind(model),
        "engine": engine,
        "threads": config.engine.threads,
        "layers": shape.layers if shape else None,
        "parameters": shape.parameters if shape else None,
        "skip": config.method.skip,
        "prompts": len(rows),
        "prompt_tokens": tokens or sum(longest([row], 0, len(row.prompt)) for row in rows),
        "max_new_tokens": config.dataset.max_new_tokens,
        "memory_bytes": total,
        "free_bytes": free,
        "folder": str(folder),
        "state": state,
    }
    size = f", {shape.parameters / 1e6:.0f}e6 parameters, {shape.layers} layers" if shape else ""
    skip = f", skip {config.method.skip}" if config.method.skip else ""
    memory = "unknown: the checkpoint does not say its sizes"
    if total:
        of = f" of {free / GIB:.1f} GiB that are free" if free else ""
        memory = f"{total / GIB:.1f} GiB{of}"
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
