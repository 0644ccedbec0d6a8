"""Driver, clocks and power limit of a GPU, as `nvidia-smi` tells them."""

import contextlib
import subprocess

import msgspec

from skipbench.runs.reading import Text

QUERY = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")


class Gpu(msgspec.Struct, frozen=True):
    """A GPU when a run began; None: not to be had."""

    driver: Text | None = None
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_limit_w: float | None = None


def gpu(uuid: str) -> Gpu:
    """The GPU of this UUID (`GPU-...`); without `nvidia-smi`, or for a part of a GPU, all None."""
    command = ["nvidia-smi", f"--id={uuid}", f"--query-gpu={','.join(QUERY)}"]
    with contextlib.suppress(OSError, subprocess.SubprocessError, ValueError):
        form = "--format=csv,noheader,nounits"
        done = subprocess.run([*command, form], capture_output=True, text=True, timeout=10)
        driver, *numbers = (part.strip() for part in done.stdout.strip().split(","))
        if done.returncode == 0 and len(numbers) == len(QUERY) - 1:
            return Gpu(driver, *map(_number, numbers))
    return Gpu()


def _number(text: str) -> float | None:
    """`[N/A]` and the like are None."""
    with contextlib.suppress(ValueError):
        return float(text)
    return None
