"""Hydra's side of a sweep: grids over overrides, and the cells of experiments, in one sweeper.

`-m method=a,b` and `-m experiment=swift-table8` go through it. A cell returns its speedup, so that
search sweepers such as Optuna's can take its place: `hydra/sweeper=optuna
hydra.sweeper.direction=maximize`.
"""

import itertools
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn, JobStatus
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, open_dict, read_write

from skipbench.config.compose import explained, to_run_config, use_config_dir
from skipbench.config.explain import unreadable
from skipbench.console import complain, is_json, out, show
from skipbench.errors import SkipbenchError
from skipbench.experiments.cell import resolve_cell, run_cell
from skipbench.experiments.grid import plan
from skipbench.experiments.plan import scale_of
from skipbench.experiments.table_runs import run_entry
from skipbench.launch.launcher import SlurmLauncher
from skipbench.report.tables.markdown import for_terminal
from skipbench.report.tables.runs import run_table

PLUGIN = str(Path(__file__).parent / "plugin")
"""Holds a namespace package `hydra_plugins`, the only one whose classes Hydra takes as plugins."""


def job(config: DictConfig) -> float | None:
    """Runs one cell; returns its speedup."""
    # a launcher's process has seen no --config-dir
    for place in HydraConfig.get().searchpath if HydraConfig.initialized() else ():
        use_config_dir(Path(place.removeprefix("file://")))
    with explained([]):
        run = to_run_config(config)
    if run.label and not is_json():
        out.rule(run.label)
    metrics = run_cell(run)
    return None if metrics is None else metrics.speedup.paired


class ExperimentSweeper(Sweeper):
    """Runs every point of a grid, or every cell of experiments, and prints one table that compares
    them.
    """

    __module__ = "hydra_plugins.skipbench_sweeper"

    def __init__(self, params: dict[str, Any] | None = None) -> None:
        """
        Args:
            params: axes of the grid: key to values separated by commas; those of the command line
                go before.
        """
        self.params = dict(params or {})

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.config, self.config_loader = config, hydra_context.config_loader
        self.hydra_context = hydra_context  # `validate_batch_is_legal` reads it
        self.launcher: Launcher = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        chosen = [a.partition("=")[2] for a in arguments if a.startswith("experiment=")]
        names = [name for value in chosen for name in value.split(",")]
        others = [a for a in arguments if not a.startswith("experiment=")]
        points = self._grid(others) if not names else []
        for name in names:
            points += self._cells(name, others)
        if not points:
            raise SkipbenchError(
                f"experiment={','.join(names)} has no cell with {' '.join(others)}"
            )
        found = labels(points)
        batch = [[*point, f"label='{label}'"] for point, label in zip(points, found, strict=True)]
        for words in batch:
            self._check(words)
        returns = self.launcher.launch(batch, initial_job_idx=0)
        _compare(returns, found)
        return returns

    def _check(self, words: list[str]) -> None:
        """Composes a cell, before the first one runs."""
        assert self.config is not None
        with explained(words):
            config = self.config_loader.load_sweep_config(self.config, words)
            with read_write(config), open_dict(config):
                del config["hydra"]
            to_run_config(config)

    def _grid(self, arguments: Sequence[str]) -> list[list[str]]:
        words = [*(f"{key}={value}" for key, value in self.params.items()), *arguments]
        parser = OverridesParser.create(config_loader=self.config_loader)
        axes: dict[str, list[str]] = {}
        for override in parser.parse_overrides(words):
            key = override.get_key_element()
            if not override.is_sweep_override():
                axes[key] = [f"{key}={override.get_value_element_as_str()}"]
                continue
            values = (
                [*map(str, override.sweep_string_iterator())]
                if override.is_discrete_sweep()
                else []
            )
            if key == "method.skip" and not all(map(_is_set, values)):
                raise SkipbenchError(unreadable(str(override.input_line)))
            if not values:
                raise SkipbenchError(
                    f"{key}: a range without steps needs a sweeper that searches, "
                    "hydra/sweeper=optuna"
                )
            axes[key] = [f"{key}={value}" for value in values]
        return [list(point) for point in itertools.product(*axes.values())]

    def _cells(self, name: str, arguments: Sequence[str]) -> list[list[str]]:
        """The cells of an experiment that can be run, as overrides."""
        pairs = [a.partition("=") for a in arguments]
        own = {key: value for key, _, value in pairs if key in ("scale", "models")}
        overrides = [a for a in arguments if a.partition("=")[0] not in own]
        models = [m for m in own.get("models", "").strip("[]").split(",") if m]
        cells = plan(name, overrides, scale_of(name, own.get("scale")), models)
        unique = dict.fromkeys(tuple(cell.words(name)) for cell in cells if cell.run)
        return [list(words) for words in unique]


def _compare(returns: Sequence[JobReturn], names: Sequence[str]) -> None:
    """Prints a table of all cells that are done, then which failed; a reason that all have in
    common is raised.
    """
    runs, failed = [], {}
    for name, done in zip(names, returns, strict=True):
        if done.status != JobStatus.COMPLETED:
            failed[name] = done._return_value
        elif done.cfg is not None and not (config := to_run_config(done.cfg)).dry_run:
            runs.append(run_entry(resolve_cell(config)))
    if len(runs) > 1 and not is_json():  # each cell has printed its record
        show(for_terminal(run_table("Sweep", runs)))
    errors = [*failed.values()]
    reasons = [
        f"{'' if isinstance(e, SkipbenchError) else f'{type(e).__name__}: '}{e}" for e in errors
    ]
    first = errors[0] if errors else None
    if len(failed) == len(returns) and len(set(reasons)) == 1 and isinstance(first, SkipbenchError):
        raise first
    for name, reason in zip(failed, reasons, strict=True):
        complain(f"failed: {name}: {reason}")
    if failed:
        sys.exit(2 if len(failed) == len(returns) else 1)


def _is_set(value: str) -> bool:
    """True for a skip set, False for a part of one that was split at its commas."""
    return value.strip("'\"").startswith(("attn", "mlp", "stored")) or value in ("''", '""')


def labels(points: Sequence[Sequence[str]]) -> list[str]:
    """The overrides of each point in which it differs from the others, without quotes."""
    common = set(points[0]).intersection(*points[1:]) if len(points) > 1 else set()
    own = (" ".join(word for word in point if word not in common) for point in points)
    return [re.sub(r"[\"'\\\\]", "", words) for words in own]


def register() -> None:
    """Makes the sweeper and the launcher known to Hydra.

    Its folder is on the path, too: a launcher's jobs import the sweeper by the name that Hydra
    wants.
    """
    if PLUGIN not in sys.path:
        sys.path.append(PLUGIN)
    # a process that has composed before does not look again
    for plugin in (ExperimentSweeper, SlurmLauncher):
        Plugins.instance().register(plugin)
