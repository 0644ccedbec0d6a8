"""The commands `submit`, `cell` and `status`: the missing cells of experiments on a cluster or on this machine, and what became of them."""

import contextlib
import itertools
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from skipbench.catalogue import known_models, places
from skipbench.cells import cell, console, finish
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.runs.files import write_atomic
from skipbench.runs.life import STATES
from skipbench.runs.stop import Interrupted
from skipbench.runs.store import record_failure
from skipbench.runs.terminal import Console
from skipbench.survey import TO_RUN, Found, command_line, counts, hardware_of, key_of, read_words, survey, waves
from skipbench.sweep import local, manifest, slurm
from skipbench.sweep.script import Part, parts, script
from skipbench.sweep.watch import HANDED_ON, WATCHED, watch

TOLD = 3
"""Exit status of a watched cell that failed and has written down why."""


def submit(arguments: Sequence[str]) -> None:
    """Runs the cells of experiments that are missing: as sbatch arrays, or here with `hardware=local`; `--print` shows what would be.

    Raises:
        SkipbenchError: no such experiment or hardware, or Slurm refuses.
        SystemExit: 1 when a cell failed that was run here.
    """
    names, words, only_print = read_words(arguments, "submit", "--print")
    hardware = hardware_of(words)
    if hardware is None:
        raise SkipbenchError(
            f"submit needs hardware=NAME, one of: {', '.join(places())}; or a file of your own in conf/hardware"
        )
    if any(w.startswith("fresh=") for w in words):
        raise SkipbenchError(
            "submit takes no fresh=: a job that is requeued would start anew each time; use results=FOLDER, or table"
        )
    taken: set[str] = set()
    failed = False
    gpus = local.gpus() if "workers" in hardware else None
    each = _gpu_bytes(hardware, gpus)
    for name in names:
        cells = [_with_gpus(found, hardware, gpus, each) for found in survey(name, words, hardware)]
        _say(f"{name}: {counts(cells)}", only_print)
        for found in cells:
            if not found.runnable:
                _say(f"not submitted: {found.name}: {found.life.reason}", only_print)
        todo = [f for f in cells if f.life.state in TO_RUN and f.runnable and key_of(f) not in taken]
        taken |= {key_of(f) for f in todo}
        if todo and "workers" in hardware:
            failed |= _run_here(name, waves(todo), hardware, gpus or [], only_print)
        elif todo:
            _submit(name, waves(todo), hardware, only_print)
        if not only_print:
            _say(f"see: {command_line('status', name, words)}", False)
    if failed:
        sys.exit(1)


def _gpu_bytes(hardware: Mapping[str, Any], gpus: Sequence[str] | None) -> int | None:
    """What a process can use of one GPU; `None` where cells are not told apart by it.

    Args:
        gpus: those of this machine; `None` on a cluster.

    Raises:
        SkipbenchError: more GPUs per cell than there are, or GPUs of unknown memory.
    """
    if hardware["gpus"] is not None:
        if gpus is not None and not 1 <= hardware["gpus"] <= max(1, len(gpus)):
            raise SkipbenchError(
                f"hardware.gpus={hardware['gpus']}; wanted null, or 1 to the number of GPUs at hand, {len(gpus)}"
            )
        return None
    if gpus is not None:
        return local.gpu_bytes(gpus)
    if hardware["gpu_memory_gib"] is None:
        raise SkipbenchError(
            "hardware.gpus=null asks for as many GPUs as a model needs, by hardware.gpu_memory_gib; give one of the two"
        )
    return int(hardware["gpu_memory_gib"] * 2**30)


def _with_gpus(found: Found, hardware: Mapping[str, Any], gpus: Sequence[str] | None, each: int | None) -> Found:
    """The cell with the number of its GPUs; not runnable where it cannot have them. Arguments as of `_gpu_bytes`."""
    if found.life.state not in TO_RUN or not found.runnable:
        return found
    if each is None:
        return replace(found, gpus=1 if hardware["gpus"] is None else hardware["gpus"])
    from skipbench.bench.memory import gpus_needed

    try:
        needed = gpus_needed(found.plain["model"], found.plain["dataset"], each)
    except NotHereError as error:
        return replace(found, runnable=False, life=replace(found.life, reason=str(error)))
    size, device = f"{needed} GPUs of {each / 2**30:.0f} GiB", found.plain["model"]["device"]
    if needed > 1 and device != "auto":
        told = f"it needs {size}, and model.device={device} is one: give model.device=auto"
    elif gpus is not None and needed > len(gpus):
        told = f"it needs {size}; {len(gpus)} at hand"
    else:
        return replace(found, gpus=needed)
    return replace(found, runnable=False, life=replace(found.life, reason=told))


def _manifest(name: str, todo: Sequence[Found], make: bool) -> Path:
    folder = manifest.next_folder(Path(todo[0].plain["results"]).resolve(), name, make)
    if make:
        manifest.write_cells(folder, [{"name": f.name, "folder": key_of(f), "plain": f.plain} for f in todo])
    return folder


def _submit(name: str, todo: Sequence[Sequence[Found]], hardware: dict[str, Any], only_print: bool) -> None:
    """`todo`: waves; the jobs of the second start when those of the first are over, however they ended."""
    todo = [sorted(wave, key=lambda found: found.gpus) for wave in todo]  # an array asks for one number of GPUs
    folder = _manifest(name, [found for wave in todo for found in wave], make=not only_print)
    path, python, limit = folder / manifest.CELLS, hardware["python"] or sys.executable, slurm.array_limit()
    first, before, scripts = 0, list[str](), 0
    for number, wave in enumerate(todo):
        jobs = []
        for part, gpus in _parts(wave, limit, first):
            text = script(f"skipbench-{name}", path, part, hardware | {"gpus": gpus}, python, Path.cwd())
            if only_print:
                sys.stdout.write(
                    text + ("# Submitted to start after the jobs of the scripts above.\n" if number else "")
                )
                continue
            file, scripts = folder / f"{scripts}.sh", scripts + 1
            write_atomic(file, text)
            jobs.append(job := slurm.sbatch(file, after=before))
            manifest.add_job(folder, job, part.first, part.count)
            _say(f"submitted: job {job}, {part.count} cells{f' of {gpus} GPUs' if gpus > 1 else ''}, {file}", False)
        first, before = first + len(wave), jobs


def _parts(wave: Sequence[Found], limit: int, start: int) -> Iterator[tuple[Part, int]]:
    """Arrays of at most `limit` tasks for a wave in the order of its GPUs, each with what its cells ask for."""
    for gpus, group in itertools.groupby(wave, key=lambda found: found.gpus):
        count = len(list(group))
        yield from ((part, gpus) for part in parts(count, limit, start))
        start += count


def _run_here(
    name: str, todo: Sequence[Sequence[Found]], hardware: dict[str, Any], gpus: Sequence[str], only_print: bool
) -> bool:
    """Whether one of the cells failed; waves as for `_submit`."""
    cells = [found for wave in todo for found in wave]
    most = len(local.slots(hardware["workers"], gpus))
    slots = local.slots(len(gpus) or most, gpus)
    most = min(most, len(slots) // min(found.gpus for found in cells))
    if only_print:
        sys.stdout.writelines(f"{f.name}{f', {f.gpus} GPUs' if f.gpus > 1 else ''}\n" for f in cells)
        return False
    folder = _manifest(name, cells, make=True)
    told = ", ".join(slot.get("CUDA_VISIBLE_DEVICES", "none") for slot in slots)
    _say(f"{len(cells)} cells, {most} at a time, GPUs: {told}; logs in {folder}", False)
    own = [sys.executable, "-m", "skipbench", "cell", str(folder / manifest.CELLS)]
    codes: list[int] = []

    def ended(number: int, code: int) -> None:
        codes.append(code)
        how = "done" if code == 0 else f"failed, see {folder / f'{number}.log'}"
        _say(f"{len(codes)}/{len(cells)} {cells[number].name}: {how}", False)

    first = 0
    for wave in todo:
        numbers = range(first, first + len(wave))
        needs = {n: cells[n].gpus for n in numbers}
        local.run_cells({n: [*own, str(n)] for n in numbers}, folder, slots, ended, needs, most)
        first += len(wave)
    return any(codes)


def run_cell(arguments: Sequence[str]) -> None:
    """Runs one cell of a manifest, in a process of its own: what a task of an array does.

    Raises:
        SkipbenchError: no such cell.
        SystemExit: 1 when the cell failed, 128 + n when signal n asked for its end, or killed it.
    """
    if len(arguments) != 2 or not arguments[1].isdecimal():
        raise SkipbenchError("cell needs a manifest and a number, as submit writes them into its script")
    plain = manifest.read_cell(Path(arguments[0]), int(arguments[1]))
    if os.environ.get(WATCHED) == str(os.getppid()):
        _run_watched(plain)
        return
    code = watch([sys.executable, "-m", "skipbench", "cell", *arguments], os.environ)
    if untold := _untold(code, plain, Path(arguments[0]).parent):
        _fail(plain, untold)
    sys.exit(1 if code == TOLD else code if code >= 0 else 128 - code)


def _run_watched(plain: dict[str, Any]) -> None:
    try:
        cell(plain, show=False)
    except Interrupted as stop:
        _complain(f"{stop}: {slurm.requeue_self() if stop.signal == signal.SIGUSR2 else 'preempted or cancelled'}")
        sys.exit(128 + stop.signal)
    except Exception as error:
        _fail(plain, _reason(error, plain))
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(TOLD)  # without memory, what libraries do at the interpreter's end may fail, or spin for ever


def _fail(plain: dict[str, Any], reason: str) -> None:
    with contextlib.suppress(SkipbenchError):  # before its search is done a cell has no folder
        record_failure(finish(plain)[1], reason)
    _complain(f"failed: {reason}")


def _reason(error: Exception, plain: dict[str, Any]) -> str:
    """Why a cell failed, in a line."""
    if isinstance(error, SkipbenchError):
        return str(error)
    plainly = f"{type(error).__name__}: {error}"
    try:
        from skipbench.bench.memory import out_of_memory

        return out_of_memory(error, plain["model"], plain["dataset"]["max_new_tokens"], known_models()) or plainly
    except Exception:  # what cannot be advised, without memory perhaps, must not cost the record the reason known above
        return f"{plainly}; give the job more (hardware.memory=)" if isinstance(error, MemoryError) else plainly


def _untold(code: int, plain: dict[str, Any], logs: Path) -> str | None:
    """Why a cell's process died that could not say it itself, by its exit status as of `watch`; `None` where it could."""
    # One of the signals handed on may meet the child at its very end, when it has written down already how it ended.
    asked = {end for number in HANDED_ON for end in (-number, 128 + number)}
    if code in {0, TOLD, 128 + signal.SIGINT} | asked:
        return None
    if code > 0:
        return f"ended with exit status {code} and left no reason, as where memory ends; its log in {logs} may tell"
    told = f"killed by {signal.Signals(-code).name}"
    if -code != signal.SIGKILL:
        return told
    return f"{told}; where nobody sent it, it was the kernel, for memory: {_reason(MemoryError(), plain)}"


def status(arguments: Sequence[str]) -> None:
    """Counts what of experiments is done, failed, running, missing, stale, and prints the command that runs the rest.

    Raises:
        SkipbenchError: no such experiment.
        SystemExit: 1, unless every cell is done.
    """
    names, words, _ = read_words(arguments, "status")
    hardware = hardware_of(words)
    undone = False
    for name in names:
        cells = survey(name, words, hardware)
        _say(f"{name}: {counts(cells)}", False)
        for state in STATES[1:]:
            for found in cells:
                if found.life.state == state:
                    _say(f"{state:<12}{found.name}" + (f": {found.life.reason}" if found.life.reason else ""), False)
        undone |= any(f.life.state != "done" for f in cells)
        if any(f.life.state in TO_RUN and f.runnable for f in cells):
            _say(f"to run them: {command_line('submit' if hardware else 'table', name, words)}", False)
    if undone:
        sys.exit(1)


def _say(text: str, aside: bool) -> None:
    where = Console(stderr=True) if aside else console
    where.print(text, markup=False, highlight=False, soft_wrap=True)


def _complain(text: str) -> None:
    Console(stderr=True).print(text, style="red", markup=False, highlight=False, soft_wrap=True)
