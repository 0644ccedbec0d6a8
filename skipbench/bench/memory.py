"""Checks by the bytes of its weights and cache whether a model fits, before it is loaded."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from skipbench.bench.prompts import SCRATCH_ROWS
from skipbench.config.architecture import BYTES
from skipbench.config.dataset import DatasetConfig
from skipbench.config.model import Model
from skipbench.data.rows import Example
from skipbench.errors import NotHereError

GIB = 2**30
GROUP = Path("/sys/fs/cgroup")
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
}  # usable bytes of the papers' GPU classes, smallest first


def needed_bytes(model: Model, tokens: int) -> tuple[int, int]:
    """Bytes of weights, and of a cache for `tokens` tokens and the draft rows after them."""
    assert model.architecture is not None
    cache = model.architecture.cache_bytes(model.dtype, tokens + SCRATCH_ROWS)
    return model.architecture.weight_bytes(model.dtype, model.quantization), cache


def longest(rows: Sequence[Example], max_new_tokens: int, context: int) -> int:
    """Tokens of the longest prompt, estimated from its characters, with its output."""
    prompt = max((len(row.prompt) for row in rows), default=0) // TEXT_PER_TOKEN
    return min(prompt + max_new_tokens, context)


def gpus_needed(model: Model, dataset: DatasetConfig, each: int) -> int:
    """GPUs of `each` usable bytes for a cell whose prompts fill `dataset.context`, or else have
    `LONG_PROMPT` tokens; 1 for a model on the CPU or of unknown size. Raises NotHereError if such a
    GPU holds no layer of the model.
    """
    if model.architecture is None or model.device == "cpu":
        return 1
    tokens = dataset.context or LONG_PROMPT + dataset.max_new_tokens
    return _gpus(model, min(tokens, model.architecture.context), each)


def _gpus(model: Model, tokens: int, each: int) -> int:
    """GPUs that hold weights and cache; each layer lies whole on one, which may stay half empty."""
    shape = model.architecture
    assert shape is not None
    weights, cache = needed_bytes(model, tokens)
    total = weights + max(cache, _calibration_bytes(model))
    if total + MARGIN <= each:
        return 1
    usable = each - MARGIN - weights // shape.layers
    if usable <= 0:
        raise NotHereError(f"a GPU of {_gib(each)} holds no layer of {model.name!r}")
    return max(2, -(-total // usable))


def devices_needed(model: Model, tokens: int | None) -> int | None:
    """The minimum of the GPUs at hand that hold a model and `tokens` of prompt and output, twice
    `LONG_PROMPT` if unknown; None where its size is not known, or all of them are needed.
    """
    if model.architecture is None:
        return None
    free, tokens = _gpus_free(), min(tokens or 2 * LONG_PROMPT, model.architecture.context)
    fits = (n for n in range(1, len(free)) if _gpus(model, tokens, min(free[:n])) <= n)
    return next(fits, None)


def check_memory(
    model: Model, dataset: DatasetConfig, rows: Sequence[Example], copies: bool = False
) -> tuple[int, int | None] | None:
    """The bytes that a cell takes with these rows, and those that its device has free, None if
    unknown; None for a model of unknown size. Raises NotHereError for more than are free.

    `copies`: drafts read a variant of the weights, a copy.
    """
    if (shape := model.architecture) is None:
        return None
    context = min(dataset.context or shape.context, shape.context)
    tokens = longest(rows, dataset.max_new_tokens, context)
    weights, cache = needed_bytes(model, tokens)
    if copies:  # a byte per weight
        cache += shape.layers * shape.layer_parameters + shape.vocab * shape.hidden
    margin = min(MARGIN, max(weights, MIN_MARGIN))
    # the calibration is over before the cache comes
    total, free = weights + max(cache, _calibration_bytes(model)) + margin, free_bytes(model.device)
    if free is None or total <= free:
        return total, free
    several = " model.device=auto for several GPUs," if model.device.startswith("cuda") else ""
    raise NotHereError(
        f"model {model.name!r} needs {_gib(total)} on {model.device} for about {tokens} tokens of "
        f"{weight_kind(model)}, and {_gib(free)} are free; use{several} another model, or a "
        "smaller dataset.context or dataset.max_new_tokens"
    )


def weight_kind(model: Model) -> str:
    """Precision and sparsity of the weights."""
    kinds = (k for k in (model.quantization, model.sparsity) if k != "none")
    return ", ".join([model.dtype, *kinds])


def _calibration_bytes(model: Model) -> int:
    """Hidden states of all calibration texts, which Wanda takes through the layers together."""
    if model.sparsity == "none":
        return 0
    assert model.architecture is not None
    tokens = min(model.calibration.tokens, model.architecture.context)
    return int(model.calibration.rows * tokens * model.architecture.hidden * BYTES[model.dtype])


def out_of_memory(error: Exception, model: Model, max_new_tokens: int) -> str | None:
    """The reason of an error that was for memory, with the least that the cell takes and what to
    change; None for an error of another kind.
    """
    import torch  # not above: a plan computes sizes without it

    text, kinds = str(error), MemoryError | torch.OutOfMemoryError
    exhausted = "can't allocate memory" in text or "out of memory" in text
    if not exhausted and not isinstance(error, kinds):
        return None
    first = f"{type(error).__name__}: {text}".splitlines()[0].rstrip(": ")
    least = ""
    if model.architecture is not None:
        size = sum(needed_bytes(model, max_new_tokens)) + MARGIN
        least = f"model {model.name!r} needs {_gib(size)}, more for long prompts; "
    return (
        f"out of memory ({first}); {least}give the job more (hardware.memory=), or use a smaller "
        "model, model.dtype or dataset.max_new_tokens"
    )


def _gpus_free() -> list[int]:
    """Free bytes of every GPU at hand."""
    import torch  # as above

    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [torch.cuda.mem_get_info(i)[0] for i in range(count)]


def free_bytes(device: str) -> int | None:
    """Free memory of a device, or of all GPUs for `auto`; None for a GPU that is not there."""
    import torch  # as above

    free = [] if device == "cpu" else _gpus_free()
    if device in ("cpu", "auto"):
        return sum(free) or host_free_bytes()
    return torch.cuda.mem_get_info(device)[0] if free else None


def host_free_bytes(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    """Memory without swapping that the control group still allows; None if unknown."""
    try:
        lines = meminfo.read_text().splitlines()
        available = next(line for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return None
    return min([int(available.split()[1]) * 1024, *(limit - used for limit, used in group_bytes())])


def group_bytes() -> Iterator[tuple[int, int]]:
    """Limit and use of memory of the control group (container, batch job), where it has a limit."""
    for limit, used in (
        ("memory.max", "memory.current"),
        ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"),
    ):
        with contextlib.suppress(OSError, ValueError):  # no such file, or "max"
            yield int((GROUP / limit).read_text()), int((GROUP / used).read_text())


def size_text(model: Model) -> str:
    """Parameters, layers and bytes of a model in a line."""
    shape = model.architecture
    assert shape is not None
    kind = model.dtype if model.quantization == "none" else model.quantization
    size = f"{_gib(needed_bytes(model, 0)[0])} in {kind}"
    return f"{shape.parameters / 1e9:.2f}e9 parameters, {shape.layers} layers, {size}"


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
