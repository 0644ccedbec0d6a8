"""What a cell costs, before anything of it is loaded: prompts, GPUs, memory and hours, from the
sizes of its model and the datasheet of a GPU.

A decoded token reads all weights and the K/V rows before it; a prompt costs arithmetic. Both arms
are taken to be as slow as vanilla and to fill `max_new_tokens`, so that hours are an upper bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from skipbench.bench.memory import GIB, GPUS, ROOM, gpus_needed, needed_bytes
from skipbench.config.catalog import known_hardware
from skipbench.config.hardware import Hardware, Local, Slurm
from skipbench.config.model import Model
from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError

READS, COMPUTES = 0.6, 0.4  # shares of the datasheet's rates that decoding and prefill reach
PROMPT_TOKENS = 1024  # of a prompt whose dataset is not read yet and is not cut
LOADED_PER_S = 1e9  # bytes of weights read from disk
LEAST = 4  # prompts of a cell that a budget leaves at least
WHOLE = {"specbench": 480, "speedbench": 880, "mt-bench": 80, "humaneval": 164, "mini-stories": 300}
"""Prompts of the datasets that are run whole: what `dataset.size` counts."""
TURNS = {"specbench": 560 / 480, "mt-bench": 2.0}
"""Turns per conversation."""
DEVICE = "a100-80gb"
"""Of `conf/hardware`; what is estimated for where no hardware is given."""


@dataclass(frozen=True)
class Gpu:
    """Rates of one GPU, and what a process can use of its memory."""

    name: str
    facts: Hardware
    usable_bytes: int


@dataclass(frozen=True)
class Cost:
    """One cell.

    Attributes:
        prompts: that are run; `of` is how many the paper's sample has.
        gpus: that hold the model; 0 where none does, and `reason` says why.
        memory_bytes: weights, cache and the rest, over all GPUs.
        fixed_h: hours of loading and of a search for a skip set.
        prompt_h: hours per prompt, both arms.
    """

    prompts: int
    of: int
    gpus: int
    memory_bytes: int
    fixed_h: float
    prompt_h: float
    reason: str | None = None

    @property
    def hours(self) -> float:
        return self.fixed_h + self.prompts * self.prompt_h

    @property
    def gpu_hours(self) -> float:
        return self.gpus * self.hours


def gpu_of(hardware: Slurm | Local | None) -> Gpu:
    """The GPU that hours are estimated for.

    Raises:
        SkipbenchError: `hardware.device` is no device of conf/hardware.
    """
    named = hardware.device if isinstance(hardware, Slurm) and hardware.device else DEVICE
    known = known_hardware()
    if named not in known or not known[named].bandwidth:
        rated = ", ".join(sorted(n for n, h in known.items() if h.bandwidth))
        raise SkipbenchError(f"hardware.device={named}; wanted one of {rated}")
    given = hardware.gpu_memory_gib if isinstance(hardware, Slurm) else None
    facts = known[named]
    at_least = [b for b in GPUS.values() if b <= (facts.memory_bytes or 0) * 1.07]
    usable = int(given * GIB) if given else max(at_least, default=int(facts.memory_bytes or 0))
    return Gpu(named, facts, usable)


def prompts_of(config: RunConfig) -> tuple[int, int]:
    """Prompts that a cell runs, and those of its dataset's sample, in the units of `limit`, before
    the dataset is read.
    """
    node = config.dataset.node
    size = node.get("size")
    whole = int(size if size is not None else WHOLE.get(config.dataset.name, 1000))
    return whole if config.limit is None else min(config.limit, whole), whole


def cost_of(config: RunConfig, gpu: Gpu, gpus: int | None = None) -> Cost | None:
    """What a cell costs; `None` for a model of unknown size.

    Args:
        gpus: per cell where the user chose; else as many as hold the model.
    """
    model, dataset = config.model, config.dataset
    shape = model.sizes
    if shape is None or gpu.facts.bandwidth is None:
        return None
    prompts, whole = prompts_of(config)
    cut = min(shape.context, dataset.context or shape.context)
    most = cut - dataset.max_new_tokens
    prompt_tokens = max(1, most if dataset.context is not None else min(PROMPT_TOKENS, most))
    weights, cache = needed_bytes(model, prompt_tokens + dataset.max_new_tokens)
    memory = weights + cache + ROOM

    def decoded_s(tokens: int) -> float:
        return arm_s(model, gpu, prompt_tokens, tokens)

    turns = TURNS.get(dataset.name, 1.0) * float(dataset.node.get("samples_per_task", 1))
    turns *= len(dataset.node.get("parts", [])) or 1
    fixed_s = weights / LOADED_PER_S
    if config.search_dataset is not None:
        search = config.search
        fixed_s += search.iterations * search.prompts * decoded_s(search.max_new_tokens)
    fixed_h, prompt_h = fixed_s / 3600, 2 * turns * decoded_s(dataset.max_new_tokens) / 3600
    reason = None
    try:
        needed = gpus or gpus_needed(model, dataset, gpu.usable_bytes)
    except NotHereError as error:
        needed, reason = 0, str(error)
    return Cost(prompts, whole, needed, memory, fixed_h, prompt_h, reason)


def arm_s(
    model: Model, gpu: Gpu, prompt_tokens: int, tokens: int, step_s: float | None = None
) -> float:
    """Seconds of vanilla for a prompt and `tokens` new tokens.

    Args:
        step_s: of one decoded token, where that was measured.
    """
    shape = model.sizes
    assert shape is not None
    if step_s is None:
        step_s = read_s(model, gpu.facts.bandwidth or 1, prompt_tokens + tokens // 2)
    flops = gpu.facts.flops.get(str(model.dtype), (gpu.facts.bandwidth or 1) * 100)
    return tokens * step_s + 2 * shape.parameters * prompt_tokens / (COMPUTES * flops)


def read_s(model: Model, bandwidth: float, context_tokens: int) -> float:
    """Seconds in which a decoded token reads the weights and the K/V rows before it.

    Args:
        bandwidth: of the memory, bytes/s.
    """
    shape = model.sizes
    assert shape is not None
    weights, _ = needed_bytes(model, 0)
    table = 0 if shape.tied else shape.vocab * shape.hidden * 2
    rows = shape.cache_bytes(model.dtype, context_tokens)
    return (weights - table + rows) / (READS * bandwidth)


def within(costs: Sequence[Cost], budget_h: float) -> list[Cost]:
    """The costs with as many prompts per cell as fit into `budget_h` GPU-hours: the same share of
    every cell's, at least `LEAST`.

    Raises:
        SkipbenchError: the least takes more.
    """

    def at(share: float) -> list[Cost]:
        return [
            replace(c, prompts=min(c.prompts, max(LEAST, int(share * c.prompts)))) for c in costs
        ]

    least = sum(c.gpu_hours for c in at(0.0))
    if least > budget_h:
        raise SkipbenchError(
            f"budget={budget_h:g}h: {LEAST} prompts per cell take {least:.1f} GPU-hours; give "
            "more, or fewer models with models=A,B"
        )
    low, high = 0.0, 2.0  # 1 and more is all prompts
    for _ in range(40):
        middle = (low + high) / 2
        fits = sum(c.gpu_hours for c in at(middle)) <= budget_h
        low, high = (middle, high) if fits else (low, middle)
    return at(low)


def limited(configs: Sequence[RunConfig], budget_h: float, gpu: Gpu) -> list[RunConfig]:
    """The cells with the prompts that a budget leaves; those of unknown size stay as they are."""
    known = {i: c for i, x in enumerate(configs) if (c := cost_of(x, gpu)) is not None}
    cut = list(configs)
    for i, cost in zip(known, within(list(known.values()), budget_h), strict=True):
        if cost.prompts < cost.of:
            cut[i] = replace(configs[i], limit=cost.prompts)
    return cut


def budget_hours(text: str) -> float:
    """Hours of `200h`, `1.5h`, `30min` or a plain number.

    Raises:
        SkipbenchError: something else.
    """
    number, unit = text.rstrip("hmin "), text.lstrip("0123456789. ")
    try:
        value = float(number) / {"": 1, "h": 1, "min": 60, "m": 60}[unit]
    except (ValueError, KeyError):
        value = 0.0
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
    known = [c for c in costs if c is not None]
    width = max((len(name) for name in names), default=4)
    lines = [f"{'cell':<{width}}  prompts        GPUs  memory     hours  GPU-hours"]
    for name, cost in zip(names, costs, strict=True):
        if cost is None:
            lines.append(f"{name:<{width}}  -              -     -          -      -")
            continue
        prompts = f"{cost.prompts}" + (f" of {cost.of}" if cost.prompts < cost.of else "")
        line = (
            f"{name:<{width}}  {prompts:<13}  {cost.gpus or '-':<4}  "
            f"{cost.memory_bytes / GIB:>6.1f} GiB{cost.hours:>8.2f}  {cost.gpu_hours:>8.2f}"
        )
        lines.append(line + (f"  {cost.reason}" if cost.reason else ""))
    several, hours = sum(c.gpus > 1 for c in known), sum(c.gpu_hours for c in known)
    unknown = len(names) - len(known)
    total = f"sum: {len(names)} cells, {several} of several GPUs, at most {hours:.1f} GPU-hours on "
    return [*lines, f"{total}{gpu.name}" + f"; {unknown} of models of unknown size" * bool(unknown)]
