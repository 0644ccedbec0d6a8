"""A cell that is decoded by several processes, each with other seeds: `repeats=R`."""

import contextlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from skipbench.config.run_config import RunConfig
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import Cell, checked_run, named_cell, resolve_cell
from skipbench.metrics.repeats import summarise_repeats
from skipbench.report.console import say
from skipbench.report.origins import origin_of
from skipbench.runs.record import Sample
from skipbench.runs.store import read_samples


def repetitions(cell: Cell) -> list[Cell]:
    """The runs of a cell, one per process."""
    return [named_cell(config) for config in cell.config.repetitions()]


def all_done(config: RunConfig) -> bool:
    """Whether every process of the cell has finished; needs neither torch nor the dataset.

    Raises:
        SkipbenchError: as `checked_run`.
    """
    with contextlib.suppress(NotHereError):
        return all(_done(resolve_cell(one)) for one in config.repetitions())
    return False


def _done(cell: Cell) -> bool:
    return (checked_run(cell)["status"] or {}).get("state") == "done"


def run_repeats(config: RunConfig) -> None:
    """Runs what is missing of a cell, each repetition in a process of its own, one after another.

    Raises:
        SkipbenchError: one of them failed; the others are kept.
    """
    ones = config.repetitions()
    with tempfile.TemporaryDirectory() as place:
        manifest = Path(place) / "cells.jsonl"
        manifest.write_text("".join(json.dumps({"config": one.to_dict()}) + "\n" for one in ones))
        for number, one in enumerate(ones):
            if not config.fresh and all_done(one):
                continue
            say(f"process {number + 1} of {len(ones)}", "dim")
            command = [sys.executable, "-m", "skipbench", "cell", str(manifest), str(number)]
            if code := subprocess.run(command, check=False).returncode:
                raise SkipbenchError(
                    f"process {number + 1} of {len(ones)} ended with exit status {code}; its "
                    "reason stands above; the same command goes on"
                )


def joined_record(cell: Cell) -> dict[str, Any]:
    """The record of a cell as `checked_run` gives it; of several processes, the first one's, with
    the metrics of those that are done.

    `samples` holds the samples behind the metrics, and `reason` why some are missing.

    Raises:
        SkipbenchError: as `checked_run`.
    """
    cells = repetitions(cell)
    states = [checked_run(one) for one in cells]
    done = [
        (state, read_samples(one.folder / "samples.jsonl"))
        for state, one in zip(states, cells, strict=True)
        if state["metrics"] is not None
    ]
    samples: list[Sample] = [s for _, own in done for s in own]
    if len(cells) == 1 or not done:
        return {**states[0], "samples": samples, "reason": None}
    record, reasons = dict(done[0][0]), list[str]()
    if len(done) < len(cells):
        reasons.append(f"{len(done)} of {len(cells)} repeats are done")
    if len({origin_of(state) for state, _ in done}) > 1:
        reasons.append("its repeats are of several commits, devices or versions")
    layers = record["provenance"]["layers"]
    if mixed := [text for s, _ in done if (text := s["provenance"].get("mixed"))]:
        record["provenance"] |= {"mixed": "; ".join(mixed)}
    record["metrics"] = summarise_repeats([(own, s["metrics"]) for s, own in done], layers)
    return {**record, "samples": samples, "reason": "; ".join(reasons) or None}
