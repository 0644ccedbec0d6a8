"""`submit`: the missing cells of experiments on a cluster, or on the GPUs of this machine."""

import contextlib
import itertools
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from skipbench.cli.plan import bill_line, show_plan
from skipbench.config.catalog import cell_command, places
from skipbench.config.compose import compose
from skipbench.config.hardware import Local, Slurm
from skipbench.console import say, show
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.costs import budget_hours, cost_of, gpu_of
from skipbench.launch import local, manifest, slurm
from skipbench.launch.script import Part, memory_for, parts, script
from skipbench.launch.status import (
    TO_RUN,
    CellStatus,
    SubmitRequest,
    cell_statuses,
    command_line,
    counts,
    parse_submit,
    record_of,
    schedule_stages,
)
from skipbench.runs.files import held, write_atomic

UNASKED_H = 100
"""GPU-hours that are submitted without a budget and without `--yes`."""


def run(arguments: list[str]) -> None:
    """Submits sbatch arrays, or runs cells here with `hardware=local`; `--print` only shows the
    scripts or the cells. Above `budget=`, else `UNASKED_H` GPU-hours, Slurm gets them with `--yes`.

    Submissions to Slurm from one results folder take turns: each sees the jobs of those before.

    Raises:
        SkipbenchError: no such experiment or hardware, too many GPU-hours, Slurm refuses, or does
            not say which jobs are over.
        SystemExit: 1 when a cell failed that was run here.
    """
    asked = parse_submit(arguments, "submit", ("--print", "--plan", "--yes"))
    hardware, only_print = asked.hardware, "--print" in asked.request.flags
    if "--plan" in asked.request.flags:
        show_plan(asked.request.names, asked.request, hardware)
        return
    if hardware is None:
        raise SkipbenchError(
            f"submit needs hardware=NAME, one of: {', '.join(places())}; or a file of your "
            "own in conf/hardware"
        )
    if any(w.startswith("fresh=") for w in asked.words):
        raise SkipbenchError(
            "submit takes no fresh=: a job that is requeued would start anew each time; use "
            "results=FOLDER, or table"
        )
    with contextlib.ExitStack() as turn:
        if isinstance(hardware, Slurm) and not only_print:
            results = compose([w for w in asked.words if w.startswith("results=")]).results
            turn.enter_context(held(results.resolve() / "submit", wait=True))
        failed = _run_all(asked, hardware, only_print)
    if failed:
        sys.exit(1)


def _run_all(asked: SubmitRequest, hardware: Slurm | Local, only_print: bool) -> bool:
    """Submits or runs the cells of every experiment. Returns whether one failed that ran here."""
    tell = say if only_print else show
    taken: set[str] = set()
    missing: dict[str, list[CellStatus]] = {}
    failed = False
    gpus = local.gpus() if isinstance(hardware, Local) else None
    gpu_bytes = _gpu_bytes(hardware, gpus)
    for name in asked.request.names:
        cells = [_with_gpus(cell, hardware, gpus, gpu_bytes) for cell in cell_statuses(name, asked)]
        unknown = sum(cell.unknown for cell in cells)
        if unknown and isinstance(hardware, Slurm) and not only_print:
            raise SkipbenchError(
                f"{name}: squeue does not answer, and {unknown} of its cells were submitted "
                "before, so that they may be queued; nothing is submitted; try again when it does"
            )
        tell(f"{name}: {counts(cells)}")
        for cell in cells:
            if not cell.runnable:
                tell(f"not submitted: {cell.name}: {cell.state.reason}")
        todo = [c for c in cells if c.state.state in TO_RUN and c.runnable and c.key not in taken]
        taken |= {c.key for c in todo}
        missing[name] = todo
    line = None
    if taken and isinstance(hardware, Slurm):
        line = _bill([c for todo in missing.values() for c in todo], hardware, asked, only_print)
    for name, todo in missing.items():
        if todo and isinstance(hardware, Local):
            failed |= _run_here(name, schedule_stages(todo), hardware, gpus or [], only_print)
        elif todo and isinstance(hardware, Slurm):
            _submit(name, schedule_stages(todo), hardware, only_print)
        if not only_print:
            show(f"see: {command_line('status', name, asked.words)}")
    if line is not None:
        tell(line)
    return failed


def _bill(
    cells: Sequence[CellStatus], hardware: Slurm, asked: SubmitRequest, only_print: bool
) -> str:
    """What the cells take and are charged, in a line.

    Raises:
        SkipbenchError: more than was allowed.
    """
    gpu, given = gpu_of(hardware), asked.request.budget
    costs = [cost_of(cell.config, gpu, cell.gpus) for cell in cells]
    line, charged = bill_line(costs, hardware)
    most = UNASKED_H if given is None else budget_hours(given)
    if charged > most and not only_print and "--yes" not in asked.request.flags:
        above = f"budget={given}" if given else f"the {UNASKED_H} allowed without budget="
        raise SkipbenchError(
            f"at most {charged:.1f} GPU-hours would be charged, above {above}; nothing is "
            "submitted; see them with --plan, then give --yes, or --budget HOURS for fewer prompts"
        )
    return line


def _gpu_bytes(hardware: Slurm | Local, gpus: Sequence[str] | None) -> int | None:
    """Usable bytes of one GPU; `None` where cells are not told apart by it.

    Args:
        gpus: those of this machine; `None` on a cluster.

    Raises:
        SkipbenchError: more GPUs per cell than there are, or GPUs of unknown memory.
    """
    if hardware.gpus is not None:
        if gpus is not None and not 1 <= hardware.gpus <= max(1, len(gpus)):
            raise SkipbenchError(
                f"hardware.gpus={hardware.gpus}; wanted null, or 1 to the number of GPUs at "
                f"hand, {len(gpus)}"
            )
        return None
    if isinstance(hardware, Local):
        return local.gpu_bytes(gpus or [])
    if hardware.gpu_memory_gib is None:
        raise SkipbenchError(
            "hardware.gpus=null asks for as many GPUs as a model needs, by "
            "hardware.gpu_memory_gib; give one of the two"
        )
    return int(hardware.gpu_memory_gib * 2**30)


def _with_gpus(
    cell: CellStatus, hardware: Slurm | Local, gpus: Sequence[str] | None, gpu_bytes: int | None
) -> CellStatus:
    """The cell with the number of its GPUs; not runnable where it cannot have them.

    Arguments as of `_gpu_bytes`.
    """
    if cell.state.state not in TO_RUN or not cell.runnable:
        return cell
    if gpu_bytes is None:
        return replace(cell, gpus=1 if hardware.gpus is None else hardware.gpus)
    from skipbench.bench.memory import gpus_needed

    try:
        needed = gpus_needed(cell.config.model, cell.config.dataset, gpu_bytes)
    except NotHereError as error:
        return replace(cell, runnable=False, state=replace(cell.state, reason=str(error)))
    size, device = f"{needed} GPUs of {gpu_bytes / 2**30:.0f} GiB", cell.config.model.device
    if needed > 1 and device != "auto":
        reason = f"it needs {size}, and model.device={device} is one: give model.device=auto"
    elif gpus is not None and needed > len(gpus):
        reason = f"it needs {size}; {len(gpus)} at hand"
    else:
        return replace(cell, gpus=needed)
    return replace(cell, runnable=False, state=replace(cell.state, reason=reason))


def _manifest(name: str, cells: Sequence[CellStatus], make: bool) -> Path:
    folder = manifest.next_folder(cells[0].config.results.resolve(), name, make)
    if make:
        manifest.write_cells(folder, [record_of(cell) for cell in cells])
    return folder


def _submit(
    name: str, stages: Sequence[Sequence[CellStatus]], hardware: Slurm, only_print: bool
) -> None:
    """The jobs of the second stage start when those of the first are over, however they ended."""
    # an array asks for one number of GPUs
    stages = [sorted(stage, key=lambda cell: cell.gpus) for stage in stages]
    folder = _manifest(name, [cell for stage in stages for cell in stage], make=not only_print)
    path, python, limit = (
        folder / manifest.CELLS,
        hardware.python or sys.executable,
        slurm.array_limit(),
    )
    first, before, scripts = 0, list[str](), 0
    for number, stage in enumerate(stages):
        jobs = []
        for part, gpus in _parts(stage, limit, first):
            mine = [*itertools.chain(*stages)][part.first : part.first + part.count]
            memory = memory_for(hardware.memory, max(_weight_bytes(cell) for cell in mine))
            asked = replace(hardware, gpus=gpus, memory=memory)
            text = script(f"skipbench-{name}", path, part, asked, python, Path.cwd())
            if only_print:
                after = (
                    "# Submitted to start after the jobs of the scripts above.\n" if number else ""
                )
                sys.stdout.write(text + after)
                continue
            file, scripts = folder / f"{scripts}.sh", scripts + 1
            write_atomic(file, text)
            jobs.append(job := slurm.sbatch(file, after=before))
            manifest.add_job(folder, job, part.first, part.count)
            show(
                f"submitted: job {job}, {part.count} "
                f"cells{f' of {gpus} GPUs' if gpus > 1 else ''}, {file}"
            )
        first, before = first + len(stage), jobs


def _weight_bytes(cell: CellStatus) -> int:
    """Bytes of a cell's model; 0 where its size is not known."""
    model = cell.config.model
    return 0 if model.sizes is None else model.sizes.weight_bytes(model.dtype, model.quantization)


def _parts(stage: Sequence[CellStatus], limit: int, start: int) -> Iterator[tuple[Part, int]]:
    """Arrays of at most `limit` tasks for a stage in the order of its GPUs, each with what its
    cells ask for.
    """
    for gpus, group in itertools.groupby(stage, key=lambda cell: cell.gpus):
        count = len(list(group))
        yield from ((part, gpus) for part in parts(count, limit, start))
        start += count


def _run_here(
    name: str,
    stages: Sequence[Sequence[CellStatus]],
    hardware: Local,
    gpus: Sequence[str],
    only_print: bool,
) -> bool:
    """Runs the cells on this machine, stage by stage. Returns whether one of them failed."""
    cells = [cell for stage in stages for cell in stage]
    at_once = len(local.slots(hardware.workers, gpus))
    slots = local.slots(len(gpus) or at_once, gpus)
    at_once = min(at_once, len(slots) // min(cell.gpus for cell in cells))
    if only_print:
        sys.stdout.writelines(
            f"{c.name}{f', {c.gpus} GPUs' if c.gpus > 1 else ''}\n" for c in cells
        )
        return False
    folder = _manifest(name, cells, make=True)
    used = ", ".join(slot.get("CUDA_VISIBLE_DEVICES", "none") for slot in slots)
    show(f"{len(cells)} cells, {at_once} at a time, GPUs: {used}; logs in {folder}")
    command = cell_command(str(folder / manifest.CELLS))
    codes: list[int] = []

    def ended(number: int, code: int) -> None:
        codes.append(code)
        how = "done" if code == 0 else f"failed, see {folder / f'{number}.log'}"
        show(f"{len(codes)}/{len(cells)} {cells[number].name}: {how}")

    first = 0
    for stage in stages:
        numbers = range(first, first + len(stage))
        needs = {n: cells[n].gpus for n in numbers}
        local.run_cells(
            {n: [*command, str(n)] for n in numbers}, folder, slots, ended, needs, at_once
        )
        first += len(stage)
    return any(codes)
