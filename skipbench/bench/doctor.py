"""`doctor`: what this machine can run and what is missing, without asking the network."""

import os
import platform
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from huggingface_hub import constants

from skipbench.bench.memory import GIB, group_bytes
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import cpu_flags, cpu_name
from skipbench.scoring.sandbox import bubblewrap

TINY = Path(__file__).resolve().parent.parent / "models" / "tiny"
EXTRAS = {
    "accelerate": "'skipbench[big]'",
    "bitsandbytes": "'skipbench[quant]'",
    "starlette": "'skipbench[serve]'",
}
INSTRUCTIONS = ("amx_bf16", "avx2", "avx512_bf16", "avx512f")


def findings(results: Path) -> Iterator[str]:
    """Lines that begin with `ok`, `note` or `missing`, each as soon as it is known."""
    total, flags = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), cpu_flags()
    memory = min([total, *(limit for limit, _ in group_bytes())])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    has = ", ".join(i for i in INSTRUCTIONS if i in flags) or f"none of {', '.join(INSTRUCTIONS)}"
    yield f"ok       Python {platform.python_version()}, torch {version('torch')}"
    yield f"ok       CPU {cpu_name()}: cores: {cores}, {memory / GIB:.0f} GiB of memory; {has}"
    folder = next(p for p in (results.absolute(), *results.absolute().parents) if p.exists())
    if folder.is_dir() and os.access(folder, os.W_OK):
        yield f"ok       results={results} is writable"
    else:
        yield f"missing  results={results} is not writable; choose another"
    for module, extra in EXTRAS.items():
        there = find_spec(module) is not None
        yield f"ok       {module}" if there else f"missing  {module}: pip install {extra}"
    cache, offline = Path(constants.HF_HUB_CACHE), "off; whether the hub answers was not tried"
    if constants.HF_HUB_OFFLINE:
        offline = "on: only what is in the cache can be loaded"
    held = "there" if cache.is_dir() else "not there"
    yield f"note     hub cache {cache}: {held}; HF_HUB_OFFLINE is {offline}"
    yield _sandbox()
    yield f"note     Slurm: {'' if shutil.which('sbatch') else 'no '}sbatch on this machine"
    yield from _devices()  # takes seconds, as does the last one
    yield from _embedded()


def _devices() -> list[str]:
    import torch

    if not torch.cuda.is_available():
        return ["missing  no CUDA device: runs are on the CPU"]
    gpus = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
    return [f"ok       CUDA device {g.name}: {g.total_memory / GIB:.0f} GiB" for g in gpus]


def _embedded() -> list[str]:
    """The embedded model, and what its engine notes in both precisions, which no start prints."""
    from skipbench.models.load import load

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
