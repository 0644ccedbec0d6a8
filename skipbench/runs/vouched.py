"""Figures of `metrics.json` that its samples vouch for, where no seal does."""

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, geometric_mean

from skipbench.errors import SkipbenchError
from skipbench.runs.reading import read_json, value_at
from skipbench.runs.record import Arm, Sample
from skipbench.runs.shapes import Metrics


def check_figures(path: Path, samples: Sequence[Sample]) -> None:
    """Compares M, alpha, tokens per second and the speedup in `path` with those of `samples`.

    Raises:
        SkipbenchError: one is another.
    """
    metrics = read_json(path, Metrics) or {}
    for name, value in _figures([s for s in samples if s.lossless != "failed"]).items():
        said = value_at(metrics, *name.split("."))
        if said is not None and (value is None or not math.isclose(said, value, rel_tol=1e-6)):
            raise SkipbenchError(
                f"{path} says {name} = {said:g}, but the samples beside it give {value}; put the "
                "file back from a copy, or move the folder away and run its command again"
            )


def _figures(sound: Sequence[Sample]) -> dict[str, float | None]:
    """By the names of `metrics.summary`, which says what they mean."""
    rounds = [r for s in sound for r in s.method.rounds]
    steps = sum(r.steps for r in rounds)
    pairs = [(_rate([s.method]), _rate([s.vanilla])) for s in sound]
    ratios = [method / vanilla for method, vanilla in pairs if method and vanilla]
    return {
        "M": fmean(r.emitted for r in rounds) if rounds else None,
        "alpha": sum(r.accepted for r in rounds if r.steps) / steps if steps else None,
        "tokens_per_s": _rate([s.method for s in sound]),
        "tokens_per_s_vanilla": _rate([s.vanilla for s in sound]),
        "speedup.paired": geometric_mean(ratios) if ratios else None,
    }


def _rate(arms: Sequence[Arm]) -> float | None:
    """Tokens per second of decoding; the token that prefill emits is not among them."""
    decode_s = math.fsum(arm.seconds.decode for arm in arms)
    return sum(r.emitted for arm in arms for r in arm.rounds) / decode_s if decode_s else None
