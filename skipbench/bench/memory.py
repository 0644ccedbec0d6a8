"""Whether a model fits, before anything of it is loaded: bytes of its weights and cache against
what the device has.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from skipbench.bench.prompts import SCRATCH_ROWS
from skipbench.config.architecture import BYTES
from skipbench.config.catalog import known_models
from skipbench.config.dataset_config import DatasetConfig
from skipbench.config.model import Dtype, Model, Quantization
from skipbench.data.rows import Row
from skipbench.errors import NotHereError

GIB = 2**30
ROOM = GIB  # beside weights and cache: activations, logits, the CUDA context
LEAST_ROOM = GIB // 16  # of it, for a model that is small itself
PROMPT_TOKENS = 8192  # room for a prompt whose dataset is not read yet
TEXT_PER_TOKEN = 4  # characters; English text under the papers' tokenizers has 4 to 5
GPUS = {
    "A100 40 GB": 39 * GIB,
    "A6000": 47 * GIB,
    "A100 80 GB, A800, H100": 79 * GIB,
    "H200": 139 * GIB,
}
"""Usable bytes of the papers' GPU classes, smallest first."""

Models = Mapping[str, Model]
"""Models of known sizes, by name."""


def needed_bytes(model: Model, tokens: int) -> tuple[int, int]:
    """Bytes of weights, and of the cache of `tokens` tokens with the rows for drafts behind
    them.
    """
    assert model.sizes is not None
    cache = model.sizes.cache_bytes(model.dtype, tokens + SCRATCH_ROWS)
    return model.sizes.weight_bytes(model.dtype, model.quantization), cache


def longest(rows: Sequence[Row], max_new_tokens: int, context: int) -> int:
    """Tokens of the longest prompt with its output, guessed from its characters, since no tokenizer
    is loaded yet.
    """
    prompt = max((len(row.prompt) for row in rows), default=0) // TEXT_PER_TOKEN
    return min(prompt + max_new_tokens, context)


def fitting(models: Models, memory: int, tokens: int) -> list[str]:
    """Names of the models that fit into `memory` bytes at that length, smallest first."""
    sizes = {name: sum(needed_bytes(model, tokens)) + ROOM for name, model in models.items()}
    return sorted((n for n in sizes if sizes[n] <= memory), key=lambda n: (sizes[n], n))


def gpus_needed(model: Model, dataset: DatasetConfig, each: int) -> int:
    """GPUs of `each` usable bytes for a cell, before its dataset is read; 1 for a model on the CPU
    or of unknown size.

    Prompts are taken to fill `dataset.context`, or to have `PROMPT_TOKENS`.

    Raises:
        NotHereError: such a GPU holds no layer of the model.
    """
    if model.sizes is None or model.device == "cpu":
        return 1
    tokens = _context(model, dataset.context)
    if dataset.context is None:
        tokens = min(PROMPT_TOKENS + dataset.max_new_tokens, tokens)
    return _gpus(model, tokens, each)


def _gpus(model: Model, tokens: int, each: int) -> int:
    """GPUs that hold weights and cache; a layer lies whole on one of several GPUs, so one may stay
    half empty.
    """
    assert model.sizes is not None
    weights, cache = needed_bytes(model, tokens)
    total = weights + max(cache, _calibration_bytes(model))
    if total + ROOM <= each:
        return 1
    usable = each - ROOM - weights // model.sizes.layers
    if usable <= 0:
        raise NotHereError(
            f"a GPU of {_gib(each)} holds no layer of {model.name!r} and {_gib(ROOM)} for the rest"
        )
    return max(2, -(-total // usable))


def devices_needed(model: Model, tokens: int | None) -> int | None:
    """The fewest of the GPUs at hand that hold a model with `tokens` tokens, the first ones; `None`
    where its size is not known, or all of them are needed.

    Args:
        tokens: of prompt and output; `None` for a prompt of `PROMPT_TOKENS`.
    """
    import torch  # not above: a plan computes sizes without it

    if model.sizes is None or not torch.cuda.is_available():
        return None
    free = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
    tokens = min(tokens or 2 * PROMPT_TOKENS, model.sizes.context)
    for count in range(1, len(free)):
        if _gpus(model, tokens, min(free[:count])) <= count:
            return count
    return None


def _context(model: Model, cut: int | None) -> int:
    """Tokens that prompt and output have together: the model's context, or the dataset's where it
    is cut shorter.
    """
    assert model.sizes is not None
    context = model.sizes.context
    return context if cut is None else min(cut, context)


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes that a cell takes.

    Attributes:
        tokens: of the longest prompt with its output, for which the cache is.
        calibration_bytes: of `model.calibration`, gone before the cache comes.
        room_bytes: for the rest, such as activations and logits.
        free_bytes: of the device; `None` where nobody says.
    """

    weight_bytes: int
    cache_bytes: int
    tokens: int
    calibration_bytes: int
    room_bytes: int
    free_bytes: int | None

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + max(self.cache_bytes, self.calibration_bytes) + self.room_bytes

    def text(self, kind: str) -> str:
        """The parts in words; `kind` of the weights."""
        before = self.calibration_bytes
        calibration = f" (or {_gib(before)} for model.calibration before)" if before else ""
        free = f"; {_gib(self.free_bytes)} are free" if self.free_bytes is not None else ""
        return (
            f"weights {_gib(self.weight_bytes)} ({kind}), cache {_gib(self.cache_bytes)} for about "
            f"{self.tokens} tokens{calibration}, {_gib(self.room_bytes)} for the rest{free}"
        )


def memory_need(model: Model, dataset: DatasetConfig, rows: Sequence[Row]) -> Need | None:
    """What the cell takes with these rows; `None` for a model of unknown size."""
    if model.sizes is None:
        return None
    tokens = longest(rows, dataset.max_new_tokens, _context(model, dataset.context))
    weights, cache = needed_bytes(model, tokens)
    return Need(
        weights,
        cache,
        tokens,
        _calibration_bytes(model),
        min(ROOM, max(weights, LEAST_ROOM)),
        free_bytes(model.device),
    )


def check_memory(model: Model, dataset: DatasetConfig, rows: Sequence[Row]) -> None:
    """Refuses a model of known sizes that does not fit its device.

    Raises:
        NotHereError: weights, cache and room are more than is free, with the numbers and the models
            that would fit.
    """
    need = memory_need(model, dataset, rows)
    if need is None or need.free_bytes is None or need.total_bytes <= need.free_bytes:
        return
    fit = fitting(known_models(), need.free_bytes, need.tokens)
    raise NotHereError(
        f"model {model.name!r} needs {_gib(need.total_bytes)} on {model.device}: "
        f"{need.text(weight_kind(model))}. Would fit: {', '.join(fit) or 'none of conf/model'}"
        + (
            ". Several GPUs are used with model.device=auto"
            if model.device.startswith("cuda")
            else ""
        )
    )


def weight_kind(model: Model) -> str:
    """Precision of the weights, and what was left out of them."""
    kinds = (k for k in (model.quantization, model.sparsity) if k != "none")
    return ", ".join([model.dtype, *kinds])


def _calibration_bytes(model: Model) -> int:
    """Hidden states of all calibration texts, which Wanda takes through the layers together; zeros
    in weights save nothing.
    """
    if model.sparsity == "none":
        return 0
    assert model.sizes is not None
    tokens = min(model.calibration.tokens, model.sizes.context)
    bytes_each = model.sizes.hidden * BYTES[model.dtype]
    return int(model.calibration.rows * tokens * bytes_each)


def out_of_memory(error: Exception, model: Model, max_new_tokens: int) -> str | None:
    """What a cell that ran out of memory needs at least, and smaller settings; `None` for an error
    of another kind.
    """
    import torch  # as above

    words = ("can't allocate memory", "out of memory")
    if not isinstance(error, MemoryError | torch.OutOfMemoryError) and not any(
        w in str(error) for w in words
    ):
        return None
    reason = (
        "out of memory "
        f"({type(error).__name__}{': ' if str(error) else ''}{str(error).partition(chr(10))[0]})"
    )
    if model.sizes is None:
        advice = "give the job more (hardware.memory=), or use a smaller dataset.max_new_tokens"
        return f"{reason}; {advice}"
    need = sum(needed_bytes(model, max_new_tokens)) + ROOM
    changes: list[dict[str, Any]] = (
        [{"quantization": Quantization.int8}] if model.device.startswith("cuda") else []
    )
    changes += [{"dtype": Dtype.bfloat16}] if model.dtype == "float32" else []
    smaller = [
        (sum(needed_bytes(dataclasses.replace(model, **c), max_new_tokens)) + ROOM, c)
        for c in changes
    ]
    smaller_settings = [
        f"model.{k}={v} ({_gib(size)})" for size, c in smaller if size < need for k, v in c.items()
    ]
    smaller_settings += [
        f"model={name}" for name in fitting(known_models(), need - 1, max_new_tokens)[-1:]
    ]
    return (
        f"{reason}; model {model.name!r} needs {_gib(need)}, more for long prompts. "
        f"Next smaller: {', '.join(smaller_settings) or 'no model of conf/model'}; or give the "
        "job more (hardware.memory=)"
    )


def free_bytes(device: str) -> int | None:
    """Memory that is free on a device, or on all GPUs for `auto`; `None` where a GPU is asked for
    and there is none.
    """
    import torch  # as above

    if device == "cpu" or (device == "auto" and not torch.cuda.is_available()):
        return host_free_bytes()
    if not torch.cuda.is_available():
        return None
    if device == "auto":
        return sum(torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count()))
    return torch.cuda.mem_get_info(device)[0]


def host_free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """What Linux can give without swapping, and no more than the control group still allows; `None`
    if it does not say.
    """
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    kib = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    if kib is None:
        return None
    free = kib * 1024
    group = Path("/sys/fs/cgroup")
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        try:
            free = min(free, int((group / limit).read_text()) - int((group / used).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return free


def gpu_lines(models: Models, tokens: int) -> list[str]:
    """For every GPU class what fits on it that did not on the one before, then how many GPUs of 80
    GB the others take.
    """
    lines, seen = [], set[str]()
    for gpu, memory in GPUS.items():
        new = [name for name in fitting(models, memory, tokens) if name not in seen]
        lines.append(
            f"note     fits on one {gpu}: "
            f"{'the above and ' if seen else ''}{', '.join(new) or 'nothing more'}"
        )
        seen |= set(new)
    each = GPUS["A100 80 GB, A800, H100"]
    for name in sorted(set(models) - seen):
        lines.append(f"note     {name} takes {_gpus(models[name], tokens, each)} GPUs of 80 GB")
    return lines


def size_text(model: Model) -> str:
    """Parameters, layers and bytes of a model in a line."""
    shape = model.sizes
    assert shape is not None
    kind: str = model.dtype if model.quantization == "none" else model.quantization
    return (
        f"{shape.parameters / 1e9:.2f}e9 parameters, {shape.layers} layers, "
        f"{_gib(needed_bytes(model, 0)[0])} in {kind}"
    )


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
