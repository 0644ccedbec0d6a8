"""`doctor`: what this machine can run and what is missing, without asking the network."""

import os
import platform
import shutil
from importlib.util import find_spec
from pathlib import Path

import torch
from huggingface_hub import constants

from skipbench.bench.memory import GIB, group_bytes
from skipbench.errors import SkipbenchError
from skipbench.models.load import load
from skipbench.runs.provenance import cpu_flags, cpu_name
from skipbench.scoring.sandbox import bubblewrap

TINY = Path(__file__).resolve().parent.parent / "models" / "tiny"
EXTRAS = {
    "accelerate": "'skipbench[big]'",
    "bitsandbytes": "'skipbench[quant]'",
    "starlette": "'skipbench[serve]'",
}
INSTRUCTIONS = ("amx_bf16", "avx2", "avx512_bf16", "avx512f")


def findings(results: Path) -> list[str]:
    """Lines that begin with `ok`, `note` or `missing`."""
    total, flags = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), cpu_flags()
    memory = min([total, *(limit for limit, _ in group_bytes())])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    has = ", ".join(i for i in INSTRUCTIONS if i in flags) or f"none of {', '.join(INSTRUCTIONS)}"
    cache, offline = Path(constants.HF_HUB_CACHE), "off; whether the hub answers was not tried"
    if constants.HF_HUB_OFFLINE:
        offline = "on: only what is in the cache can be loaded"
    batch = "sbatch found" if shutil.which("sbatch") else "no sbatch on this machine"
    there = "there" if cache.is_dir() else "not there"
    folder = next(p for p in (results.absolute(), *results.absolute().parents) if p.exists())
    return [
        f"ok       Python {platform.python_version()}, torch {torch.__version__}",
        f"ok       CPU {cpu_name()}: cores: {cores}, {memory / GIB:.0f} GiB of memory; {has}",
        *_devices(),
        *_embedded(),
        f"ok       results={results} is writable"
        if folder.is_dir() and os.access(folder, os.W_OK)
        else f"missing  results={results} is not writable; choose another",
        *(
            f"ok       {module}" if find_spec(module) else f"missing  {module}: pip install {extra}"
            for module, extra in EXTRAS.items()
        ),
        f"note     hub cache {cache}: {there}; HF_HUB_OFFLINE is {offline}",
        _sandbox(),
        f"note     Slurm: {batch}",
    ]


def _devices() -> list[str]:
    if not torch.cuda.is_available():
        return ["missing  no CUDA device: runs are on the CPU"]
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"ok       CUDA device {g.name}: {g.total_memory / GIB:.0f} GiB" for g in gpus]


def _embedded() -> list[str]:
    """The embedded model, and what its engine notes in both precisions, which no start prints."""
    try:
        lms = [load(str(TINY))[0], load(str(TINY), strict=None, dtype="bfloat16")[0]]
    except Exception as error:  # whatever is wrong with the files is the finding
        return [f"missing  embedded model: {error}"]
    return [
        f"ok       embedded model: {lms[0].layers} layers",
        *(f"note     on it in {str(lm.dtype)[6:]}: {text}" for lm in lms for text in lm.notes()),
    ]


def _sandbox() -> str:
    try:
        return f"ok       generated code is isolated by {bubblewrap()[0]}"
    except SkipbenchError as error:
        return f"missing  {error}"
