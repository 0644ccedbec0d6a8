"""Sends rows of missing cells to Slurm, or runs them on the GPUs of this machine."""

import itertools
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from msgspec import structs

from skipbench.bench.memory import gpus_needed
from skipbench.config.catalog import row_command
from skipbench.config.hardware import Local, Slurm
from skipbench.console import say, show
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.experiments.inputs import not_ready
from skipbench.launch import local, manifest, slurm
from skipbench.launch.jobs import UNASKED_H, Job, jobs_of, schedule_stages, within_bill
from skipbench.launch.status import counts, most_asked, to_run
from skipbench.runs.cell import Cell
from skipbench.runs.files import write_atomic


def submit(
    experiments: Iterable[tuple[str, list[Cell]]],
    hardware: Slurm | Local,
    allowed_h: float | None = UNASKED_H,
    confirm: str = "--yes, or limit=N for the first N prompts",
    only_print: bool = False,
    anyway: str | None = "--anyway",
    words: Sequence[str] = (),
) -> tuple[list[str], bool]:
    """Sends the cells of experiments that have to run, each once, as jobs of one row each, or
    prints them. Returns the ids of the jobs, and whether a cell failed that ran here.

    Raises SkipbenchError for more than `allowed_h` GPU-hours, unless it is None, which `confirm`
    allows; for a model or dataset that jobs would not find, unless `anyway`, the word for it, is
    None; for a number of GPUs that cannot be; and where Slurm refuses, or does not say which jobs
    are over. `words`: those behind `submit`, kept for `status`.
    """
    tell = say if only_print else show
    gpus = local.gpus() if isinstance(hardware, Local) else None
    gpu_bytes = _gpu_bytes(hardware, gpus)
    names, missing = list[str](), dict[str, Cell]()
    for name, statuses in experiments:
        if isinstance(hardware, Slurm) and not only_print:
            _check_known(name, statuses)
        for cell in statuses:
            _ask_gpus(cell, hardware, gpus, gpu_bytes)
        tell(f"{name}: {counts(statuses)}")
        for cell in statuses:
            if not cell.runnable:
                tell(f"not submitted: {cell.name}: {cell.state.reason}")
        names.append(name)
        missing |= most_asked([*missing.values(), *filter(to_run, statuses)])
    made, line = jobs_of([*missing.values()], hardware), None
    if made and isinstance(hardware, Slurm):
        line = within_bill(made, hardware, None if only_print else allowed_h, confirm)
    if isinstance(hardware, Slurm) and not only_print and anyway is not None:
        _check_inputs(names, made, hardware, anyway)
    ids, failed = list[str](), False
    if stages := schedule_stages(made):
        title = names[0] + (f"+{len(names) - 1}" if names[1:] else "")
        if isinstance(hardware, Local):
            failed = _run_here(title, stages, hardware, gpus or [], only_print, words)
        else:
            ids = _to_slurm(title, stages, hardware, only_print, words)
    if line is not None:
        tell(line)
    return ids, failed


def _check_known(name: str, cells: Sequence[Cell]) -> None:
    """Raises SkipbenchError where some cells may be in a queue that cannot be asked."""
    if unknown := sum(cell.unknown for cell in cells):
        raise SkipbenchError(
            f"{name}: squeue does not answer, and {unknown} of its cells were submitted "
            "before, so that they may be queued; nothing is submitted; try again when it does"
        )


def _check_inputs(names: Sequence[str], jobs: Sequence[Job], hardware: Slurm, anyway: str) -> None:
    """Raises SkipbenchError for models and datasets that the jobs would not find."""
    configs = [cell.config for job in jobs for cell in job.cells]
    if lacking := not_ready(configs, hardware.offline):
        raise SkipbenchError(
            f"jobs would fail, and nothing is submitted: {', '.join(lacking)} "
            f"{'is' if len(lacking) == 1 else 'are'} not on this machine; python -m skipbench data "
            f"{' '.join(names)} with the same settings lists them, and --fetch fetches them; "
            f"{anyway} submits all the same"
        )


def _gpu_bytes(hardware: Slurm | Local, gpus: Sequence[str] | None) -> int | None:
    """Usable bytes of one GPU; `None` if the number of GPUs per cell does not depend on it. `gpus`:
    those of this machine; `None` on a cluster.
    """
    if hardware.gpus is None:
        if isinstance(hardware, Local):
            return local.gpu_bytes(gpus or [])
        if hardware.gpu_memory_gib is None:
            raise SkipbenchError(
                "hardware.gpus=null asks for as many GPUs as a model needs, by "
                "hardware.gpu_memory_gib; give one of the two"
            )
        return int(hardware.gpu_memory_gib * 2**30)
    if gpus is not None and not 1 <= hardware.gpus <= max(1, len(gpus)):
        raise SkipbenchError(
            f"hardware.gpus={hardware.gpus}; wanted null, or 1 to the number of GPUs at hand, "
            f"{len(gpus)}"
        )
    return None


def _ask_gpus(
    cell: Cell, hardware: Slurm | Local, gpus: Sequence[str] | None, gpu_bytes: int | None
) -> None:
    """Sets a cell's number of GPUs, or that it cannot run; arguments as of `_gpu_bytes`."""
    model = cell.config.model
    cell.gpus = 1 if hardware.gpus is None else hardware.gpus
    if not to_run(cell) or gpu_bytes is None:
        return
    try:
        cell.gpus = needed = gpus_needed(model, cell.config.dataset, gpu_bytes)
        size = f"it needs {needed} GPUs of {gpu_bytes / 2**30:.0f} GiB"
        if needed > 1 and model.device != "auto":
            give = "is one: give model.device=auto"
            raise NotHereError(f"{size}, and model.device={model.device} {give}")
        if gpus is not None and needed > len(gpus):
            raise NotHereError(f"{size}; {len(gpus)} at hand")
    except SkipbenchError as error:
        cell.runnable, cell.state = False, replace(cell.state, reason=str(error))


def _to_slurm(
    name: str,
    stages: Sequence[Sequence[Job]],
    hardware: Slurm,
    only_print: bool,
    words: Sequence[str],
) -> list[str]:
    """Submits an array per stage and number of GPUs, or prints its script. Returns the jobs. The
    jobs of a stage start when those before it are over, however they ended.
    """
    stages = [sorted(stage, key=lambda job: job.gpus) for stage in stages]
    rows = [*itertools.chain(*stages)]
    folder = manifest.next_folder(rows[0].cells[0].config.results.resolve(), name, not only_print)
    path = folder / manifest.CELLS
    if not only_print:
        manifest.write_rows(folder, [row.record() for row in rows], words)
    first, python = 0, hardware.python or sys.executable
    jobs, before = list[str](), list[str]()
    for number, stage in enumerate(stages):
        for gpus, group in itertools.groupby(stage, key=lambda job: job.gpus):
            part = range(first, first + len([*group]))
            first = part.stop
            asked = _asked(rows[part.start : part.stop], structs.replace(hardware, gpus=gpus))
            text = slurm.script(f"skipbench-{name}", path, part, asked, python, Path.cwd())
            if only_print:
                note = "# The next one is submitted to start after the jobs of those above.\n"
                sys.stdout.write(note * (number > 0) + text)
                continue
            file = folder / f"{len(jobs)}.sh"
            write_atomic(file, text)
            jobs.append(job := slurm.sbatch(file, after=before))
            manifest.add_job(folder, job, part.start, len(part))
            cells = sum(len(rows[n].cells) for n in part)
            of_gpus = f" of {gpus} GPUs" if gpus > 1 else ""
            show(f"submitted: job {job}, {len(part)} rows{of_gpus}, {cells} cells, {file}")
        before = jobs[:]
    if jobs:
        show(f"to stop what was sent: scancel {' '.join(jobs)}")
    return jobs


def _asked(rows: Sequence[Job], hardware: Slurm) -> Slurm:
    """Memory for the largest model, and requeues by the time limits of the longest row."""
    models = [row.cells[0].config.model for row in rows]
    sizes = ((m.architecture, m) for m in models)
    weights = (shape and shape.weight_bytes(m.dtype, m.quantization) for shape, m in sizes)
    memory = slurm.memory_for(hardware.memory, max(size or 0 for size in weights))
    requeues = hardware.requeues
    if hardware.limit_h and requeues:
        longest_h = max(row.cost.hours if row.cost else 0 for row in rows)
        requeues += int(longest_h / hardware.limit_h)
    return structs.replace(hardware, memory=memory, requeues=requeues)


def _run_here(
    name: str,
    stages: Sequence[Sequence[Job]],
    hardware: Local,
    gpus: Sequence[str],
    only_print: bool,
    words: Sequence[str],
) -> bool:
    """Runs rows here, by stage, the longest first. Returns whether one of them failed."""

    def hours(job: Job) -> float:
        return job.cost.hours if job.cost else 0.0

    stages = [sorted(stage, key=hours, reverse=True) for stage in stages]
    rows = [*itertools.chain(*stages)]
    at_once = local.cells_at_once(hardware.workers, gpus)
    if gpus:
        at_once = min(at_once, len(gpus) // min(row.gpus for row in rows))
    if only_print:
        for row in rows:
            sys.stdout.write(f"{row.name}{f', {row.gpus} GPUs' if row.gpus > 1 else ''}\n")
        return False
    folder = manifest.next_folder(rows[0].cells[0].config.results.resolve(), name, make=True)
    written = manifest.write_rows(folder, [row.record() for row in rows], words)
    command = row_command(str(written))
    used = ", ".join(gpus or ["none"] * at_once)
    count = "1 row" if len(rows) == 1 else f"{len(rows)} rows"
    show(f"{count}, {at_once} at a time, GPUs: {used}; logs in {folder}")
    codes: list[int] = []

    def ended(number: int, code: int) -> None:
        codes.append(code)
        how = "done" if code == 0 else f"failed, see {folder / f'{number}.log'}"
        show(f"{len(codes)}/{len(rows)} {rows[number].name}: {how}")

    for stage in stages:
        needs = {len(codes) + n: row.gpus for n, row in enumerate(stage)}
        commands = {n: [*command, str(n)] for n in needs}
        local.run_cells(commands, folder, gpus, at_once, ended, needs)
    return any(codes)
