"""A cell that is decoded by several processes, each with other seeds: `repeats=R`."""

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path

from msgspec.structs import replace

from skipbench.config.catalog import cell_command
from skipbench.config.run_config import RunConfig
from skipbench.console import say
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.cell import Cell, checked_run, named_cell, resolve_cell
from skipbench.metrics.drafted import drafted
from skipbench.metrics.repeats import summarise_repeats
from skipbench.report.compared import origin_of
from skipbench.runs.run import Run


def repetitions(cell: Cell) -> list[Cell]:
    """The runs of a cell, one per process."""
    return [named_cell(config) for config in cell.config.repetitions()]


def all_done(config: RunConfig) -> bool:
    """Whether every process of the cell has finished; needs neither torch nor the dataset.

    Raises:
        SkipbenchError: as `checked_run`.
    """
    with contextlib.suppress(NotHereError):
        return all(checked_run(resolve_cell(one)).done for one in config.repetitions())
    return False


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
            command = cell_command(str(manifest), str(number))
            if code := subprocess.run(command, check=False).returncode:
                raise SkipbenchError(
                    f"process {number + 1} of {len(ones)} ended with exit status {code}; its "
                    "reason stands above; the same command goes on"
                )


def joined_run(cell: Cell) -> Run:
    """The run of a cell; of several processes, the first one's, with the metrics and the drafts of
    those that are done, and the reason why some are missing.

    Raises:
        SkipbenchError: as `checked_run`.
    """
    runs = [checked_run(one) for one in repetitions(cell)]
    done = [run for run in runs if run.metrics is not None]
    if not done:
        return runs[0]
    of_all = drafted(s for run in done for s in run.samples)
    if len(runs) == 1:
        return replace(runs[0], drafted=of_all)
    reasons = []
    if len(done) < len(runs):
        reasons.append(f"{len(done)} of {len(runs)} repeats are done")
    if len({origin_of(run) for run in done}) > 1:
        reasons.append("its repeats are of several commits, devices or versions")
    mixed = "; ".join(run.origin.mixed for run in done if run.origin.mixed)
    pairs = [(run.samples, run.metrics) for run in done if run.metrics]
    return replace(
        done[0],
        metrics=summarise_repeats(pairs, done[0].provenance.layers or 0),
        drafted=of_all,
        origin=replace(done[0].origin, mixed=mixed or None),
        reason="; ".join(reasons) or None,
    )
