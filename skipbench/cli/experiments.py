"""`submit`, and for all commands on experiments their request and `--plan`."""

import contextlib
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence

from skipbench.cli.commands import Experiments, Status, Submit
from skipbench.cli.parser import results_of
from skipbench.config.catalog import choices, places
from skipbench.config.compose import compose
from skipbench.config.explain import did_you_mean
from skipbench.config.hardware import Slurm
from skipbench.config.run_config import RunConfig
from skipbench.console import show
from skipbench.errors import SkipbenchError
from skipbench.experiments.blocks import blocks_of, costs_of, unique, within
from skipbench.experiments.costs import Cost, budget_of, gpu_of, plan_lines
from skipbench.experiments.grid import PlannedCell, check_filter
from skipbench.experiments.plan import NO_BUDGET, Request, grids_of, hardware_of
from skipbench.launch import manifest
from skipbench.launch.status import cell_statuses, command_line, named_cells
from skipbench.launch.submit import UNASKED_H, bill_line, submit, turn


def request_of(asked: Experiments, known: Sequence[str]) -> Request:
    """The experiments, of those that are known, and the cells of them."""
    command = type(asked).__name__.lower()
    if not asked.words:
        raise SkipbenchError(f"{command} needs an experiment; known: {', '.join(known)}")
    if unknown := [name for name in asked.words if name not in known]:
        whole = "-".join(asked.words)
        meant = whole if whole in known else unknown[0]
        raise SkipbenchError(
            f"{command} needs an experiment, not {unknown[0]!r}.{did_you_mean(meant, [*known])} "
            "They are listed by python -m skipbench list experiments"
        )
    names = [name for name in asked.words if name in choices("experiment")]
    own = [w for w in asked.settings if w.startswith(("model=", "method="))]
    check_filter(names, "model", asked.models, own)
    check_filter(names, "method", asked.methods, own)
    hardware, scale, overrides = hardware_of(asked.settings), asked.scale, asked.settings
    if scale is None and isinstance(hardware, Slurm):  # this machine's GPUs say nothing of its own
        scale = "embedded" if hardware.gpus == 0 else "paper"
    if isinstance(asked, Status):  # the configuration of a submitted cell is without hardware
        overrides = tuple(w for w in overrides if not w.startswith("hardware"))
    submitted = {} if asked.budget else manifest.limits(results_of(asked.settings))
    return Request(
        asked.words,
        overrides,
        scale,
        asked.models,
        asked.methods,
        asked.budget,
        hardware,
        submitted,
    )


def show_plan(request: Request) -> None:
    """Prints the rows of the experiments, each cell once, with their costs, and the sums. A row of
    several experiments stands with the first one.
    """
    gpu, hardware = gpu_of(request.hardware), request.hardware
    cells: dict[str, tuple[str, PlannedCell, RunConfig]] = {}
    titles, repeated = dict[str, str](), Counter[str]()
    for grid in grids_of(request):
        name = grid.name
        titles[name] = f"{name} scale={grid.scale}"
        for cell, whole in grid.cells:
            for key, config in unique([whole]).items():
                repeated[name] += key in cells
                cells.setdefault(key, (name, cell, config))
    configs = [config for _, _, config in cells.values()]
    if hardware is None:
        blocks = blocks_of(configs, cut=False)
        costs = costs_of(configs, blocks, gpu)
    else:
        blocks, costs = within(configs, hardware, [hardware.gpus] * len(configs))
    every = [*cells.values()]
    rows = defaultdict[str, list[tuple[str, list[str], Cost | None]]](list)
    for block, cost in zip(blocks, costs, strict=True):
        row, arms = row_and_arms([every[at][1] for at in block])
        rows[every[block[0]][0]].append((row, arms, cost))
    for name, title in titles.items():
        show(title + (f": {n} cells stand above" if (n := repeated[name]) else ""))
        for line in plan_lines(rows[name], gpu):
            show(line)
    show(bill_line(costs, hardware)[0])


def row_and_arms(cells: Sequence[PlannedCell]) -> tuple[str, list[str]]:
    """The overrides that all cells of a row have, and those of each arm but its prompts."""
    shared = {k: v for k, v in cells[0].overrides.items() if k not in ("method", "hardware")}
    for cell in cells:
        shared = {k: v for k, v in shared.items() if cell.overrides.get(k) == v}
    left_out = {*shared, "hardware", "limit"}
    arms = ({k: v for k, v in c.overrides.items() if k not in left_out} for c in cells)
    row, *rest = (" ".join(f"{k}={v}" for k, v in words.items()) for words in (shared, *arms))
    return row, rest


def run_submit(asked: Submit) -> None:
    """Submits sbatch arrays, or runs rows here with `hardware=local`; exits with 1 when a cell
    failed here. More GPU-hours than `budget=`, 100 without one, take `--yes`.
    """
    request = request_of(asked, choices("experiment"))
    if asked.plan:
        show_plan(request)
        return
    if request.hardware is None:
        raise SkipbenchError(
            f"submit needs hardware=NAME, one of: {', '.join(places())}; or a file of your "
            "own in conf/hardware"
        )
    if any(w.startswith("fresh=") for w in asked.settings):
        raise SkipbenchError(
            "submit takes no fresh=: a job that is requeued would start anew each time; use "
            "results=FOLDER, or table"
        )

    def sent(name: str) -> None:
        if not asked.print:
            show(f"see: {command_line('status', [name], asked.given)}")

    with contextlib.ExitStack() as stack:
        if isinstance(request.hardware, Slurm) and not asked.print:
            folder = [w for w in asked.settings if w.startswith("results=")]
            stack.enter_context(turn(compose(folder).results))
        grids, hours = grids_of(request), float(UNASKED_H)
        cells = ((grid.name, cell_statuses(*named_cells(grid), asked.stale)) for grid in grids)
        limits = manifest.Limits(asked.budget or NO_BUDGET, {}, [*asked.words, *asked.given])
        if asked.budget is not None:
            limits.prompts = {key: n for grid in grids for key, n in grid.prompts.items()}
            if asked.budget != NO_BUDGET:
                value, is_width = budget_of(asked.budget)
                hours = hours if is_width else value
        _, failed = submit(
            cells,
            request.hardware,
            None if asked.yes else hours,
            only_print=asked.print,
            sent=sent,
            anyway=None if asked.anyway else "--anyway",
            limits=limits,
        )
    if failed:
        sys.exit(1)
