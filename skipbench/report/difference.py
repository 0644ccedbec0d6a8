"""Two folders of results against each other: cells of the same settings, paired by prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipbench.metrics.interval import paired_ratio_interval
from skipbench.runs.record import Arm, Sample
from skipbench.runs.store import load_run, read_samples


@dataclass(frozen=True)
class CellDifference:
    """One cell of both folders.

    Attributes:
        samples: prompts that both decoded.
        speedups: mean of vanilla's over the method's seconds per token, of A and of B.
        ratio: geometric middle of B's speedup over A's, per prompt, with its interval.
        same_tokens: whether every such prompt has the same output in both.
        origins: what differs in where the two come from.
    """

    name: str
    samples: int
    speedups: tuple[float | None, float | None]
    ratio: float | None
    interval: tuple[float, float] | None
    same_tokens: bool
    origins: tuple[str, ...]

    @property
    def apart(self) -> bool:
        """Whether the interval leaves out 1."""
        return self.interval is not None and not self.interval[0] <= 1 <= self.interval[1]


def differences(
    first: Path, second: Path
) -> tuple[list[CellDifference], tuple[list[str], list[str]]]:
    """Every cell that both folders hold, and the names of those that only one holds."""
    runs = [
        {
            path.parent.name: path.parent
            for path in sorted((folder / "runs").glob("*/samples.jsonl"))
        }
        for folder in (first, second)
    ]
    both = [name for name in runs[0] if name in runs[1]]
    alone = ([n for n in runs[0] if n not in runs[1]], [n for n in runs[1] if n not in runs[0]])
    return [_difference(name, runs[0][name], runs[1][name]) for name in both], alone


def _difference(name: str, first: Path, second: Path) -> CellDifference:
    a, b = ({s.id: s for s in read_samples(f / "samples.jsonl")} for f in (first, second))
    ids = [i for i in a if i in b and "failed" not in (a[i].lossless, b[i].lossless)]
    ours = [(_speedup(a[i]), _speedup(b[i])) for i in ids]
    pairs = [(x, y) for x, y in ours if x and y]
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    if pairs:
        ratio, found = paired_ratio_interval([y / x for x, y in pairs])
        interval = None if found is None else (float(found[0]), float(found[1]))
    means = tuple(sum(pair[k] for pair in pairs) / len(pairs) if pairs else None for k in range(2))
    origins = [load_run(f)["provenance"] or {} for f in (first, second)]
    return CellDifference(
        name,
        len(ids),
        (means[0], means[1]),
        ratio,
        interval,
        all(a[i].method.tokens == b[i].method.tokens for i in ids),
        _unlike(origins[0], origins[1]),
    )


def _unlike(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[str, ...]:
    """What differs in the origins of two runs."""
    keys = (
        *("device", "engine", "threads", "layers", "mixed"),
        *("weights_sha256", "method_sha256", "commit"),
    )
    texts = [f"{k}: {a.get(k)} | {b.get(k)}" for k in keys if a.get(k) != b.get(k)]
    versions = a.get("versions") or {}, b.get("versions") or {}
    texts += [
        f"{k} {versions[0].get(k)} | {versions[1].get(k)}"
        for k in sorted({*versions[0], *versions[1]})
        if versions[0].get(k) != versions[1].get(k)
    ]
    return tuple(texts)


def _speedup(sample: Sample) -> float | None:
    vanilla, method = _s_per_token(sample.vanilla), _s_per_token(sample.method)
    return vanilla / method if vanilla and method else None


def _s_per_token(arm: Arm) -> float | None:
    tokens = sum(r.emitted for r in arm.rounds)
    return arm.seconds.decode / tokens if tokens else None
