"""`figure`: runs what an experiment lacks, then draws it; or draws a comparison, or a run."""

from pathlib import Path

import msgspec
from msgspec.structs import replace

from skipbench.cli.commands import Figure
from skipbench.cli.experiments import cells_asked
from skipbench.cli.parser import results_of
from skipbench.config.catalog import choices, experiment_of
from skipbench.console import say
from skipbench.errors import SkipbenchError
from skipbench.experiments.plan import file_name, once
from skipbench.experiments.resolve import checked_run, fill_skip_set
from skipbench.experiments.row import run_rows
from skipbench.experiments.table_runs import search_costs
from skipbench.report.figures.curves import brute_force
from skipbench.report.figures.forest import below, forest, rows_of
from skipbench.report.figures.registry import FIGURES, NOT_RUN, draw, draw_run
from skipbench.report.figures.runs import finished_run
from skipbench.report.figures.style import save, styled
from skipbench.report.tables.stored import read_summary
from skipbench.runs.cell import Cell
from skipbench.runs.reading import read_bytes, readable
from skipbench.runs.run import Run


def run_figure(asked: Figure) -> None:
    """Writes results/figures/NAME.SCALE.png, .svg and .pdf of an experiment; NAME.* with the forest
    plot of a table, results/tables/NAME.json; the figures of a run into its folder.
    """
    path = Path("".join(asked.words[:1]))
    table = results_of(asked.settings) / "tables" / f"{path}.json"
    if path.suffix == ".jsonl":
        _brute_force(path)
    elif path.suffix == ".json":
        _forest(path)
    elif asked.words and path.is_dir():
        with readable(path):
            run = finished_run(path)
            for kind, drawn in draw_run(run).items():
                _say(save(drawn, [run], path / "figures" / kind))
    elif path.parent != Path():
        raise SkipbenchError(f"there is no run {path}; wanted its folder, or an experiment")
    elif path.name not in {*FIGURES, *NOT_RUN} and table.is_file():
        _forest(table)
    else:
        _experiment(asked)


def _forest(path: Path) -> None:
    """Draws the comparison of a stored table, into the folder `figures` beside that of tables."""
    runs, place = [*read_summary(path).runs], path.parent.parent / "figures"
    with readable(path):
        _say(save(forest(rows_of(runs)), runs, place / path.stem, below(runs)))


def _experiment(asked: Figure) -> None:
    if len(asked.words) > 1:
        raise SkipbenchError(f"figure draws one at a time, not {' and '.join(asked.words)}")
    known = sorted({*choices("experiment")} & {*FIGURES, *NOT_RUN})
    ((name, own),) = cells_asked(asked, known).items()
    if name in NOT_RUN:
        raise SkipbenchError(f"{name} is not drawn from runs: {NOT_RUN[name]}")
    cells = once(own)
    runs, missing = list[Run](), list[str]()
    run_rows(cells, only_check=asked.render_only)
    for cell in cells:
        try:
            if cell.error is not None:
                raise cell.error
            if not cell.config.dry_run:
                runs.append(run_of(cell))
        except SkipbenchError as why:
            missing.append(f"{cell.name}: {why}")
    if missing:
        command = " ".join(["python -m skipbench figure", name, *asked.given])
        head = f"{name} lacks {len(missing)} of {len(cells)} records"
        raise SkipbenchError("; ".join([head, *missing, command]))
    if runs:
        scale, results = cells[0].scale, cells[0].config.results
        drawn, shown = draw(name, runs, beside=scale == "paper")
        _say(save(drawn, shown, results / "figures" / file_name(name, scale)))
    elif not cells:
        cases = experiment_of(name).published.cases
        reasons = "; ".join(case.reason for case in cases if case.reason)
        say(f"{name} has no cell that can be run: {reasons}")


def run_of(cell: Cell) -> Run:
    """The finished run of an experiment's cell, with what the experiment knows of it."""
    fill_skip_set(cell)
    run, limit = checked_run(cell), cell.config.limit
    finished_run(cell.folder)
    if not run.has(limit):
        raise SkipbenchError(f"{cell.folder} has fewer prompts than limit={limit}")
    metrics = replace(run.measured, optimisation=search_costs(cell.config, run))
    return replace(run, axes=cell.overrides, keys=cell.keys, metrics=metrics)


def _brute_force(path: Path) -> None:
    with readable(path, "make it with python scripts/brute_force.py > FILE"), styled():
        text = (read_bytes(path) or b"").decode()
        lines = [msgspec.json.decode(line) for line in text.splitlines() if line.strip()]
        drawn, models = brute_force(lines)
    _say(save(drawn, [], path.with_suffix(""), models))


def _say(paths: list[Path]) -> None:
    say(f"written: {', '.join([str(paths[0]), *(path.suffix for path in paths[1:])])}")
