"""The records behind a figure as one file, kept beside it: from that file alone the figure is drawn
again.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.runs.measures import Metrics
from skipbench.runs.provenance import Provenance
from skipbench.runs.reading import MOST_SAMPLES, printable, read_bytes, strict_json
from skipbench.runs.record import Sample, dump
from skipbench.runs.run import Origin, Run, Search

_SHARED = ("model", "method", "dataset", "settings", "metrics", "axes", "keys", "search")
"""Fields that a run has by the same name."""


class _Kept(msgspec.Struct, kw_only=True):
    """A run in the file; no folder's path."""

    folder: str
    model: str
    method: str
    dataset: str
    engine: str | None
    device: str | None
    layers: int | None
    settings: dict[str, Any]
    metrics: Metrics
    samples: list[Sample]
    axes: dict[str, str]
    keys: dict[str, Any]
    search: Search | None


class _File(msgspec.Struct):
    figure: str
    runs: list[_Kept]


def dump_runs(name: str, runs: list[Run]) -> str:
    """JSON of the finished runs of a figure, a run per line, with their sound samples."""
    lines = []
    for run in runs:
        kept = _Kept(
            folder=str(run.id),
            engine=run.origin.engine,
            device=run.origin.device,
            layers=run.provenance.layers,
            samples=[],
            **{name: getattr(run, name) for name in _SHARED},
        )
        samples = [json.loads(dump(sample)) for sample in run.sound]
        lines.append(json.dumps(msgspec.to_builtins(kept) | {"samples": samples}, allow_nan=False))
    text = ",\n".join(lines)
    return f'{{"figure": {json.dumps(name)}, "runs": [\n{text}\n]}}\n'


def read_runs(path: Path) -> tuple[str, list[Run]]:
    """Name and runs of a file that `dump_runs` made.

    Raises:
        SkipbenchError: it cannot be read, or holds something else.
    """
    try:
        file = msgspec.convert(strict_json(read_bytes(path, MOST_SAMPLES) or b""), _File)
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"{path} holds no records of a figure ({printable(str(error))}); write it with "
            "python -m skipbench figure NAME"
        ) from error
    return file.figure, [
        Run(
            id=kept.folder,
            origin=Origin(engine=kept.engine, device=kept.device),
            provenance=Provenance(layers=kept.layers),
            kept_samples=kept.samples,
            **{name: getattr(kept, name) for name in _SHARED},
        )
        for kept in file.runs
    ]
