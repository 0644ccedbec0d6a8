"""Hydra's side of a sweep: a sweeper for grids over overrides and the cells of experiments, and a
launcher that runs its cells as jobs of `submit`.

A cell returns its speedup, so that search sweepers such as Optuna's can take the sweeper's place:
`hydra/sweeper=optuna hydra.sweeper.direction=maximize`.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig

from skipbench.config.compose import compose_cells, hydra_errors, to_run_config, use_config_dir
from skipbench.config.hardware import Slurm
from skipbench.config.nodes import unreadable
from skipbench.console import is_json, out
from skipbench.draft_plan import VARIANTS
from skipbench.errors import SkipbenchError
from skipbench.experiments.grid import check_filter, plan
from skipbench.experiments.plan import once, scale_of
from skipbench.experiments.row import run_cell, run_rows
from skipbench.experiments.table_runs import run_entry
from skipbench.launch import slurm
from skipbench.launch.jobs import UNASKED_H
from skipbench.launch.status import with_states
from skipbench.launch.submit import submit
from skipbench.runs.cell import Cell
from skipbench.runs.lock import held
from skipbench.runs.state import run_state

PLUGIN = str(Path(__file__).parent / "plugin")  # the namespace package of Hydra's plugins
NAME = "sweep"  # submissions of sweeps are RESULTS/submit/sweep-N
SKIP_SET = re.compile(rf"""['"]*(attn|mlp|window|head|stored|{"|".join(VARIANTS)})|''$|""$""")
POLL_S = 10.0  # seconds between two questions to squeue


def job(config: DictConfig) -> float | None:
    """Runs one cell, for other sweepers and launchers; returns its speedup."""
    # a launcher's process has seen no --config-dir
    for place in HydraConfig.get().searchpath if HydraConfig.initialized() else ():
        use_config_dir(Path(place.removeprefix("file://")))
    with hydra_errors([]):
        run = to_run_config(config)
    if run.label and not is_json():
        out.rule(run.label)
    metrics = run_cell(run)
    return None if metrics is None else metrics.speedup.headline[0]


class SlurmLauncher(BasicLauncher):
    """`-m hydra/launcher=slurm`: submits the cells that are not done, and waits for their jobs."""

    __module__ = "hydra_plugins.skipbench_sweeper"

    def __init__(self, confirmed: bool = False, anyway: bool = False) -> None:
        """Both as the flags of `submit`: `--yes`, `--anyway`."""
        super().__init__()
        self.anyway = None if anyway else "hydra.launcher.anyway=true"
        self.allowed_h = None if confirmed else UNASKED_H

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        cells = [Cell(config) for config in compose_cells(job_overrides)]
        if any(cell.config.dry_run for cell in cells):
            return super().launch(job_overrides, initial_job_idx)
        hardware = cells[0].config.hardware
        if not isinstance(hardware, Slurm):
            raise SkipbenchError(
                "hydra/launcher=slurm needs the hardware= of a cluster, as hardware=slurm-a100"
            )
        if any(cell.config.fresh for cell in cells):
            raise SkipbenchError("hydra/launcher=slurm takes no fresh=; use results=FOLDER")
        with held(cells[0].config.results.resolve() / "submit", wait=True):
            confirm = "hydra.launcher.confirmed=true"
            own = [(NAME, with_states(cells))]
            jobs, _ = submit(own, hardware, self.allowed_h, confirm, anyway=self.anyway)
        slurm.wait(jobs, POLL_S)
        returns = [JobReturn(status=JobStatus.COMPLETED) for _ in cells]
        run_rows(cells, only_check=True)
        for cell, done in zip(cells, returns, strict=True):
            if cell.run and cell.run.has(cell.config.limit):
                done.return_value = cell.run.speedup
            else:
                reason = run_state(cell.folder, None).reason if cell.filled else None
                error = cell.error or SkipbenchError(reason or str(run_entry(cell).reason))
                done.status, done.return_value = JobStatus.FAILED, error
        return returns


class ExperimentSweeper(BasicSweeper):
    """Makes the cells of a grid, or of experiments; a launcher other than Hydra's runs them."""

    __module__ = "hydra_plugins.skipbench_sweeper"
    made: ClassVar[list[Cell]] = []

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        """`params`: axes of the grid: key to values separated by commas; those of the command line
        go before.
        """
        self.params = params or {}  # not by super(): Hydra loads the module of its sweeper twice

    def sweep(self, arguments: list[str]) -> Any:
        """Adds the cells to `made`; those that a launcher ran and that failed have their error."""
        assert self.launcher is not None and self.hydra_context is not None
        loader = self.hydra_context.config_loader
        chosen = [a.partition("=")[2] for a in arguments if a.startswith("experiment=")]
        names = [name for value in chosen for name in value.split(",")]
        others = [a for a in arguments if not a.startswith("experiment=")]
        of_all = [point for name in names for point in self._points(name, others)]
        if not (points := of_all if names else self._grid(loader, others)):
            text = f"experiment={','.join(names)} has no cell with {' '.join(others)}"
            raise SkipbenchError(text)
        batch = [[*p, f"label='{label}'"] for p, label in zip(points, labels(points), strict=True)]
        cells = [Cell(config) for config in compose_cells(batch)]
        elsewhere = type(self.launcher).__name__ != BasicLauncher.__name__
        if elsewhere and not any(cell.config.dry_run for cell in cells):
            returns = self.launcher.launch(batch, initial_job_idx=0)
            for cell, done in zip(cells, returns, strict=True):
                if done.status != JobStatus.COMPLETED:
                    cell.error = done._return_value
        self.made.extend(cells)

    def _grid(self, loader: ConfigLoader, arguments: Sequence[str]) -> list[list[str]]:
        parser = OverridesParser.create(config_loader=loader)
        overrides = parser.parse_overrides([*self._parse_config(), *arguments])
        for axis in filter(Override.is_sweep_override, overrides):
            key, discrete = axis.get_key_element(), axis.is_discrete_sweep()
            values = [*map(str, axis.sweep_string_iterator())] if discrete else []
            # a skip set is split at its commas
            if key == "method.skip" and not all(map(SKIP_SET.match, values)):
                raise SkipbenchError(unreadable(str(axis.input_line)))
            if not values:
                needs = "needs a sweeper that searches, hydra/sweeper=optuna"
                raise SkipbenchError(f"{key}: a range without steps {needs}")
        return self.split_arguments(overrides, None)[0]

    def _points(self, name: str, arguments: Sequence[str]) -> list[list[str]]:
        """The cells of an experiment that can be run, as overrides."""
        pairs = [a.partition("=") for a in arguments]
        own = {key: value for key, _, value in pairs if key in ("scale", "models")}
        overrides = [a for a in arguments if a.partition("=")[0] not in own]
        models = [m for m in own.get("models", "").strip("[]").split(",") if m]
        check_filter([name], "model", models, overrides)
        cells = plan(name, overrides, scale_of(name, own.get("scale")), models)
        return [[*cell.words] for cell in once(cells)]


def labels(points: Sequence[Sequence[str]]) -> list[str]:
    """The overrides of each point in which it differs from the others, without quotes."""
    common = set(points[0]).intersection(*points[1:]) if len(points) > 1 else set()
    own = (" ".join(word for word in point if word not in common) for point in points)
    return [re.sub(r"[\"'\\\\]", "", words) for words in own]


def register() -> list[Cell]:
    """Makes the plugins known to Hydra; other launchers' jobs import them by `PLUGIN`. Returns the
    list that a sweep adds its cells to.
    """
    if PLUGIN not in sys.path:
        sys.path.append(PLUGIN)
    # a process that has composed before does not look again
    for plugin in (ExperimentSweeper, SlurmLauncher):
        Plugins.instance().register(plugin)
    ExperimentSweeper.made = []
    return ExperimentSweeper.made
