"""The command `figure`: runs what an experiment lacks, then draws it; or draws one run's folder."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from skipbench.catalogue import choices, paper_side
from skipbench.cells import cell, checked_run, console, finish, search_trace
from skipbench.errors import SkipbenchError
from skipbench.grid import Cell
from skipbench.runs.files import write_atomic
from skipbench.tables import grid

if TYPE_CHECKING:
    from skipbench.report.figures.runs import Run


def figure(arguments: list[str]) -> None:
    """Writes results/figures/NAME.png and .svg, and the records behind them as NAME.json, from which it draws them again.

    With `--distinct` an experiment's figure of which most runs have the draft of another is not drawn; NAME.txt says so.

    Raises:
        SkipbenchError: no such figure, or records are missing; it names them and the command that makes them.
    """
    from skipbench.report.figures.registry import FIGURES, NOT_RUN

    words = [a for a in arguments if a not in ("--render-only", "--distinct")]
    if words and words[0].endswith(".jsonl"):
        _of_brute_force(Path(words[0]))
        return
    if words and words[0].endswith(".json"):
        _again(Path(words[0]))
        return
    known = sorted(set(choices("experiment")) & {*FIGURES, *NOT_RUN})
    if words and Path(words[0]).is_dir():
        _of_run(Path(words[0]))
        return
    if not words or words[0] not in known:
        raise SkipbenchError(f"figure needs the folder of a run, or an experiment; known: {', '.join(known) or 'none'}")
    _of_experiment(words[0], words[1:], "--render-only" in arguments, "--distinct" in arguments)


def _of_experiment(name: str, words: list[str], only: bool, distinct: bool) -> None:
    from skipbench.report.figures.kept import dump_runs
    from skipbench.report.figures.registry import NOT_RUN
    from skipbench.report.figures.runs import swept

    if name in NOT_RUN:
        raise SkipbenchError(f"{name} is not drawn from runs: {NOT_RUN[name]}")
    cells = grid(name, words)
    runs, missing = [], []
    for number, (planned, plain) in enumerate(cells, 1):
        named = " ".join(f"{k}={v}" for k, v in planned.overrides.items())
        try:
            if not only:
                console.print(f"cell {number} of {len(cells)}: {named}", highlight=False, soft_wrap=True)
                cell(plain, show=False)
            if not plain["dry_run"]:
                runs.append(run_of(planned, plain))
        except SkipbenchError as error:
            missing.append(f"{named}: {error}")
    if missing:
        command = " ".join(["python -m skipbench figure", name, *words])
        raise SkipbenchError(
            "; ".join([f"{name} lacks {len(missing)} of {len(cells)} records", *missing]) + f"; {command}"
        )
    if runs:
        path = Path(cells[0][1]["results"]) / "figures" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        if distinct and swept(runs).in_vain:
            _leave_out(path, f"{name} is not drawn: {swept(runs).mark}.\n")
            return
        write_atomic(path, dump_runs(name, runs))
        path.with_suffix(".txt").unlink(missing_ok=True)
        _again(path)
    elif not cells:
        reasons = paper_side(name).get("cases", [])
        told = "; ".join(str(case["reason"]) for case in reasons if "reason" in case)
        console.print(f"{name} has no cell that can be run: {told}", highlight=False, soft_wrap=True)


def _leave_out(path: Path, why: str) -> None:
    """Puts `why` in the place of an earlier figure."""
    for suffix in (".json", ".png", ".svg"):
        path.with_suffix(suffix).unlink(missing_ok=True)
    write_atomic(path.with_suffix(".txt"), why)
    console.print(why, end="", markup=False, highlight=False, soft_wrap=True)


def _again(path: Path) -> None:
    """Draws the figure of a file of records beside it."""
    from skipbench.report.figures.kept import read_runs
    from skipbench.report.figures.registry import draw
    from skipbench.report.figures.style import save

    drawn, shown = draw(*read_runs(path))
    _say(save(drawn, shown, path.with_suffix("")))


def run_of(planned: Cell, plain: dict[str, Any]) -> "Run":
    """The finished run of an experiment's cell, with what the experiment knows of it.

    Raises:
        SkipbenchError: it is not there, or not finished.
    """
    from skipbench.bench.stored import seconds_of_trace
    from skipbench.report.figures.runs import Search, read_run

    settings, folder = finish(plain)
    checked_run(settings, folder)
    search = None
    if plain.get("own_search"):
        sets = plain["search"]["iterations"]
        seconds = seconds_of_trace(search_trace(plain), sets)
        search = Search(on=plain["own_search"]["name"], sets=sets, seconds=seconds)
    return read_run(folder, planned.overrides, planned.keys, search)


def _of_run(folder: Path) -> None:
    from skipbench.report.figures.registry import draw_run
    from skipbench.report.figures.runs import read_run
    from skipbench.report.figures.style import save

    run = read_run(folder)
    for kind, drawn in draw_run(run).items():
        _say(save(drawn, [run], folder / "figures" / kind))


def _of_brute_force(path: Path) -> None:
    import json

    from skipbench.report.figures.scatter import brute_force
    from skipbench.report.figures.style import save, styled

    try:
        lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise SkipbenchError(
            f"{path} cannot be read ({error}); make it with python scripts/brute_force.py > FILE"
        ) from error
    with styled():
        drawn = brute_force(lines)
    _say(save(drawn, [], path.with_suffix("")))


def _say(paths: list[Path]) -> None:
    console.print(f"written: {paths[0]} and {paths[1].suffix}", highlight=False, soft_wrap=True)
