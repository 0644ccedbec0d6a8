"""Joules by the counters of a machine, RAPL for a processor, NVML for GPUs: of a whole package or
GPU, other programs and idling included, read outside of what is timed.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

POWERCAP = Path("/sys/class/powercap")
COUNTED = ("package", "dram")
"""RAPL domains that do not contain one another; `core` and `uncore` are parts of a package."""


@dataclass(frozen=True)
class Counter:
    """A counter of energy that starts again from 0 after `range_uj`."""

    name: str
    read_uj: Callable[[], int]
    range_uj: int = 0

    def joules(self, before_uj: int, after_uj: int) -> float:
        """Energy between two readings."""
        return (after_uj - before_uj + (self.range_uj if after_uj < before_uj else 0)) / 1e6


class EnergyMeter:
    """The counters of a model's devices; `source` names them, or why there is none."""

    def __init__(self, counters: Sequence[Counter] = (), source: str = "unknown") -> None:
        self.counters, self.source = tuple(counters), source
        self._before: list[int] = []

    def start(self) -> None:
        """Begins a text."""
        self._before = [counter.read_uj() for counter in self.counters]

    def stop(self) -> float | None:
        """Joules since `start`; None where nothing is counted."""
        if not self.counters:
            return None
        pairs = zip(self.counters, self._before, strict=True)
        return sum(counter.joules(before, counter.read_uj()) for counter, before in pairs)


def energy_meter(devices: Iterable[torch.device], powercap: Path = POWERCAP) -> EnergyMeter:
    """A meter of these devices: the processor's packages, or the GPUs."""
    gpus = sorted({d.index or 0 for d in devices if d.type == "cuda"})
    return _nvml(gpus) if gpus else _rapl(powercap)


def _number(path: Path) -> int:
    return int(path.read_text())


def _rapl(powercap: Path) -> EnergyMeter:
    """Packages and their memory, of Intel and AMD alike; most kernels let only root read them."""
    found: list[Counter] = []
    for folder in sorted(powercap.glob("intel-rapl:*")):
        try:
            limit, name = _number(folder / "max_energy_range_uj"), (folder / "name").read_text()
            counter = Counter(name.strip(), partial(_number, folder / "energy_uj"), limit)
            if name.startswith(COUNTED):
                counter.read_uj()
                found.append(counter)
        except PermissionError:
            return EnergyMeter((), f"unknown: {folder}/energy_uj may not be read")
        except (OSError, ValueError):
            continue
    names = ", ".join(counter.name for counter in found)
    source = f"RAPL: {names}" if names else f"unknown: no RAPL counter in {powercap}"
    return EnergyMeter(found, source)


def _nvml(gpus: Sequence[int]) -> EnergyMeter:
    """GPUs through NVML (package `nvidia-ml-py`); Volta and later count energy."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        meter = EnergyMeter([_gpu_counter(nvml, index) for index in gpus])
        meter.start()
    except ImportError:
        return EnergyMeter((), "unknown: pynvml is not installed (pip install nvidia-ml-py)")
    except Exception as error:  # pynvml's classes cannot be named without it; energy is optional
        return EnergyMeter((), f"unknown: NVML: {type(error).__name__}: {error}")
    meter.source = f"NVML: {len(gpus)} GPU{'s' if len(gpus) > 1 else ''}"
    return meter


def _gpu_counter(nvml: Any, index: int) -> Counter:
    """The counter of a GPU by its UUID: NVML ignores CUDA_VISIBLE_DEVICES."""
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    called = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    handle = nvml.nvmlDeviceGetHandleByUUID(called)
    read = nvml.nvmlDeviceGetTotalEnergyConsumption
    return Counter(f"cuda:{index}", lambda: int(read(handle)) * 1000)
