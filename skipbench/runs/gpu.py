"""Answers of other programs; driver, clocks and power limit of a GPU, as `nvidia-smi` says."""

import contextlib
import subprocess

import msgspec

QUERY = ("driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.limit")


def ask(*words: str, timeout_s: float = 60) -> str | None:
    """Output of a command; `None` if it is missing, fails, or does not answer."""
    with contextlib.suppress(OSError, subprocess.SubprocessError, UnicodeDecodeError):
        done = subprocess.run(words, capture_output=True, text=True, timeout=timeout_s, check=True)
        return done.stdout
    return None


class Gpu(msgspec.Struct, frozen=True):
    """A GPU when a run began; None: not to be had."""

    driver: str | None = None
    sm_mhz: float | None = None
    max_sm_mhz: float | None = None
    memory_mhz: float | None = None
    power_limit_w: float | None = None


def gpu(uuid: str) -> Gpu:
    """The GPU of this UUID (`GPU-...`); without `nvidia-smi`, or for a part of a GPU, all None."""
    query = f"--id={uuid}", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader,nounits"
    answer = ask("nvidia-smi", *query, timeout_s=10) or ""
    driver, *numbers = (part.strip() for part in answer.split(","))
    return Gpu(driver, *map(_number, numbers)) if len(numbers) == len(QUERY) - 1 else Gpu()


def _number(text: str) -> float | None:
    """`[N/A]` and the like are None."""
    with contextlib.suppress(ValueError):
        return float(text)
    return None
