"""Joules by the counters of a machine, RAPL for a processor, NVML for GPUs: of a whole package or
GPU, other programs and idling included, read outside of what is timed.
"""

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
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
    range_uj: int | None = None

    def joules(self, before_uj: int, after_uj: int) -> float:
        """Energy between two readings."""
        used = after_uj - before_uj
        return (used + (self.range_uj or 0) if used < 0 else used) / 1e6


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


def _rapl(powercap: Path) -> EnergyMeter:
    """Packages and their memory, of Intel and AMD alike; most kernels let only root read them."""
    found: list[Counter] = []
    for folder in sorted(powercap.glob("intel-rapl:*")):
        try:
            counter = _rapl_counter(folder)
            if counter.name.startswith(COUNTED):
                counter.read_uj()
                found.append(counter)
        except PermissionError:
            return EnergyMeter((), f"unknown: {folder}/energy_uj may not be read")
        except (OSError, ValueError):
            continue
    if not found:
        return EnergyMeter((), f"unknown: no RAPL counter in {powercap}")
    return EnergyMeter(found, f"RAPL: {', '.join(counter.name for counter in found)}")


def _rapl_counter(folder: Path) -> Counter:
    limit = int((folder / "max_energy_range_uj").read_text())
    read = (folder / "energy_uj").read_text
    return Counter((folder / "name").read_text().strip(), lambda: int(read()), limit)


def _nvml(gpus: Sequence[int]) -> EnergyMeter:
    """GPUs through NVML (package `nvidia-ml-py`); Volta and later count energy."""
    try:
        nvml = importlib.import_module("pynvml")
        nvml.nvmlInit()
        counters = [_gpu_counter(nvml, index) for index in gpus]
        for counter in counters:
            counter.read_uj()
    except ImportError:
        return EnergyMeter((), "unknown: pynvml is not installed (pip install nvidia-ml-py)")
    except Exception as error:  # pynvml's classes cannot be named without it; energy is optional
        return EnergyMeter((), f"unknown: NVML: {type(error).__name__}: {error}")
    return EnergyMeter(counters, f"NVML: {len(counters)} GPU{'s' if len(counters) > 1 else ''}")


def _gpu_counter(nvml: Any, index: int) -> Counter:
    """The counter of a GPU by its UUID: NVML ignores CUDA_VISIBLE_DEVICES."""
    uuid = str(torch.cuda.get_device_properties(index).uuid)
    called = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
    handle = nvml.nvmlDeviceGetHandleByUUID(called)
    read = nvml.nvmlDeviceGetTotalEnergyConsumption
    return Counter(f"cuda:{index}", lambda: int(read(handle)) * 1000)
