"""Checks whether a model fits, before anything of it is loaded: bytes of its weights and cache
against the memory of the device.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from skipbench.bench.prompts import SCRATCH_ROWS
from skipbench.config.architecture import BYTES
from skipbench.config.catalog import known_models
from skipbench.config.dataset_config import DatasetConfig
from skipbench.config.model import Dtype, Model, Quantization
from skipbench.data.rows import Row
from skipbench.errors import NotHereError

GIB = 2**30
MARGIN = GIB  # beside weights and cache: activations, logits, the CUDA context
MIN_MARGIN = GIB // 16  # for a model that is small itself
# tokens of a prompt whose dataset is not read yet: as memory must hold it, and as hours count it
LONG_PROMPT, USUAL_PROMPT = 8192, 1024
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
    """Bytes of weights, and of a cache for `tokens` tokens and the draft rows after them."""
    assert model.sizes is not None
    cache = model.sizes.cache_bytes(model.dtype, tokens + SCRATCH_ROWS)
    return model.sizes.weight_bytes(model.dtype, model.quantization), cache


def _with_margin(model: Model, tokens: int) -> int:
    return sum(needed_bytes(model, tokens)) + MARGIN


def longest(rows: Sequence[Row], max_new_tokens: int, context: int) -> int:
    """Tokens of the longest prompt with its output, estimated from its characters, since no
    tokenizer is loaded yet.
    """
    prompt = max((len(row.prompt) for row in rows), default=0) // TEXT_PER_TOKEN
    return min(prompt + max_new_tokens, context)


def fitting(models: Models, memory: int, tokens: int) -> list[str]:
    """Names of the models that fit into `memory` bytes at that length, smallest first."""
    sizes = sorted((_with_margin(model, tokens), name) for name, model in models.items())
    return [name for size, name in sizes if size <= memory]


def gpus_needed(model: Model, dataset: DatasetConfig, each: int) -> int:
    """GPUs of `each` usable bytes for a cell, before its dataset is read; 1 for a model on the CPU
    or of unknown size.

    Prompts are taken to fill `dataset.context`, or to have `LONG_PROMPT` tokens.

    Raises:
        NotHereError: such a GPU holds no layer of the model.
    """
    if model.sizes is None or model.device == "cpu":
        return 1
    tokens = _context(model, dataset)
    if dataset.context is None:
        tokens = min(LONG_PROMPT + dataset.max_new_tokens, tokens)
    return _gpus(model, tokens, each)


def _gpus(model: Model, tokens: int, each: int) -> int:
    """GPUs that hold weights and cache; a layer lies whole on one of several GPUs, so one may stay
    half empty.
    """
    assert model.sizes is not None
    weights, cache = needed_bytes(model, tokens)
    total = weights + max(cache, _calibration_bytes(model))
    if total + MARGIN <= each:
        return 1
    usable = each - MARGIN - weights // model.sizes.layers
    if usable <= 0:
        raise NotHereError(
            f"a GPU of {_gib(each)} holds no layer of {model.name!r} and {_gib(MARGIN)} for the "
            "rest"
        )
    return max(2, -(-total // usable))


def devices_needed(model: Model, tokens: int | None) -> int | None:
    """The fewest of the GPUs at hand that hold a model with `tokens` tokens, the first ones; None
    where its size is not known, or all of them are needed.

    Args:
        tokens: of prompt and output; None takes twice `LONG_PROMPT`.
    """
    import torch  # not above: a plan computes sizes without it

    if model.sizes is None or not torch.cuda.is_available():
        return None
    free = [torch.cuda.mem_get_info(i)[0] for i in range(torch.cuda.device_count())]
    tokens = min(tokens or 2 * LONG_PROMPT, model.sizes.context)
    fits = (n for n in range(1, len(free)) if _gpus(model, tokens, min(free[:n])) <= n)
    return next(fits, None)


def _context(model: Model, dataset: DatasetConfig) -> int:
    """Tokens that prompt and output have together: the model's context, or the dataset's where it
    is cut shorter.
    """
    assert model.sizes is not None
    return min(dataset.context or model.sizes.context, model.sizes.context)


@dataclasses.dataclass(frozen=True)
class Need:
    """Bytes that a cell takes.

    Attributes:
        tokens: of the longest prompt with its output, which the cache holds.
        calibration_bytes: of `model.calibration`, gone before the cache comes.
        room_bytes: for the rest, such as activations and logits.
        free_bytes: of the device; None if unknown.
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
    """The bytes that the cell takes with these rows; None for a model of unknown size."""
    if model.sizes is None:
        return None
    tokens = longest(rows, dataset.max_new_tokens, _context(model, dataset))
    weights, cache = needed_bytes(model, tokens)
    margin = min(MARGIN, max(weights, MIN_MARGIN))
    free = free_bytes(model.device)
    return Need(weights, cache, tokens, _calibration_bytes(model), margin, free)


def check_memory(model: Model, dataset: DatasetConfig, rows: Sequence[Row]) -> None:
    """Refuses a model of known sizes that does not fit its device.

    Raises:
        NotHereError: weights, cache and the rest are more than is free, with the numbers and the
            models that would fit.
    """
    need = memory_need(model, dataset, rows)
    if need is None or need.free_bytes is None or need.total_bytes <= need.free_bytes:
        return
    fit = ", ".join(fitting(known_models(), need.free_bytes, need.tokens))
    on_gpu = model.device.startswith("cuda")
    raise NotHereError(
        f"model {model.name!r} needs {_gib(need.total_bytes)} on {model.device}: "
        f"{need.text(weight_kind(model))}. Would fit: {fit or 'none of conf/model'}"
        + (". Several GPUs are used with model.device=auto" if on_gpu else "")
    )


def weight_kind(model: Model) -> str:
    """Precision and sparsity of the weights."""
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
    return int(model.calibration.rows * tokens * model.sizes.hidden * BYTES[model.dtype])


def out_of_memory(error: Exception, model: Model, max_new_tokens: int) -> str | None:
    """The memory that a cell needs at least after it ran out, and smaller settings; None for an
    error of another kind.
    """
    import torch  # as above

    text = str(error)
    words = ("can't allocate memory", "out of memory")
    is_memory = isinstance(error, MemoryError | torch.OutOfMemoryError)
    if not is_memory and not any(w in text for w in words):
        return None
    first = f": {text.partition(chr(10))[0]}" if text else ""
    reason = f"out of memory ({type(error).__name__}{first})"
    if model.sizes is None:
        advice = "give the job more (hardware.memory=), or use a smaller dataset.max_new_tokens"
        return f"{reason}; {advice}"
    need = _with_margin(model, max_new_tokens)
    changes: list[tuple[str, Quantization | Dtype]] = []
    if model.device.startswith("cuda"):
        changes.append(("quantization", Quantization.int8))
    if model.dtype == "float32":
        changes.append(("dtype", Dtype.bfloat16))
    smaller = []
    for key, value in changes:
        changed = dataclasses.replace(model, **{key: value})  # type: ignore[arg-type]  # by its name
        if (size := _with_margin(changed, max_new_tokens)) < need:
            smaller.append(f"model.{key}={value} ({_gib(size)})")
    smaller += [f"model={name}" for name in fitting(known_models(), need - 1, max_new_tokens)[-1:]]
    return (
        f"{reason}; model {model.name!r} needs {_gib(need)}, more for long prompts. "
        f"Next smaller: {', '.join(smaller) or 'no model of conf/model'}; or give the "
        "job more (hardware.memory=)"
    )


def free_bytes(device: str) -> int | None:
    """Memory that is free on a device, or on all GPUs for `auto`; None where a GPU is asked for and
    there is none.
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
    """Memory that Linux can give without swapping, and that the control group still allows; None if
    unknown.
    """
    try:
        lines = meminfo.read_text().splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    free = int(available.split()[1]) * 1024
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
    """For every GPU class the models that fit on it and not on the one before, then the GPUs of 80
    GB that each of the others takes.
    """
    lines, seen = [], set[str]()
    for gpu, memory in GPUS.items():
        new = [name for name in fitting(models, memory, tokens) if name not in seen]
        above = "the above and " if seen else ""
        lines.append(f"note     fits on one {gpu}: {above}{', '.join(new) or 'nothing more'}")
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
