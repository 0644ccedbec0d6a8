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


class _Kept(msgspec.Struct, kw_only=True):
    """A run in the file: its settings, metrics and sound samples, and what the experiment knows of
    it; no folder's path.
    """

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
    """JSON, a run per line, of the figure `name`."""
    lines = []
    for run in runs:
        kept = _Kept(
            folder=str(run.id),
            model=str(run.model),
            method=str(run.method),
            dataset=str(run.dataset),
            engine=run.origin.engine,
            device=run.origin.device,
            layers=run.provenance.layers,
            settings=run.settings,
            metrics=run.measured,
            samples=[],
            axes=run.axes,
            keys=run.keys,
            search=run.search,
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
            model=kept.model,
            method=kept.method,
            dataset=kept.dataset,
            keys=kept.keys,
            metrics=kept.metrics,
            origin=Origin(engine=kept.engine, device=kept.device),
            axes=kept.axes,
            search=kept.search,
            settings=kept.settings,
            provenance=Provenance(layers=kept.layers),
            kept_samples=kept.samples,
        )
        for kept in file.runs
    ]
