"""Hydra's side of a sweep: a sweeper for grids over overrides and the cells of experiments, and a
launcher that runs its cells as jobs of `submit`.

A cell returns its speedup, so that search sweepers such as Optuna's can take the sweeper's place:
`hydra/sweeper=optuna hydra.sweeper.direction=maximize`.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.config_loader import ConfigLoader
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, open_dict, read_write

from skipbench.config.compose import hydra_errors, to_run_config, use_config_dir
from skipbench.config.hardware import Slurm
from skipbench.config.nodes import unreadable
from skipbench.console import complain, is_json, out, show
from skipbench.draft_plan import VARIANTS
from skipbench.errors import SkipbenchError, reason_of
from skipbench.experiments.grid import check_filter, plan
from skipbench.experiments.plan import scale_of
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.experiments.table_runs import run_entry, sweep_table
from skipbench.launch import slurm
from skipbench.launch.jobs import UNASKED_H
from skipbench.launch.status import cell_statuses
from skipbench.launch.submit import submit
from skipbench.runs.lock import held
from skipbench.runs.state import run_state

PLUGIN = str(Path(__file__).parent / "plugin")  # the namespace package of Hydra's plugins
NAME = "sweep"  # submissions of sweeps are RESULTS/submit/sweep-N
SKIP_SET = re.compile(rf"""['"]*(attn|mlp|window|head|stored|{"|".join(VARIANTS)})|''$|""$""")
POLL_S = 10.0  # seconds between two questions to squeue


def job(config: DictConfig) -> float | None:
    """Runs one cell; returns its speedup."""
    # a launcher's process has seen no --config-dir
    for place in HydraConfig.get().searchpath if HydraConfig.initialized() else ():
        use_config_dir(Path(place.removeprefix("file://")))
    with hydra_errors([]):
        run = to_run_config(config)
    if run.label and not is_json():
        out.rule(run.label)
    metrics = run_cell(run)
    return None if metrics is None else metrics.speedup.headline[0]


def _node(loader: ConfigLoader, config: DictConfig, words: Sequence[str]) -> DictConfig:
    """A composed cell of a sweep, without Hydra's settings."""
    node = loader.load_sweep_config(config, [*words])
    with read_write(node), open_dict(node):
        del node["hydra"]
    return node


class SlurmLauncher(BasicLauncher):
    """`-m hydra/launcher=slurm`: submits the cells that are not done, and waits for their jobs."""

    __module__ = "hydra_plugins.skipbench_sweeper"

    def __init__(self, confirmed: bool = False, anyway: bool = False) -> None:
        """
        Args:
            confirmed: submits any number of GPU-hours, as `--yes`.
            anyway: submits although models or datasets are not here, as `--anyway`.
        """
        super().__init__()
        self.anyway = None if anyway else "hydra.launcher.anyway=true"
        self.allowed_h = None if confirmed else UNASKED_H

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        assert self.hydra_context is not None and self.config is not None
        loader = self.hydra_context.config_loader
        nodes = [_node(loader, self.config, words) for words in job_overrides]
        configs = [to_run_config(node) for node in nodes]
        if any(config.dry_run for config in configs):
            return super().launch(job_overrides, initial_job_idx)
        hardware = configs[0].hardware
        if not isinstance(hardware, Slurm):
            raise SkipbenchError(
                "hydra/launcher=slurm needs the hardware= of a cluster, as hardware=slurm-a100"
            )
        if any(config.fresh for config in configs):
            raise SkipbenchError("hydra/launcher=slurm takes no fresh=; use results=FOLDER")
        with held(configs[0].results.resolve() / "submit", wait=True):
            cells = [(NAME, cell_statuses(configs))]
            confirm = "hydra.launcher.confirmed=true"
            jobs, _ = submit(cells, hardware, self.allowed_h, confirm, anyway=self.anyway)
        slurm.wait(jobs, POLL_S)
        returns = []
        for node, config in zip(nodes, configs, strict=True):
            done = JobReturn(cfg=node, status=JobStatus.COMPLETED)
            try:
                run = run_entry(cell := resolve_cell(config))
                if run.metrics is None:
                    raise SkipbenchError(run_state(cell.folder, None).reason or str(run.reason))
                done.return_value = run.metrics.speedup.headline[0]
            except SkipbenchError as error:
                done.status, done.return_value = JobStatus.FAILED, error
            returns.append(done)
        return returns


class ExperimentSweeper(BasicSweeper):
    """Runs every point of a grid, or cell of experiments, and prints one table of them."""

    __module__ = "hydra_plugins.skipbench_sweeper"

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        """`params`: axes of the grid: key to values separated by commas; those of the command line
        go before.
        """
        self.params = params or {}  # not by super(): Hydra loads the module of its sweeper twice

    def sweep(self, arguments: list[str]) -> Any:
        assert self.config is not None and self.launcher is not None
        assert self.hydra_context is not None
        loader = self.hydra_context.config_loader
        chosen = [a.partition("=")[2] for a in arguments if a.startswith("experiment=")]
        names = [name for value in chosen for name in value.split(",")]
        others = [a for a in arguments if not a.startswith("experiment=")]
        cells = [cell for name in names for cell in self._cells(name, others)]
        if not (points := cells if names else self._grid(loader, others)):
            text = f"experiment={','.join(names)} has no cell with {' '.join(others)}"
            raise SkipbenchError(text)
        names = labels(points)
        batch = [[*point, f"label='{label}'"] for point, label in zip(points, names, strict=True)]
        for words in batch:  # before the first one runs
            with hydra_errors(words):
                to_run_config(_node(loader, self.config, words))
        returns = self.launcher.launch(batch, initial_job_idx=0)
        _compare(returns, names)
        return returns

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

    def _cells(self, name: str, arguments: Sequence[str]) -> list[list[str]]:
        """The cells of an experiment that can be run, as overrides."""
        pairs = [a.partition("=") for a in arguments]
        own = {key: value for key, _, value in pairs if key in ("scale", "models")}
        overrides = [a for a in arguments if a.partition("=")[0] not in own]
        models = [m for m in own.get("models", "").strip("[]").split(",") if m]
        check_filter([name], "model", models, overrides)
        cells = plan(name, overrides, scale_of(name, own.get("scale")), models)
        unique = dict.fromkeys(tuple(cell.words(name)) for cell in cells if cell.run)
        return [list(words) for words in unique]


def _compare(returns: Sequence[JobReturn], names: Sequence[str]) -> None:
    """Prints a table of what is done, then what failed; a reason that all share is raised."""
    runs, failed = [], {}
    for name, done in zip(names, returns, strict=True):
        if done.status != JobStatus.COMPLETED:
            failed[name] = done._return_value
        elif done.cfg is not None and not (config := to_run_config(done.cfg)).dry_run:
            runs.append(run_entry(resolve_cell(config)))
    if len(runs) > 1 and not is_json():  # each cell has printed its record
        show(sweep_table(runs))
    reasons = {name: reason_of(error) for name, error in failed.items()}
    every, first = len(failed) == len(returns), next(iter(failed.values()), None)
    if every and len({*reasons.values()}) == 1 and isinstance(first, SkipbenchError):
        raise first
    for name, reason in reasons.items():
        complain(f"failed: {name}: {reason}")
    if failed:
        sys.exit(2 if every else 1)


def labels(points: Sequence[Sequence[str]]) -> list[str]:
    """The overrides of each point in which it differs from the others, without quotes."""
    common = set(points[0]).intersection(*points[1:]) if len(points) > 1 else set()
    own = (" ".join(word for word in point if word not in common) for point in points)
    return [re.sub(r"[\"'\\\\]", "", words) for words in own]


def register() -> None:
    """Makes the plugins known to Hydra; other launchers' jobs import them by `PLUGIN`."""
    if PLUGIN not in sys.path:
        sys.path.append(PLUGIN)
    # a process that has composed before does not look again
    for plugin in (ExperimentSweeper, SlurmLauncher):
        Plugins.instance().register(plugin)
