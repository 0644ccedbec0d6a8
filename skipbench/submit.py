"""The commands `submit`, `cell` and `status`: a sweep on a cluster, and what became of it."""

import contextlib
import shlex
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from skipbench.catalogue import choices, known_models
from skipbench.cells import cell, console, finish, search_trace
from skipbench.compose import compose
from skipbench.errors import NotHereError, SkipbenchError
from skipbench.runs.files import write_atomic
from skipbench.runs.life import STALE_S, STATES, Life, life_of
from skipbench.runs.stop import Interrupted
from skipbench.runs.store import record_failure
from skipbench.sweep import manifest, slurm
from skipbench.sweep.script import parts, script
from skipbench.tables import grid

TO_RUN = ("missing", "failed", "interrupted", "stale")


@dataclass(frozen=True)
class Found:
    """A cell of an experiment and its state; `folder` is `None` while its search is not done."""

    name: str
    plain: dict[str, Any]
    folder: Path | None
    life: Life
    runnable: bool = True


def submit(arguments: Sequence[str]) -> None:
    """Submits the cells of experiments that are missing as sbatch arrays; `--print` shows the scripts and submits nothing.

    Raises:
        SkipbenchError: no such experiment or hardware, or Slurm refuses.
    """
    names, words, only_print = _read(arguments, "submit", "--print")
    hardware = _hardware(words)
    if hardware is None:
        raise SkipbenchError(
            f"submit needs hardware=NAME, one of: {', '.join(_clusters())}; or a file of your own in conf/hardware"
        )
    taken: set[str] = set()
    for name in names:
        cells = survey(name, _scaled(words, hardware))
        _say(f"{name}: {_counts(cells)}", only_print)
        for found in cells:
            if not found.runnable:
                _say(f"not submitted: {found.name}: {found.life.reason}", only_print)
        todo = [f for f in cells if f.life.state in TO_RUN and f.runnable and _key(f) not in taken]
        taken |= {_key(f) for f in todo}
        if todo:
            _submit(name, todo, hardware, only_print)
        if not only_print:
            console.print(f"see: {_command('status', name, words)}", markup=False, highlight=False, soft_wrap=True)


def _submit(name: str, todo: Sequence[Found], hardware: dict[str, Any], only_print: bool) -> None:
    folder = manifest.next_folder(Path(todo[0].plain["results"]).resolve(), name, make=not only_print)
    path = folder / "cells.jsonl"
    python = hardware["python"] or sys.executable
    texts = {
        part: script(f"skipbench-{name}", path, part, hardware, python, Path.cwd())
        for part in parts(len(todo), slurm.array_limit())
    }
    if only_print:
        sys.stdout.write("\n".join(texts.values()))
        return
    manifest.write_cells(folder, [{"name": f.name, "folder": _key(f), "plain": f.plain} for f in todo])
    for number, (part, text) in enumerate(texts.items()):
        file = folder / f"{number}.sh"
        write_atomic(file, text)
        job = slurm.sbatch(file)
        manifest.add_job(folder, job, part.first, part.count)
        _say(f"submitted: job {job}, {part.count} cells, {file}", False)


def run_cell(arguments: Sequence[str]) -> None:
    """Runs one cell of a manifest: what a task of an array does.

    Raises:
        SkipbenchError: no such cell.
        SystemExit: 1 when the cell failed, 128 + n when signal n asked for its end.
    """
    if len(arguments) != 2 or not arguments[1].isdecimal():
        raise SkipbenchError("cell needs a manifest and a number, as submit writes them into its script")
    plain = manifest.read_cell(Path(arguments[0]), int(arguments[1]))
    complain = Console(stderr=True)
    try:
        cell(plain, show=False)
    except Interrupted as stop:
        told = slurm.requeue_self() if stop.signal == signal.SIGUSR2 else "preempted or cancelled"
        complain.print(f"{stop}: {told}", markup=False, highlight=False, soft_wrap=True)
        sys.exit(128 + stop.signal)
    except Exception as error:
        reason = _reason(error, plain)
        with contextlib.suppress(SkipbenchError):  # before its search is done a cell has no folder
            record_failure(finish(plain)[1], reason)
        complain.print(f"failed: {reason}", style="red", markup=False, highlight=False, soft_wrap=True)
        sys.exit(1)


def _reason(error: Exception, plain: dict[str, Any]) -> str:
    """Why a cell failed, in a line."""
    if isinstance(error, SkipbenchError):
        return str(error)
    plainly = f"{type(error).__name__}: {error}"
    try:
        from skipbench.bench.memory import out_of_memory

        return out_of_memory(error, plain["model"], plain["dataset"]["max_new_tokens"], known_models()) or plainly
    except (MemoryError, ImportError, OSError):  # too little even to say what would be enough
        return f"{plainly}; give the job more (hardware.memory=)"


def status(arguments: Sequence[str]) -> None:
    """Counts what of experiments is done, failed, running, missing, stale, and prints the command that runs the rest.

    Raises:
        SkipbenchError: no such experiment.
        SystemExit: 1, unless every cell is done.
    """
    names, words, _ = _read(arguments, "status")
    hardware = _hardware(words)
    undone = False
    for name in names:
        cells = survey(name, _scaled(words, hardware) if hardware else words)
        _say(f"{name}: {_counts(cells)}", False)
        for state in STATES[1:]:
            for found in cells:
                if found.life.state == state:
                    _say(f"{state:<12}{found.name}" + (f": {found.life.reason}" if found.life.reason else ""), False)
        undone |= any(f.life.state != "done" for f in cells)
        if any(f.life.state in TO_RUN for f in cells):
            _say(f"to run them: {_command('submit' if hardware else 'table', name, words)}", False)
    if undone:
        sys.exit(1)


def survey(experiment: str, words: Sequence[str]) -> list[Found]:
    """Every cell of an experiment that can be run, those that become one run once, with its state.

    Args:
        words: overrides, and perhaps `scale=`, `models=`, `stale=SECONDS`; none of `hardware`.
    """
    own = [w for w in words if not w.startswith(("hardware", "stale="))]
    stale_s = next((_seconds(w) for w in words if w.startswith("stale=")), STALE_S)
    live = slurm.jobs()
    waiting: dict[str, str] | None = None
    cells: dict[str, Found] = {}
    for _, plain in grid(experiment, own):
        name = "/".join(str(plain[k]["name"]) for k in ("model", "method", "dataset"))
        try:
            folder: Path | None = finish(plain)[1]
            life, runnable = life_of(folder, live, stale_s) if folder else Life("missing"), True
        except NotHereError as error:
            folder, runnable = None, bool(plain.get("own_search"))
            life = Life("missing", str(error))
        found = Found(name, plain, folder, life, runnable)
        if waiting is None:
            waiting = dict(manifest.queued(Path(plain["results"]), live or {}))
        state = waiting.get(_key(found))
        if life.state in TO_RUN and state is not None:
            found = Found(name, plain, folder, Life("queued", f"its job is {state}"))
        cells.setdefault(_key(found), found)
    return list(cells.values())


def _key(found: Found) -> str:
    """What tells a cell from others: its run's folder, or before a search the search's."""
    if found.folder is not None:
        return found.folder.name
    return f"search of {search_trace(found.plain).parent.name}, {found.plain['search']['iterations']}"


def _read(arguments: Sequence[str], command: str, flag: str = "") -> tuple[list[str], list[str], bool]:
    """Experiments, the other words, and whether the flag is given."""
    names = [a for a in arguments if "=" not in a and not a.startswith("-")]
    known = choices("experiment")
    if not names or (unknown := set(names) - set(known)):
        told = f", not {sorted(unknown)[0]!r}" if names else ""
        raise SkipbenchError(f"{command} needs an experiment{told}; known: {', '.join(known)}")
    if flags := [a for a in arguments if a.startswith("-") and a != flag]:
        raise SkipbenchError(f"{command} has no flag {flags[0]}" + (f"; there is {flag}" if flag else ""))
    return names, [a for a in arguments if "=" in a], bool(flag) and flag in arguments


def _hardware(words: Sequence[str]) -> dict[str, Any] | None:
    own = [w for w in words if w.partition("=")[0].partition(".")[0] == "hardware"]
    if not any(w.startswith("hardware=") for w in own):
        return None
    found: dict[str, Any] = compose(own)["hardware"]
    if "partition" not in found:
        raise SkipbenchError(f"{own[0]} is a device; wanted a cluster: {', '.join(_clusters())}, or a file of your own")
    return found


def _clusters() -> list[str]:
    return [name for name in choices("hardware") if name.startswith("slurm-")]


def _scaled(words: Sequence[str], hardware: dict[str, Any]) -> list[str]:
    """With the scale of the nodes, unless one is given: that this machine has no GPU says nothing of theirs."""
    if any(w.startswith("scale=") for w in words):
        return list(words)
    return [*words, "scale=paper" if hardware["gpus"] else "scale=embedded"]


def _counts(cells: Sequence[Found]) -> str:
    count = Counter(f.life.state for f in cells)
    return f"{len(cells)} cells: " + ", ".join(f"{count[state]} {state}" for state in STATES)


def _command(command: str, name: str, words: Sequence[str]) -> str:
    kept = [w for w in words if command != "table" or not w.startswith(("hardware", "stale="))]
    return shlex.join(["python", "-m", "skipbench", command, name, *kept])


def _seconds(word: str) -> float:
    try:
        return float(word.partition("=")[2])
    except ValueError:
        raise SkipbenchError(f"{word}; wanted a number of seconds") from None


def _say(text: str, aside: bool) -> None:
    where = Console(stderr=True) if aside else console
    where.print(text, markup=False, highlight=False, soft_wrap=True)
