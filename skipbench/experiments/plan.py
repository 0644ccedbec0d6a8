"""The cells of experiments with their configurations, for what the command line asks for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from skipbench.config.catalog import places
from skipbench.config.compose import compose, compose_cells
from skipbench.config.explain import did_you_mean
from skipbench.config.hardware import Local, Slurm
from skipbench.console import say
from skipbench.errors import SkipbenchError
from skipbench.experiments.grid import pair, plan, printed_numbers
from skipbench.report.compared import BASELINE
from skipbench.report.published import paper_of
from skipbench.runs.cell import Cell

NOISE_PER = ("model", "dataset", "decoding.temperature", "decoding.top_p", "engine")
NOISE_LIMIT = "20"
MANY = 30  # cells whose settings take seconds to read
OF_METHOD = ("method", "stop", "search")  # prefixes of overrides that vanilla does not have


def hardware_of(words: Sequence[str]) -> Slurm | Local | None:
    """The settings of `hardware=`, `None` where it is not among the words. Raises SkipbenchError
    for no such choice or key, or a device.
    """
    own = [w for w in words if w.partition("=")[0].partition(".")[0] == "hardware"]
    chosen = [w.partition("=")[2] for w in own if w.startswith("hardware=")]
    if not chosen:
        return None
    hardware = compose(own).hardware if chosen[-1] in places() else None
    if hardware is None:
        raise SkipbenchError(
            f"hardware={chosen[-1]} is no place where cells run."
            f"{did_you_mean(chosen[-1], places())} Wanted one of: {', '.join(places())}, or a file "
            "of your own in conf/hardware with _slurm among its defaults, as in slurm-a100.yaml"
        )
    return hardware


def scale_of(experiment: str, given: str | None, without_torch: bool = False) -> str:
    """The scale asked for, else `paper` with a GPU; `without_torch` looks for a driver alone."""
    if given is not None or paper_of(experiment) is None:
        return given or "paper"
    if without_torch:
        gpu = Path("/proc/driver/nvidia/version").exists()
    else:
        import torch

        gpu = torch.cuda.is_available()
    scale = "paper" if gpu else "embedded"
    say(f"scale={scale}, since {'a' if gpu else 'no'} CUDA device is here")
    return scale


def file_name(experiment: str, scale: str) -> str:
    """Name of its table or figure: a paper's has the scale in it, others have one scale."""
    return experiment if paper_of(experiment) is None else f"{experiment}.{scale}"


def without_repeats(experiment: str, cells: Sequence[Cell], scale: str) -> list[Cell]:
    """The cells of a paper without those of vanilla where another method runs on the same: its
    record holds vanilla's arm, too. At other scales they stay.
    """
    if scale != "paper" or paper_of(experiment) is None:
        return list(cells)

    def rest(cell: Cell) -> dict[str, str]:
        return {k: v for k, v in cell.overrides.items() if not k.startswith(("method", "search"))}

    alone = [cell for cell in cells if cell.runnable and cell.overrides.get("method") == BASELINE]
    covered = [rest(cell) for cell in cells if cell.runnable and cell not in alone]
    return [cell for cell in cells if cell not in alone or rest(cell) not in covered]


def _noise_cells(experiment: str, cells: Sequence[Cell], overrides: Sequence[str]) -> list[Cell]:
    """Vanilla against itself, on few samples or half of those that are asked for, for each model,
    dataset and decoding of a paper's table of speedups; none where `cells` have it, or the command
    line chooses methods.
    """
    own, given = paper_of(experiment), dict(pair(o) for o in overrides)
    timed = any(number.column == "speedup" for number in printed_numbers(experiment))
    has_one = BASELINE in {cell.overrides.get("method") for cell in cells}
    if own is None or not own[1].startswith("table") or not timed or "method" in given or has_one:
        return []
    noise: dict[tuple[str | None, ...], Cell] = {}
    for cell in cells:
        kept = {k: v for k, v in cell.overrides.items() if not k.startswith(OF_METHOD)}
        asked = given.get("limit") or kept.get("limit") or ""
        half = str(max(min(int(asked), 5), int(asked) // 2)) if asked.isdecimal() else None
        few = {} if asked and half is None else {"limit": half or NOISE_LIMIT}
        keys = {k: v for k, v in cell.keys.items() if k in NOISE_PER} | {"method": BASELINE}
        if cell.runnable:
            given_to_it = kept | {"method": BASELINE} | few
            one = replace(cell, overrides=given_to_it, keys=keys, reason=None, noise=True)
            noise.setdefault(tuple(cell.overrides.get(axis) for axis in NOISE_PER), one)
    return list(noise.values())


def composed(cells: list[Cell]) -> list[Cell]:
    """The cells, with configurations and names that tell them apart where they can be run."""
    configs = compose_cells([list(cell.words) for cell in once(cells)])
    of = dict(zip((cell.words for cell in once(cells)), configs, strict=True))
    for cell in runnable(cells):
        cell.composed = of[cell.words]
    bases = [" ".join(cell.config.names.values()) for cell in runnable(cells)]
    own = _apart(bases, [cell.overrides for cell in runnable(cells)])
    for cell, *words in zip(runnable(cells), bases, own, strict=True):
        cell.name = " ".join(filter(None, words))
    return cells


def runnable(cells: Sequence[Cell]) -> list[Cell]:
    return [cell for cell in cells if cell.runnable]


def once(cells: Sequence[Cell]) -> list[Cell]:
    """The cells that can be run, one for each of the same overrides."""
    first: dict[tuple[str, ...], Cell] = {}
    for cell in runnable(cells):
        first.setdefault(cell.words, cell)
    return [*first.values()]


def cells_of(
    names: Sequence[str],
    overrides: Sequence[str],
    scale: str | None = None,
    models: Sequence[str] = (),
    methods: Sequence[str] = (),
    without_torch: bool = False,
) -> dict[str, list[Cell]]:
    """The composed cells of experiments, by their names; of a table also those of its noise floor.
    Arguments as of `plan` and `scale_of`.
    """
    found = dict[str, list[Cell]]()
    for name in names:
        chosen = scale_of(name, scale, without_torch)
        planned = plan(name, overrides, chosen, models, methods)
        cells = without_repeats(name, planned, chosen)
        cells += _noise_cells(name, cells, overrides)
        if len(cells) > MANY:
            say(f"{name}: reading the settings of {len(cells)} cells ...", "dim")
        found[name] = composed(cells)
    return found


def points_of(cells: Sequence[Cell]) -> list[str]:
    """What tells each cell from those of its model, method and dataset."""
    names = [[c.overrides.get(axis) for axis in ("model", "method", "dataset")] for c in cells]
    return _apart(list(map(str, names)), [cell.overrides for cell in cells])


def _apart(bases: Sequence[str], overrides: Sequence[Mapping[str, str]]) -> list[str]:
    """The overrides in which each differs from others of the same base."""
    found = list[str]()
    for base, given in zip(bases, overrides, strict=True):
        alike = [own for other, own in zip(bases, overrides, strict=True) if other == base]
        own = {k: v for k, v in given.items() if any(o.get(k) != v for o in alike)}
        last = [key.rpartition(".")[2] for key in own]
        short = zip(own.items(), last, strict=True)
        words = (f"{k if last.count(end) > 1 else end}={v}" for (k, v), end in short)
        found.append(" ".join(words))
    return found
