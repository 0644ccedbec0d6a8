"""`-m hydra/launcher=slurm`: the cells of a sweep as jobs of `submit`; the shell waits for them."""

from collections.abc import Sequence

from hydra._internal.core_plugins.basic_launcher import BasicLauncher
from hydra.core.utils import JobReturn, JobStatus
from omegaconf import DictConfig, open_dict, read_write

from skipbench.config.compose import to_run_config
from skipbench.config.hardware import Slurm
from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.experiments.cell import resolve_cell
from skipbench.experiments.table_runs import run_entry
from skipbench.launch import slurm
from skipbench.launch.status import cell_statuses
from skipbench.launch.submit import UNASKED_H, submit, turn
from skipbench.runs.state import run_state

NAME = "sweep"
"""Submissions of sweeps are RESULTS/submit/sweep-N."""
POLL_S = 10.0
"""Seconds between two questions to squeue."""


class SlurmLauncher(BasicLauncher):
    """Submits the cells that are not done, checked as by `submit`, and waits for their jobs."""

    __module__ = "hydra_plugins.skipbench_sweeper"

    def __init__(self, confirmed: bool = False) -> None:
        """
        Args:
            confirmed: submits any number of GPU-hours, as `--yes`.
        """
        super().__init__()
        self.allowed_h = None if confirmed else UNASKED_H

    def launch(
        self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int
    ) -> Sequence[JobReturn]:
        assert self.hydra_context is not None and self.config is not None
        load = self.hydra_context.config_loader.load_sweep_config
        nodes = [load(self.config, list(words)) for words in job_overrides]
        for node in nodes:
            with read_write(node), open_dict(node):
                del node["hydra"]
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
        with turn(configs[0].results):
            cells = [(NAME, cell_statuses(configs))]
            jobs, _ = submit(cells, hardware, self.allowed_h, "hydra.launcher.confirmed=true")
        slurm.wait(jobs, POLL_S)
        return [_returned(node, config) for node, config in zip(nodes, configs, strict=True)]


def _returned(node: DictConfig, config: RunConfig) -> JobReturn:
    """Result of a cell by its records: its speedup, or the reason why it has none."""
    try:
        cell = resolve_cell(config)
        run = run_entry(cell)
        if run.metrics is None:
            raise SkipbenchError(run_state(cell.folder, None).reason or str(run.reason))
    except SkipbenchError as error:
        return JobReturn(cfg=node, status=JobStatus.FAILED, _return_value=error)
    speedup = run.metrics.speedup.paired
    return JobReturn(cfg=node, status=JobStatus.COMPLETED, _return_value=speedup)
