"""What a GPU is, and the rates of its memory, before any engine is timed: a line of JSON each.

python scripts/gpu_probe.py [--small]       small: on the CPU, to show that it runs
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import Any

import msgspec
import torch

from skipbench.config.catalog import known_hardware
from skipbench.profile.roofline import device_name, match, memory_rates, read_bandwidth
from skipbench.runs.gpu import gpu

Figures = Iterator[dict[str, Any]]


def environment(small: bool) -> Figures:
    facts: dict[str, Any] = {
        "python": sys.version.split()[0], "torch": torch.__version__,
        "transformers": metadata.version("transformers"), "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(), "cores": os.cpu_count(),
    }  # fmt: skip
    if not small:
        about = torch.cuda.get_device_properties(0)
        facts |= {"gpu": about.name, "multiprocessors": about.multi_processor_count}
        facts |= {"capability": f"{about.major}.{about.minor}", "bytes": about.total_memory}
        facts |= msgspec.to_builtins(gpu(f"GPU-{about.uuid}"))
    yield facts


def ceilings(small: bool) -> Figures:
    """Rates of the memory over several GiB, and the datasheet's."""
    device = torch.device("cpu" if small else "cuda")
    name = match(device_name(device), known_hardware())
    sheet = known_hardware()[name].bandwidth if name else None
    line = {"datasheet GB/s": sheet / 1e9 if sheet else None}
    if small:
        yield line | {"read GB/s": read_bandwidth(device, 1 << 22) / 1e9}
    else:
        rates = memory_rates(device)
        yield line | {"read GB/s": rates.read / 1e9, "copy GB/s": rates.copy / 1e9}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", action="store_true")
    small = parser.parse_args().small
    for figures in (environment, ceilings):
        try:
            for line in figures(small):
                print(json.dumps({"table": figures.__name__} | line), flush=True)
        except Exception as error:  # the next is made
            text = f"{type(error).__name__}: {str(error).partition(chr(10))[0][:300]}"
            print(json.dumps({"table": figures.__name__, "error": text}), flush=True)


if __name__ == "__main__":
    main()
