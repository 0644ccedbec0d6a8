"""`dry_run`: a cell before it is run, how long it would take, and all that keeps it from that."""

import os
from dataclasses import replace
from pathlib import Path

import torch

from skipbench.bench.load import Preflight, _wrong_device, preflight
from skipbench.bench.memory import GIB, check_memory, longest, needed_bytes, weight_kind
from skipbench.config.catalog import known_hardware
from skipbench.config.hardware import Hardware
from skipbench.config.model import Model
from skipbench.config.run_config import RunConfig
from skipbench.console import duration, show_result
from skipbench.draft_plan import DraftPlan
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.costs import LOADED_PER_S, arm_s, datasheet_of
from skipbench.lm.engines import EAGER_GRAPHS
from skipbench.metrics.prices import Prices
from skipbench.models.checks import check_access
from skipbench.profile.latency import latency_path, passes_to_measure
from skipbench.profile.roofline import roofline

START_S = 8.0  # imports, and loading without reading weights: 8 to 11 s of CPU on a 2-core Xeon


def dry_run(config: RunConfig, folder: Path, state: str) -> None:
    """Checks a cell, whose run in `folder` is in this `state`, and prints what it would take."""
    checks = preflight(config, folder)
    model, engine, dataset, need = config.model, config.engine, config.dataset, checks.need
    shape, dtype, skip = checks.model.architecture, weight_kind(model), config.method.skip
    seconds, source = _seconds(config, checks)
    record = _record(config) | {
        "engine": _engine(config)[0],
        "threads": engine.threads,
        "layers": shape.layers if shape else None,
        "parameters": shape.parameters if shape else None,
        "skip": skip,
        "prompts": len(checks.rows),
        "prompt_tokens": checks.prompt_tokens,
        "prompt_tokens_counted": checks.prompts is not None,
        "max_new_tokens": dataset.max_new_tokens,
        "memory_bytes": need.total_bytes if need else None,
        "free_bytes": need.free_bytes if need else None,
        "estimated_s": seconds,
        "estimated_from": source,
        "folder": str(folder),
        "state": state,
    }

    def text() -> str:
        left_out = f", skip {skip}" if skip else ""
        if skip and shape:
            skipped = len(DraftPlan.parse(skip, shape.layers).skipped)
            left_out += f" ({skipped} of {2 * shape.layers} sub-layers)"
        about = "" if checks.prompts is not None else "about "
        memory = "unknown: the checkpoint does not say its sizes"
        if need:
            memory = f"{need.total_bytes / GIB:.1f} GiB: {need.text(dtype)}"
        time = "unknown: the model's sizes are"
        if seconds is not None:
            time = (
                f"about {duration(seconds)}, both arms as slow as vanilla and every "
                f"output of {dataset.max_new_tokens} tokens ({source})"
            )
        return f"""\
{_head(checks.model, config)}
method   {config.method.name}{left_out}
prompts  {len(checks.rows)} of {dataset.name}, {about}{checks.prompt_tokens} tokens, and up to \
{dataset.max_new_tokens} new tokens each
memory   {memory}
time     {time}
{folder}: {len(checks.rows)} samples, {state}"""

    show_result(record, text)


def _record(config: RunConfig) -> dict[str, object]:
    model = config.model
    own = {"path": model.path, "device": model.device, "dtype": weight_kind(model)}
    return {**config.names, **own}


def _on_gpu(config: RunConfig) -> bool:
    return config.model.device != "cpu" and torch.cuda.is_available()


def _engine(config: RunConfig) -> tuple[str, str]:
    """The engine that would be used, and why where it is another than the one asked for."""
    name = config.engine.name.value
    if name == "cuda_graphs" and not _on_gpu(config) and not os.environ.get(EAGER_GRAPHS):
        return "fused", " (cuda_graphs is for GPUs)"
    return name, ""


def _head(model: Model, config: RunConfig) -> str:
    size, shape, engine = "", model.architecture, config.engine
    if shape:
        size = f": {shape.parameters / 1e6:.0f}e6 parameters, {shape.layers} layers"
    threads = f"{engine.threads} CPU thread{'s' if engine.threads > 1 else ''}"
    return f"""\
model    {model.name}{size} ({model.path})
runs on  {model.device}, {weight_kind(model)}, engine {"".join(_engine(config))}, {threads}"""


def refusals(config: RunConfig) -> list[SkipbenchError]:
    """All that this machine lacks for the model of a cell: its device, which comes first, access to
    its checkpoint, and memory: of the CPU where there is no such device.
    """
    model, found = config.model, list[SkipbenchError]()
    if (wrong := _wrong_device(model.device)) is not None:
        found.append(SkipbenchError(f"model.device={model.device}{wrong}"))
        model = replace(model, device="cpu")
    try:
        check_access(model.path, model.revision, model.gated)
    except SkipbenchError as error:
        found.append(error)
    try:
        check_memory(model, config.dataset, [])
    except SkipbenchError as error:
        found.append(error)
    return found


def refused(config: RunConfig, error: SkipbenchError) -> SkipbenchError:
    """The error with all other `refusals` of the cell, where it is one of them; in a dry run the
    model, its device and its memory are printed first, whatever the error is.
    """
    found = refusals(config)
    known = str(error) in map(str, found)
    if config.dry_run:
        _show_refused(config, found if known else [error])
    if not known or len(found) == 1:
        return error
    numbered = " ".join(f"({n}) {one}." for n, one in enumerate(found, 1))
    kind = NotHereError if all(isinstance(one, NotHereError) for one in found) else SkipbenchError
    return kind(f"{config.model.name} cannot be run here: {numbered}")


def _show_refused(config: RunConfig, found: list[SkipbenchError]) -> None:
    model, memory, total = config.model, "unknown: the model's sizes are", None
    if shape := model.architecture:
        tokens = min(config.dataset.context or shape.context, shape.context)
        weights, cache = needed_bytes(model, longest([], config.dataset.max_new_tokens, tokens))
        total = weights + cache
        cache_gib, kind = f"{cache / GIB:.1f} GiB", weight_kind(model)
        memory = f"{total / GIB:.1f} GiB at least: {weights / GIB:.1f} GiB of weights ({kind})"
        memory += f", and a cache of {cache_gib} without the prompts"
    record = _record(config) | {
        "memory_bytes": total,
        "refused": [str(one) for one in found],
        "state": "refused",
    }
    show_result(record, lambda: f"{_head(model, config)}\nmemory   {memory}")


def _seconds(config: RunConfig, checks: Preflight) -> tuple[float | None, str | None]:
    """Seconds of loading and of both arms of every prompt, and the source of the estimate."""
    model, shape, rows = checks.model, checks.model.architecture, len(checks.rows)
    if shape is None or not rows:
        return None, None
    device, dtype = torch.device("cuda" if _on_gpu(config) else "cpu"), str(config.model.dtype)
    prompt, tokens = checks.prompt_tokens // rows, config.dataset.max_new_tokens
    context, weights = prompt + tokens // 2, checks.need.weight_bytes if checks.need else 0
    rates = roofline(device, getattr(torch, dtype), weights, known_hardware())
    facts = Hardware([rates.name], None, rates.bandwidth, {dtype: rates.flops})
    fixed_s = START_S + weights / LOADED_PER_S
    # a run or `profile` measured this engine here
    if (prices := Prices.read(latency_path(config, device), config.engine.name)).model is not None:
        step_s, how = prices.pass_s(1, context), "from profiled latencies"
    else:
        how = f"from {rates.source} memory bandwidth"
        step_s = datasheet_of(model, facts).pass_s(1, context)
        fixed_s += passes_to_measure() * step_s
    arms = 2 * (rows + min(config.engine.warmup, rows))
    return fixed_s + arms * arm_s(model, facts, prompt, tokens, step_s), how
