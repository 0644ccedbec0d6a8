"""An experiment's cells with their configurations, at the scale and for the models that were asked
for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from skipbench.config.catalog import choices, places
from skipbench.config.compose import compose, compose_cells
from skipbench.config.hardware import Local, Slurm
from skipbench.config.run_config import RunConfig
from skipbench.console import say
from skipbench.errors import SkipbenchError
from skipbench.experiments.grid import PlannedCell, noise_cells, plan, without_repeats
from skipbench.report.published import paper_of


@dataclass(frozen=True)
class Request:
    """Cells of experiments that a command line asks for.

    Attributes:
        names: the experiments.
        overrides: for their cells.
        scale: `paper`, `embedded` or `laptop`; not given, a cluster decides: `paper`, `embedded`
            where its nodes have no GPU; `None`: by the device.
        models: only these of the paper's models; all where empty.
        budget: GPU-hours for all cells of an experiment together, as given; `None` for no limit.
        columns: more of them for a table of runs, by key.
        hardware: of `hardware=`.
    """

    names: Sequence[str]
    overrides: Sequence[str]
    scale: str | None = None
    models: Sequence[str] = ()
    budget: str | None = None
    columns: Sequence[str] = ()
    hardware: Slurm | Local | None = None


def hardware_of(words: Sequence[str]) -> Slurm | Local | None:
    """The settings of `hardware=`, `None` where it is not among the words.

    Raises:
        SkipbenchError: no such choice or key, or a device.
    """
    own = [w for w in words if w.partition("=")[0].partition(".")[0] == "hardware"]
    chosen = [w.partition("=")[2] for w in own if w.startswith("hardware=")]
    if not chosen:
        return None
    hardware = compose(own).hardware if chosen[-1] in places() else None
    if hardware is None:
        raise SkipbenchError(
            f"hardware={chosen[-1]} is no place where cells run; wanted one of: "
            f"{', '.join(places())}, or a file of your own in conf/hardware with _slurm among its "
            "defaults, as in slurm-a100.yaml"
        )
    return hardware


def scale_of(experiment: str, given: str | None, without_torch: bool = False) -> str:
    """The scale that was asked for; else `paper` where there is a GPU, `embedded` elsewhere.

    Args:
        without_torch: looks for the driver instead of importing torch.
    """
    if given is not None or paper_of(experiment) is None:
        return given or "paper"
    if without_torch:
        gpu = Path("/proc/driver/nvidia/version").exists()
    else:
        import torch

        gpu = torch.cuda.is_available()
    scale, why = (
        ("paper", "a CUDA device is here") if gpu else ("embedded", "no CUDA device is here")
    )
    say(f"scale={scale}, since {why}")
    return scale


def file_name(experiment: str, scale: str) -> str:
    """Of its table or figure: a paper's has the scale in it, others have one scale."""
    return experiment if paper_of(experiment) is None else f"{experiment}.{scale}"


def composed(
    experiment: str, planned: Sequence[PlannedCell]
) -> list[tuple[PlannedCell, RunConfig]]:
    """The cells that can be run, each once, with their configurations."""
    unique: dict[tuple[str, ...], PlannedCell] = {}
    for cell in planned:
        if cell.run:
            unique.setdefault(tuple(cell.words(experiment)), cell)
    return list(zip(unique.values(), compose_cells([list(words) for words in unique]), strict=True))


def cells_of(experiment: str, request: Request, scale: str) -> list[tuple[PlannedCell, RunConfig]]:
    """Every cell of an experiment that can be run, those that are the same once; of a table with
    its noise floor.
    """
    planned = plan(experiment, request.overrides, scale, request.models)
    planned = without_repeats(experiment, planned, scale)
    planned += noise_cells(experiment, planned, request.overrides)
    return budgeted(composed(experiment, planned), request.budget)


def budgeted(
    cells: Sequence[tuple[PlannedCell, RunConfig]], budget: str | None
) -> list[tuple[PlannedCell, RunConfig]]:
    """The cells with as many prompts as a budget leaves; all prompts without one."""
    if budget is None:
        return list(cells)
    from skipbench.experiments.costs import budget_hours, gpu_of, limited

    hardware = next((config.hardware for _, config in cells), None)
    configs = limited([config for _, config in cells], budget_hours(budget), gpu_of(hardware))
    return [(cell, config) for (cell, _), config in zip(cells, configs, strict=True)]


def experiment_names() -> list[str]:
    return choices("experiment")
