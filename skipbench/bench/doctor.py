"""`doctor`: what this machine can run, and what is missing for more. Looks at nothing outside the machine."""

import importlib.util
import os
import platform
import re
import shutil
from pathlib import Path

import torch

from skipbench.errors import SkipbenchError
from skipbench.lm.load import load

TINY = Path(__file__).resolve().parent.parent / "models" / "tiny"
EXTRAS = {"accelerate": "big", "hydra_plugins.hydra_submitit_launcher": "slurm"}


def findings(results: Path) -> list[str]:
    """Lines that begin with `ok`, `note` or `missing`."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    lines = [f"ok       Python {platform.python_version()}, torch {torch.__version__}"]
    lines.append(f"ok       {os.cpu_count()} cores, {memory / 2**30:.0f} GiB of memory; {_cpu_flags()}")
    lines += _devices(memory)
    try:
        lm, _ = load(str(TINY))
        lines.append(f"ok       embedded model: {lm.layers} layers, {lm.weight_bytes() / 1e6:.1f} MB")
    except SkipbenchError as error:
        lines.append(f"missing  embedded model: {error}")
    lines.append(_writable(results))
    for module, extra in EXTRAS.items():
        there = _installed(module)
        lines.append(
            f"{'ok      ' if there else 'missing '} {module}" + ("" if there else f": pip install 'skipbench[{extra}]'")
        )
    hub = Path(os.environ.get("HF_HOME", Path.home() / ".cache" / "huggingface")) / "hub"
    offline = "set: only what is in the cache can be loaded" if os.environ.get("HF_HUB_OFFLINE") else "not set"
    lines.append(f"note     hub cache {hub}: {'there' if hub.is_dir() else 'empty'}; HF_HUB_OFFLINE is {offline}")
    lines.append(f"note     Slurm: {'sbatch found' if shutil.which('sbatch') else 'no sbatch on this machine'}")
    return lines


def _cpu_flags() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return "instruction sets unknown"
    found = sorted(set(re.findall(r"\b(amx_bf16|avx512_bf16|avx512f|avx2)\b", text)))
    return ", ".join(found) or "none of amx_bf16, avx512_bf16, avx512f, avx2"


def _devices(memory: int) -> list[str]:
    if torch.cuda.is_available():
        properties = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
        return [f"ok       CUDA device {p.name}: {_fits(p.total_memory)}" for p in properties]
    return [f"missing  no CUDA device: runs are on the CPU, where {_fits(memory)}"]


def _fits(total_bytes: int) -> str:
    """Largest model in bfloat16 whose weights take four fifths of the memory, the rest being for cache and activations."""
    return f"{total_bytes / 2**30:.0f} GiB hold up to {0.8 * total_bytes / 2 / 1e9:.0f} billion parameters in bfloat16"


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
