"""Prompts, GPUs, memory and hours of a row, from the model's sizes and the datasheet of a GPU.

Hours are an upper bound: every arm as slow as vanilla, and every output of `max_new_tokens`.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from skipbench.bench.memory import GIB, GPUS, MARGIN, USUAL_PROMPT, gpus_needed, needed_bytes
from skipbench.config.architecture import BYTES, QUANTIZED, Shape
from skipbench.config.catalog import known_hardware
from skipbench.config.hardware import Hardware, Local, Slurm
from skipbench.config.model import Model
from skipbench.config.run_config import DatasetConfig, RunConfig
from skipbench.draft_plan import VARIANTS
from skipbench.errors import SkipbenchError
from skipbench.metrics.prices import Parts, Point, Prices, Roofline

READS, COMPUTES = 0.6, 0.4  # shares of bandwidth that decoding, of arithmetic that prefill reaches
LOADED_PER_S = 1e9  # bytes of weights read from disk
LEAST = 4  # minimum prompts of a row within a budget
SPREAD = 0.15  # standard deviation of a prompt's log speedup that half widths are planned with
WHOLE = {"specbench": 480, "speedbench": 880, "mt-bench": 80, "humaneval": 164, "mini-stories": 300}
"""Prompts of the datasets that are run whole, without a `dataset.size`."""
TURNS = {"specbench": 560 / 480, "mt-bench": 2.0}  # per conversation
DEVICE = "a100-80gb"  # of conf/hardware, where no hardware is given


@dataclass(frozen=True)
class Gpu:
    """Rates of one GPU, and the bytes of its memory that a process can use."""

    name: str
    facts: Hardware
    usable_bytes: int


@dataclass(frozen=True)
class Cost:
    """Arms of a row in one process, which decodes vanilla once."""

    prompts: tuple[int, ...]  # of each arm
    of: int  # prompts of the dataset's sample
    gpus: int  # that hold the model; 0 if none does, and `reason` says why
    memory_bytes: int  # over all GPUs
    load_h: float
    search_h: tuple[float, ...]  # of each arm, 0 without a search for a skip set
    prompt_h: float  # per prompt of one arm
    reason: str | None = None

    def at_most(self, prompts: int) -> "Cost":
        """With at most so many prompts per arm."""
        return replace(self, prompts=tuple(min(n, prompts) for n in self.prompts))

    @property
    def hours(self) -> float:
        decoded = max(self.prompts) + sum(self.prompts)
        return self.load_h + sum(self.search_h) + decoded * self.prompt_h

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.hours


def gpu_of(hardware: Slurm | Local | None) -> Gpu:
    """The GPU that hours are estimated for. Raises SkipbenchError for an unknown device."""
    slurm = hardware if isinstance(hardware, Slurm) else Slurm()
    named, known = slurm.device or DEVICE, known_hardware()
    if named not in known or not known[named].bandwidth:
        rated = ", ".join(sorted(n for n, h in known.items() if h.bandwidth))
        raise SkipbenchError(f"hardware.device={named}; wanted one of {rated}")
    memory = int(known[named].memory_bytes or 0)
    usable = max((b for b in GPUS.values() if b <= memory * 1.07), default=memory)
    return Gpu(named, known[named], int((slurm.gpu_memory_gib or 0) * GIB) or usable)


def cost_of(arms: Sequence[RunConfig], gpu: Gpu, gpus: int | None = None) -> Cost | None:
    """The cost of a row, before its dataset is read; None for a model of unknown size.

    Args:
        arms: cells of one row.
        gpus: per row where the user chose; else as many as hold the model.
    """
    model, dataset = arms[0].model, arms[0].dataset
    if model.architecture is None or gpu.facts.bandwidth is None:
        return None
    tasks = dataset.node.get("tasks")
    of_task = {"mt-bench": TURNS["mt-bench"]}  # of Spec-Bench, 80 questions each
    whole = dataset.size or (80 * len(tasks) if tasks else WHOLE.get(dataset.name, 1000))
    prompt_tokens = prompt_tokens_of(model, dataset)
    weights, cache = needed_bytes(model, prompt_tokens + dataset.max_new_tokens)
    turns = TURNS.get(dataset.name, 1.0)
    turns = fmean(of_task.get(task, 1.0) for task in tasks) if tasks else turns
    turns *= (dataset.samples_per_task or 1) * (len(dataset.parts) or 1)

    def search_s(arm: RunConfig) -> float:
        decoded = arm.search.iterations * arm.search.prompts
        return decoded * arm_s(model, gpu.facts, prompt_tokens, arm.search.max_new_tokens)

    searches = (0.0 if arm.search_dataset is None else search_s(arm) for arm in arms)
    prompt_s = turns * arm_s(model, gpu.facts, prompt_tokens, dataset.max_new_tokens)
    cost = Cost(
        prompts=tuple(min(arm.limit or whole, whole) for arm in arms),
        of=whole,
        gpus=0,
        memory_bytes=weights + cache + MARGIN,
        load_h=weights / LOADED_PER_S / 3600,
        search_h=tuple(seconds / 3600 for seconds in searches),
        prompt_h=prompt_s / 3600,
    )
    try:
        return replace(cost, gpus=gpus or gpus_needed(model, dataset, gpu.usable_bytes))
    except SkipbenchError as error:
        return replace(cost, reason=str(error))


def prompt_tokens_of(model: Model, dataset: DatasetConfig) -> int:
    """Tokens of a prompt, before the dataset is read: `USUAL_PROMPT`, or all of its `context`."""
    assert model.architecture is not None
    context = min(model.architecture.context, dataset.context or model.architecture.context)
    most = USUAL_PROMPT if dataset.context is None else context
    return max(1, min(most, context - dataset.max_new_tokens))


def arm_s(
    model: Model, device: Hardware, prompt_tokens: int, tokens: int, step_s: float | None = None
) -> float:
    """Seconds of vanilla for a prompt and `tokens` new tokens; `step_s` replaces a datasheet's."""
    assert model.architecture is not None
    if step_s is None:
        step_s = datasheet_of(model, device).pass_s(1, prompt_tokens + tokens // 2)
    flops = device.flops.get(str(model.dtype), (device.bandwidth or 1) * 100)
    return tokens * step_s + 2 * model.architecture.parameters * prompt_tokens / (COMPUTES * flops)


def datasheet_of(model: Model, device: Hardware) -> Prices:
    """Prices of a model on a device, by its datasheet."""
    assert model.architecture is not None
    return datasheet(model.architecture, str(model.dtype), device, str(model.quantization))


def datasheet(shape: Shape, dtype: str, device: Hardware, quantization: str = "none") -> Prices:
    """Prices on a device with a known bandwidth: the longer of reading and arithmetic."""
    full = BYTES[dtype]
    size, flops = QUANTIZED.get(quantization, full), device.flops.get(dtype) or float("inf")
    rates = Roofline("", READS * (device.bandwidth or 1), flops, "datasheet")
    mlp = 3 * shape.hidden * shape.intermediate
    attention = shape.layer_parameters - mlp  # norms included
    head = (shape.vocab + 1) * shape.hidden
    per_token_s = shape.cache_bytes(dtype, 1) / shape.layers / rates.bandwidth

    def seconds(parameters: int, size: float, rows: int = 1) -> float:
        return rates.seconds(parameters * size, 2 * rows * parameters)

    def parts(size: float, head_size: float, **more: Any) -> Parts:
        attention_s, mlp_s = seconds(attention, size), seconds(mlp, size)
        return Parts(
            attention_s, per_token_s, mlp_s, seconds(head, head_size), shape.layers, **more
        )

    each = {name: int(name.removeprefix("int")) / 8 for name in VARIANTS}  # bytes of a weight
    variants = {name: parts(min(size, low), low) for name, low in each.items()}
    model = parts(size, full, variants=variants)
    # rows up to which reading takes longer than arithmetic
    turns = [of * flops / (2 * rates.bandwidth) for of in (size, full)]
    rows = {1, *(math.floor(n) for n in (*turns, 2 * max(turns)) if 1 < n < math.inf)}
    points = [
        Point(0, n, seconds(attention, size, n), seconds(mlp, size, n), seconds(head, full, n), 0.0)
        for n in sorted(rows)
    ]
    return Prices(model=model, points=points)


def gpus_of(config: RunConfig, usable_bytes: int) -> int:
    """GPUs of so many bytes that a cell needs. Raises SkipbenchError as `memory.gpus_needed`."""
    return gpus_needed(config.model, config.dataset, usable_bytes)


def half_width(prompts: int) -> float:
    """Half width of a speedup's 95 % interval, as a share of it, at deviation `SPREAD`."""
    return 1.96 * SPREAD / math.sqrt(prompts)


def prompts_for(half_width: float) -> int:
    """The minimum of prompts that leave at most this half width, and at least `LEAST`."""
    return max(LEAST, math.ceil((1.96 * SPREAD / half_width) ** 2))


def budget_of(text: str) -> tuple[float, bool]:
    """GPU-hours of `200h`, `1.5h`, `30min` or a number; or the half width of `2%`, .02, and True.
    Raises SkipbenchError for another text.
    """
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+) *(h|min|m|%|)", text.strip(" "))
    unit = {"%": 0.01, "m": 1 / 60, "min": 1 / 60}.get(match[2], 1.0) if match else 0.0
    value = float(match[1]) * unit if match else 0.0
    if not 0 < value < float("inf"):
        raise SkipbenchError(
            f"budget={text}; wanted GPU-hours above 0, as in budget=200h, or the half width of a "
            "speedup's interval, as in budget=2%"
        )
    return value, text.strip(" ").endswith("%")


def bill(costs: Sequence[Cost], gpus: int = 1, exclusive: bool = False) -> tuple[float, float]:
    """Hours until the last job is over, the longest ones first, and the GPU-hours charged.

    Args:
        costs: of the jobs.
        gpus: that jobs share: those of one node.
        exclusive: each job takes, and is charged, whole nodes.
    """
    free, charged = [0.0] * gpus, 0.0
    for cost in sorted(costs, key=lambda c: -c.hours):
        held = -(-cost.gpus // gpus) * gpus if exclusive else cost.gpus
        taken = min(held, gpus)
        free.sort()
        free[:taken] = [free[taken - 1] + cost.hours] * taken
        charged += held * cost.hours
    return max(free), charged
