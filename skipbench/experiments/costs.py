"""Prompts, GPUs, memory and hours of a cell, from the model's sizes and the datasheet of a GPU.

Hours are an upper bound: both arms as slow as vanilla, and every output of `max_new_tokens`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from skipbench.bench.memory import GIB, GPUS, MARGIN, USUAL_PROMPT, gpus_needed, needed_bytes
from skipbench.config.catalog import known_hardware
from skipbench.config.hardware import Hardware, Local, Slurm
from skipbench.config.model import Model
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.metrics.costs import Datasheet

LOADED_PER_S = 1e9  # bytes of weights read from disk
LEAST = 4  # minimum prompts of a cell within a budget
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
    """One cell: `prompts` are run, of the `of` in the dataset's sample."""

    prompts: int
    of: int
    gpus: int  # that hold the model; 0 if none does, and `reason` says why
    memory_bytes: int  # over all GPUs
    fixed_h: float  # of loading and of a search for a skip set
    prompt_h: float  # per prompt, both arms
    reason: str | None = None

    @property
    def hours(self) -> float:
        return self.fixed_h + self.prompts * self.prompt_h

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.hours


def gpu_of(hardware: Slurm | Local | None) -> Gpu:
    """The GPU that hours are estimated for. Raises SkipbenchError if `hardware.device` is no device
    of conf/hardware.
    """
    slurm = hardware if isinstance(hardware, Slurm) else Slurm()
    named, known = slurm.device or DEVICE, known_hardware()
    if named not in known or not known[named].bandwidth:
        rated = ", ".join(sorted(n for n, h in known.items() if h.bandwidth))
        raise SkipbenchError(f"hardware.device={named}; wanted one of {rated}")
    memory = int(known[named].memory_bytes or 0)
    usable = max((b for b in GPUS.values() if b <= memory * 1.07), default=memory)
    return Gpu(named, known[named], int((slurm.gpu_memory_gib or 0) * GIB) or usable)


def cost_of(config: RunConfig, gpu: Gpu, gpus: int | None = None) -> Cost | None:
    """The cost of a cell, before its dataset is read; None for a model of unknown size.

    Args:
        gpus: per cell where the user chose; else as many as hold the model.
    """
    model, dataset, search = config.model, config.dataset, config.search
    if model.sizes is None or gpu.facts.bandwidth is None:
        return None
    tasks = dataset.node.get("tasks")
    of_task = {"mt-bench": TURNS["mt-bench"]}  # of Spec-Bench, 80 questions each
    whole = dataset.size or (80 * len(tasks) if tasks else WHOLE.get(dataset.name, 1000))
    context = min(model.sizes.context, dataset.context or model.sizes.context)
    prompt_tokens = context - dataset.max_new_tokens
    if dataset.context is None:
        prompt_tokens = min(USUAL_PROMPT, prompt_tokens)
    prompt_tokens = max(1, prompt_tokens)
    weights, cache = needed_bytes(model, prompt_tokens + dataset.max_new_tokens)
    turns = TURNS.get(dataset.name, 1.0)
    turns = fmean(of_task.get(task, 1.0) for task in tasks) if tasks else turns
    turns *= dataset.samples_per_task or 1
    turns *= len(dataset.parts) or 1
    fixed_s = weights / LOADED_PER_S
    if config.search_dataset is not None:
        decoded = search.iterations * search.prompts
        fixed_s += decoded * arm_s(model, gpu.facts, prompt_tokens, search.max_new_tokens)
    prompt_s = 2 * turns * arm_s(model, gpu.facts, prompt_tokens, dataset.max_new_tokens)
    cost = Cost(
        prompts=whole if config.limit is None else min(config.limit, whole),
        of=whole,
        gpus=0,
        memory_bytes=weights + cache + MARGIN,
        fixed_h=fixed_s / 3600,
        prompt_h=prompt_s / 3600,
    )
    try:
        return replace(cost, gpus=gpus or gpus_needed(model, dataset, gpu.usable_bytes))
    except NotHereError as error:
        return replace(cost, reason=str(error))


def arm_s(
    model: Model, device: Hardware, prompt_tokens: int, tokens: int, step_s: float | None = None
) -> float:
    """Seconds of vanilla for a prompt and `tokens` new tokens.

    Args:
        step_s: of one decoded token; None takes the datasheet's.
    """
    costs = datasheet_of(model, device)
    if step_s is None:
        step_s = costs.verify_s(prompt_tokens + tokens // 2, 1)
    return tokens * step_s + costs.prefill_s(prompt_tokens)


def datasheet_of(model: Model, device: Hardware) -> Datasheet:
    """Prices of a model of known sizes on a device, by its datasheet."""
    assert model.sizes is not None
    return Datasheet(model.sizes, str(model.dtype), device, str(model.quantization))


def within(costs: Sequence[Cost], budget_h: float) -> list[Cost]:
    """The costs with as many prompts per cell as fit into `budget_h` GPU-hours: the same share of
    every cell's, at least `LEAST`. Raises SkipbenchError if that minimum takes more.
    """

    def at(share: float) -> list[Cost]:
        prompts = (min(c.prompts, max(LEAST, int(share * c.prompts))) for c in costs)
        return [replace(c, prompts=n) for c, n in zip(costs, prompts, strict=True)]

    def hours(share: float) -> float:
        return sum(c.gpu_hours for c in at(share))

    if (minimum := hours(0.0)) > budget_h:
        raise SkipbenchError(
            f"budget={budget_h:g}h: {LEAST} prompts per cell take {minimum:.1f} GPU-hours; give "
            "more, or fewer models with models=A,B"
        )
    low, high = 0.0, 2.0  # 1 and more is all prompts
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if hours(middle) <= budget_h else (low, middle)
    return at(low)


def limited(configs: Sequence[RunConfig], budget_h: float, gpu: Gpu) -> list[RunConfig]:
    """The cells with the prompts that a budget leaves; those of unknown size stay as they are."""
    known = {i: c for i, x in enumerate(configs) if (c := cost_of(x, gpu)) is not None}
    costs = dict(zip(known, within(list(known.values()), budget_h), strict=True))
    cut = {i: cost.prompts for i, cost in costs.items() if cost.prompts < cost.of}
    return [replace(x, limit=cut.get(i, x.limit)) for i, x in enumerate(configs)]


def budget_hours(text: str) -> float:
    """Hours of `200h`, `1.5h`, `30min` or a number; raises SkipbenchError for another text."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+) *(h|min|m|)", text.strip(" "))
    value = float(match[1]) / (60 if "m" in match[2] else 1) if match else 0.0
    if not 0 < value < float("inf"):
        raise SkipbenchError(f"budget={text}; wanted GPU-hours above 0, as in budget=200h")
    return value


def bill(costs: Sequence[Cost], gpus: int = 1, exclusive: bool = False) -> tuple[float, float]:
    """Hours until the last cell is over, the longest ones first, and the GPU-hours charged.

    Args:
        gpus: that cells share: those of one node.
        exclusive: each cell takes, and is charged, whole nodes.
    """
    free, charged = [0.0] * gpus, 0.0
    for cost in sorted(costs, key=lambda c: -c.hours):
        held = -(-cost.gpus // gpus) * gpus if exclusive else cost.gpus
        taken = min(held, gpus)
        free.sort()
        free[:taken] = [free[taken - 1] + cost.hours] * taken
        charged += held * cost.hours
    return max(free), charged


def plan_lines(names: Sequence[str], costs: Sequence[Cost | None], gpu: Gpu) -> list[str]:
    """A line per cell, and the sum."""
    width, known = max(map(len, names), default=4), [c for c in costs if c is not None]
    lines = [f"{'cell':<{width}}  prompts        GPUs  memory     hours  GPU-hours"]
    for name, cost in zip(names, costs, strict=True):
        text = "-              -     -          -      -"
        if cost is not None:
            prompts = f"{cost.prompts}" + (f" of {cost.of}" if cost.prompts < cost.of else "")
            text = f"{prompts:<13}  {cost.gpus or '-':<4}  {cost.memory_bytes / GIB:>6.1f} GiB"
            text += f"{cost.hours:>8.2f}  {cost.gpu_hours:>8.2f}"
            text += f"  {cost.reason}" if cost.reason else ""
        lines.append(f"{name:<{width}}  {text}")
    total = f"sum: {len(names)} cells, {sum(c.gpus > 1 for c in known)} of several GPUs, at most "
    total += f"{sum(c.gpu_hours for c in known):.1f} GPU-hours on {gpu.name}"
    if unknown := len(names) - len(known):
        total += f"; {unknown} of models of unknown size"
    return [*lines, total]
