"""Checks by the bytes of its weights and cache whether a model fits, before it is loaded."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from skipbench.bench.prompts import SCRATCH_ROWS
from skipbench.config.architecture import BYTES
from skipbench.config.catalog import known_models
from skipbench.config.model import Dtype, Model, Quantization
from skipbench.config.run_config import DatasetConfig
from skipbench.data.rows import Row
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
}
"""Usable bytes of the papers' GPU classes, smallest first."""

Models = Mapping[str, Model]  # models of known sizes, by name


def needed_bytes(model: Model, tokens: int) -> tuple[int, int]:
    """Bytes of weights, and of a cache for `tokens` tokens and the draft rows after them."""
    assert model.architecture is not None
    cache = model.architecture.cache_bytes(model.dtype, tokens + SCRATCH_ROWS)
    return model.architecture.weight_bytes(model.dtype, model.quantization), cache


def _with_margin(model: Model, tokens: int) -> int:
    return sum(needed_bytes(model, tokens)) + MARGIN


def longest(rows: Sequence[Row], max_new_tokens: int, context: int) -> int:
    """Tokens of the longest prompt, estimated from its characters, with its output."""
    prompt = max((len(row.prompt) for row in rows), default=0) // TEXT_PER_TOKEN
    return min(prompt + max_new_tokens, context)


def fitting(models: Models, memory: int, tokens: int) -> list[str]:
    """Names of the models that fit into `memory` bytes at that length, smallest first."""
    sizes = sorted((_with_margin(model, tokens), name) for name, model in models.items())
    return [name for size, name in sizes if size <= memory]


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
        what = f"no layer of {model.name!r} and {_gib(MARGIN)} for the rest"
        raise NotHereError(f"a GPU of {_gib(each)} holds {what}")
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


@dataclass(frozen=True)
class Need:
    """Bytes that a cell takes."""

    weight_bytes: int
    cache_bytes: int
    tokens: int  # of the longest prompt with its output, which the cache holds
    calibration_bytes: int  # of `model.calibration`, gone before the cache comes
    copy_bytes: int  # of a variant of the weights, for drafts
    rest_bytes: int  # activations, logits, and so on
    free_bytes: int | None  # of the device; None if unknown

    @property
    def total_bytes(self) -> int:
        then = self.cache_bytes + self.copy_bytes
        return self.weight_bytes + max(then, self.calibration_bytes) + self.rest_bytes

    def text(self, kind: str) -> str:
        """The parts in words; `kind` of the weights."""
        before = self.calibration_bytes
        calibration = f" (or {_gib(before)} for model.calibration before)" if before else ""
        copied = f", {_gib(self.copy_bytes)} for their copy of drafts" if self.copy_bytes else ""
        free = f"; {_gib(self.free_bytes)} are free" if self.free_bytes is not None else ""
        return (
            f"weights {_gib(self.weight_bytes)} ({kind}), cache {_gib(self.cache_bytes)} for about "
            f"{self.tokens} tokens{calibration}{copied}, {_gib(self.rest_bytes)} for the rest{free}"
        )


def check_memory(
    model: Model, dataset: DatasetConfig, rows: Sequence[Row], copies: bool = False
) -> Need | None:
    """The bytes that a cell takes with these rows; None for a model of unknown size. Raises
    NotHereError, with the models that would fit, if they are more than the device has free.

    `copies`: drafts read a variant of the weights, a copy.
    """
    if model.architecture is None:
        return None
    context = min(dataset.context or model.architecture.context, model.architecture.context)
    tokens = longest(rows, dataset.max_new_tokens, context)
    weights, cache = needed_bytes(model, tokens)
    margin = min(MARGIN, max(weights, MIN_MARGIN))
    free = free_bytes(model.device)
    shape = model.architecture
    copied = copies * (shape.layers * shape.layer_parameters + shape.vocab * shape.hidden)
    need = Need(weights, cache, tokens, _calibration_bytes(model), copied, margin, free)
    if free is None or need.total_bytes <= free:
        return need
    fit = ", ".join(fitting(known_models(), free, need.tokens))
    on_gpu = model.device.startswith("cuda")
    several = ". Several GPUs are used with model.device=auto" if on_gpu else ""
    raise NotHereError(
        f"model {model.name!r} needs {_gib(need.total_bytes)} on {model.device}: "
        f"{need.text(weight_kind(model))}. Would fit: {fit or 'none of conf/model'}{several}"
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
    """The cell's minimum memory and smaller settings; None for an error of another kind."""
    import torch  # not above: a plan computes sizes without it

    text, kinds = str(error), MemoryError | torch.OutOfMemoryError
    exhausted = "can't allocate memory" in text or "out of memory" in text
    if not exhausted and not isinstance(error, kinds):
        return None
    first = f": {text.partition(chr(10))[0]}" if text else ""
    reason = f"out of memory ({type(error).__name__}{first})"
    if model.architecture is None:
        advice = "give the job more (hardware.memory=), or use a smaller dataset.max_new_tokens"
        return f"{reason}; {advice}"
    need, changed = _with_margin(model, max_new_tokens), dict[str, Model]()
    if model.device.startswith("cuda"):
        changed["quantization=int8"] = replace(model, quantization=Quantization.int8)
    if model.dtype == Dtype.float32:
        changed["dtype=bfloat16"] = replace(model, dtype=Dtype.bfloat16)
    sizes = {words: _with_margin(other, max_new_tokens) for words, other in changed.items()}
    smaller = [f"model.{words} ({_gib(size)})" for words, size in sizes.items() if size < need]
    smaller += [f"model={name}" for name in fitting(known_models(), need - 1, max_new_tokens)[-1:]]
    return (
        f"{reason}; model {model.name!r} needs {_gib(need)}, more for long prompts. Next smaller: "
        f"{', '.join(smaller) or 'no model of conf/model'}; or give the job more (hardware.memory=)"
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


def gpu_lines(models: Models, tokens: int) -> list[str]:
    """The models that fit first on every GPU class, then the GPUs of 80 GB that others take."""
    lines, seen, each = [], set[str](), GPUS["A100 80 GB, A800, H100"]
    for gpu, memory in GPUS.items():
        new = [name for name in fitting(models, memory, tokens) if name not in seen]
        above = "the above and " if seen else ""
        lines.append(f"note     fits on one {gpu}: {above}{', '.join(new) or 'nothing more'}")
        seen |= set(new)
    counts = {name: _gpus(models[name], tokens, each) for name in sorted(set(models) - seen)}
    return lines + [f"note     {name} takes {n} GPUs of 80 GB" for name, n in counts.items()]


def size_text(model: Model) -> str:
    """Parameters, layers and bytes of a model in a line."""
    shape = model.architecture
    assert shape is not None
    kind = model.dtype if model.quantization == "none" else model.quantization
    size = f"{_gib(needed_bytes(model, 0)[0])} in {kind}"
    return f"{shape.parameters / 1e9:.2f}e9 parameters, {shape.layers} layers, {size}"


def _gib(count: int) -> str:
    return f"{count / GIB:.1f} GiB"
