"""Prompts, GPUs, memory and hours of a row, from the model's sizes and the datasheet of a GPU.

Hours are an upper bound: every arm as slow as vanilla, and every output of `max_new_tokens`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from skipbench.bench.memory import GIB, GPUS, MARGIN, USUAL_PROMPT, gpus_needed, needed_bytes
from skipbench.config.architecture import BYTES
from skipbench.config.catalog import known_hardware
from skipbench.config.dataset import DatasetConfig
from skipbench.config.hardware import Hardware, Local, Slurm
from skipbench.config.model import Model
from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError

READS, COMPUTES = 0.6, 0.4  # shares of bandwidth that decoding, of arithmetic that prefill reaches
LOADED_PER_S = 1e9  # bytes of weights read from disk
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
    """The cost of a row, before its dataset is read, on so many `gpus`, by default as many as hold
    the model; None for a model of unknown size.
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
    turns *= dataset.node.get("samples_per_task", 1) * len(dataset.node.get("parts", "1"))

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


def arm_s(model: Model, device: Hardware, prompt_tokens: int, tokens: int) -> float:
    """Seconds of vanilla for a prompt and `tokens` new tokens: each of them reads the weights and
    the cache, and the prefill is arithmetic.
    """
    assert model.architecture is not None
    shape, dtype, bandwidth = model.architecture, str(model.dtype), device.bandwidth or 1
    read: float = shape.weight_bytes(dtype, str(model.quantization))
    if not shape.tied:
        read -= shape.vocab * shape.hidden * BYTES[dtype]  # of the embedding one row
    read += shape.cache_bytes(dtype, prompt_tokens + tokens // 2)
    prefill = 2 * shape.parameters * prompt_tokens / device.flops.get(dtype, 100 * bandwidth)
    return tokens * read / (READS * bandwidth) + prefill / COMPUTES


def bill(costs: Sequence[Cost], gpus: int = 1, exclusive: bool = False) -> tuple[float, float]:
    """Hours until the last job is over, the longest ones first, and the GPU-hours charged, where
    jobs share the `gpus` of one node, or each takes, and is charged, whole nodes (`exclusive`).
    """
    free, charged = [0.0] * gpus, 0.0
    for cost in sorted(costs, key=lambda c: -c.hours):
        held = -(-cost.gpus // gpus) * gpus if exclusive else cost.gpus
        taken = min(held, gpus)
        free.sort()
        free[:taken] = [free[taken - 1] + cost.hours] * taken
        charged += held * cost.hours
    return max(free), charged
