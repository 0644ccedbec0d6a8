"""`doctor`: what this machine can run, and what is missing for more.

Looks at nothing outside the machine.
"""

import hashlib
import importlib.util
import os
import platform
import re
import shutil
from pathlib import Path

import torch

from skipbench.bench.memory import Models, fitting, gpu_lines
from skipbench.errors import SkipbenchError
from skipbench.models.load import load
from skipbench.profile.energy import energy_meter
from skipbench.scoring.sandbox import isolation

TINY = Path(__file__).resolve().parent.parent / "models" / "tiny"
WEIGHTS = "model.safetensors"
MODEL_TOKENS = 2048  # prompt and output for which the models' memory is said
EXTRAS = {"accelerate": "big", "bitsandbytes": "quant"}


def findings(results: Path, models: Models) -> list[str]:
    """Lines that begin with `ok`, `note` or `missing`; `models` are those to say where they fit."""
    memory = _memory()
    lines = [f"ok       Python {platform.python_version()}, torch {torch.__version__}"]
    model, flags = _cpu()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    lines.append(
        f"ok       CPU {model}: {cores} cores, {memory / 2**30:.0f} GiB of memory; {flags}"
    )
    lines += _devices(memory, models)
    lines += gpu_lines(models, MODEL_TOKENS) if not torch.cuda.is_available() else []
    lines.append(_embedded())
    lines.append(_writable(results))
    for module, extra in EXTRAS.items():
        there = _installed(module)
        lines.append(
            f"{'ok      ' if there else 'missing '} {module}"
            + ("" if there else f": pip install 'skipbench[{extra}]'")
        )
    hub = _hub_cache()
    is_offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    offline = (
        "on: only what is in the cache can be loaded"
        if is_offline
        else "off; whether the hub answers was not tried"
    )
    lines.append(
        f"note     hub cache {hub}: {'there' if hub.is_dir() else 'not there'}; "
        f"HF_HUB_OFFLINE is {offline}"
    )
    lines.append(_sandbox())
    lines.append(_energy())
    lines.append(
        "note     Slurm: "
        f"{'sbatch found' if shutil.which('sbatch') else 'no sbatch on this machine'}"
    )
    return lines


def _energy() -> str:
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    devices = [torch.device("cuda", index) for index in gpus] or [torch.device("cpu")]
    source = energy_meter(devices).source
    return (
        f"{'note    ' if source.startswith('unknown') else 'ok      '} energy per token: {source}"
    )


def _sandbox() -> str:
    try:
        return f"ok       generated code is isolated by {isolation().name}"
    except SkipbenchError as error:
        return f"missing  {error}"


def _memory() -> int:
    """Bytes of memory, or the limit of the control group (container, batch job) where that is
    lower.
    """
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or "max"
            continue
    return total


def _cpu() -> tuple[str, str]:
    """Model name, and which of the instruction sets that matter it has."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine(), "instruction sets unknown"
    name = re.search(r"^model name\s*: (.+)$", text, re.M)
    found = sorted(set(re.findall(r"\b(amx_bf16|avx512_bf16|avx512f|avx2)\b", text)))
    return name[1] if name else platform.machine(), ", ".join(
        found
    ) or "none of amx_bf16, avx512_bf16, avx512f, avx2"


def _embedded() -> str:
    try:
        lm, _ = load(str(TINY))
        weights = (TINY / WEIGHTS).read_bytes()
    except Exception as error:  # whatever is wrong with the files is the finding
        return f"missing  embedded model: {error}"
    digest = hashlib.sha256(weights).hexdigest()[:16]
    return (
        f"ok       embedded model: {lm.layers} layers, {WEIGHTS} of {len(weights) / 1e6:.1f} "
        f"MB, sha256 {digest}"
    )


def _hub_cache() -> Path:
    """Where the hub's library keeps its files: its variables in its order."""
    if "HF_HUB_CACHE" in os.environ:
        return Path(os.environ["HF_HUB_CACHE"]).expanduser()
    cache = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")) / "huggingface"
    return Path(os.environ.get("HF_HOME", cache)).expanduser() / "hub"


def _devices(memory: int, models: Models) -> list[str]:
    if torch.cuda.is_available():
        properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        lines = [
            f"ok       CUDA device {p.name}: {_fits(p.total_memory, models)}" for p in properties
        ]
        total = sum(p.total_memory for p in properties)
        return lines + (
            [f"ok       all of them, model.device=auto: {_fits(total, models)}"]
            if len(lines) > 1
            else []
        )
    return [f"missing  no CUDA device: runs are on the CPU, where {_fits(memory, models)}"]


def _fits(total_bytes: int, models: Models) -> str:
    names = ", ".join(fitting(models, total_bytes, MODEL_TOKENS)) or "none of conf/model"
    return f"{total_bytes / 2**30:.0f} GiB hold, with {MODEL_TOKENS} tokens: {names}"


def _writable(results: Path) -> str:
    folder = results.absolute()
    while not folder.exists():
        folder = folder.parent
    usable = folder.is_dir() and os.access(folder, os.W_OK)
    return (
        f"ok       results={results} is writable"
        if usable
        else f"missing  results={results} is not writable; choose another"
    )


def _installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False
