"""`figure`: runs what an experiment lacks, then draws it; or draws one run's folder."""

from pathlib import Path

from msgspec.structs import replace

from skipbench.cli.commands import Figure
from skipbench.cli.experiments import request_of
from skipbench.config.catalog import choices, experiment_of
from skipbench.config.run_config import RunConfig
from skipbench.console import say
from skipbench.errors import SkipbenchError
from skipbench.experiments.grid import PlannedCell
from skipbench.experiments.plan import file_name, grids_of
from skipbench.experiments.resolve import checked_run, resolve_cell
from skipbench.experiments.row import run_rows
from skipbench.experiments.set_search import search_of
from skipbench.report.figures import searches
from skipbench.report.figures.curves import brute_force
from skipbench.report.figures.registry import FIGURES, NOT_RUN, draw, draw_run
from skipbench.report.figures.runs import dump_runs, finished_run, read_runs, swept
from skipbench.report.figures.style import FORMATS, save, styled
from skipbench.report.tables.stored import would_lose
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import MOST_BYTES, read_bytes, readable, strict_json
from skipbench.runs.run import Run


def run_figure(asked: Figure) -> None:
    """Writes results/figures/NAME.SCALE.png, .svg and .pdf, and the records behind them as .json,
    which can be drawn again; the figures of a folder of a run or of a search, into it.

    With `--distinct` a figure of which most runs have the draft of another is not drawn;
    NAME.SCALE.txt says so.
    """
    path = Path("".join(asked.words[:1]))
    if path.suffix == ".jsonl":
        _brute_force(path)
    elif path.suffix == ".json":
        _redraw(path)
    elif asked.words and (path / "trace.jsonl").is_file():
        _search(path / "trace.jsonl")
    elif asked.words and path.is_dir():
        with readable(path):
            run = finished_run(path)
            for kind, drawn in draw_run(run).items():
                _say(save(drawn, [run], path / "figures" / kind))
    elif path.parent != Path():
        raise SkipbenchError(f"there is no run {path}; wanted its folder, or an experiment")
    else:
        _experiment(asked)


def _experiment(asked: Figure) -> None:
    request = request_of(asked, sorted({*choices("experiment")} & {*FIGURES, *NOT_RUN}))
    if len(request.names) > 1:
        raise SkipbenchError(f"figure draws one at a time, not {' and '.join(request.names)}")
    name = request.names[0]
    if name in NOT_RUN:
        raise SkipbenchError(f"{name} is not drawn from runs: {NOT_RUN[name]}")
    (grid,) = grids_of(request)
    scale, cells = grid.scale, grid.cells
    runs, missing = list[Run](), list[str]()
    errors = run_rows([config for _, config in cells], asked.render_only)
    for (cell, config), error in zip(cells, errors, strict=True):
        try:
            if error is not None:
                raise error
            if not config.dry_run:
                runs.append(run_of(cell, config))
        except SkipbenchError as why:
            missing.append(f"{cell.name}: {why}")
    if missing:
        flags = [f"--{flag}" for flag in ("distinct", "force") if getattr(asked, flag)]
        command = " ".join(["python -m skipbench figure", name, *asked.given, *flags])
        head = f"{name} lacks {len(missing)} of {len(cells)} records"
        raise SkipbenchError("; ".join([head, *missing, command]))
    if runs:
        path = cells[0][1].results / "figures" / f"{file_name(name, scale)}.json"
        if asked.distinct and swept(runs).in_vain:
            for suffix in ("json", *FORMATS):
                path.with_suffix(f".{suffix}").unlink(missing_ok=True)
            reason = f"{name} is not drawn: {swept(runs).mark}."
            write_atomic(path.with_suffix(".txt"), f"{reason}\n")
            say(reason)
            return
        kept = dump_runs(name, runs)
        if (refused := would_lose(path, kept)) is not None and not asked.force:
            raise SkipbenchError(refused)
        write_atomic(path, kept)
        path.with_suffix(".txt").unlink(missing_ok=True)
        _redraw(path)
    elif not cells:
        cases = experiment_of(name).published.cases
        reasons = "; ".join(case.reason for case in cases if case.reason)
        say(f"{name} has no cell that can be run: {reasons}")


def run_of(cell: PlannedCell, config: RunConfig) -> Run:
    """The finished run of an experiment's cell, with what the experiment knows of it."""
    resolved = resolve_cell(config)
    checked_run(resolved)
    run = finished_run(resolved.folder)
    return replace(run, axes=cell.overrides, keys=cell.keys, search=search_of(config))


def _redraw(path: Path) -> None:
    """Draws the figure of a file of records beside it."""
    with readable(path, "write it with python -m skipbench figure NAME"):
        drawn, shown = draw(*read_runs(path))
        _say(save(drawn, shown, path.with_suffix("")))


def _search(trace: Path) -> None:
    """Draws the trials of a search's trace."""
    with readable(trace), styled():
        figure, text = searches.of_trace(trace)
    _say(save(figure, [], trace.parent / "figures" / "search", text))


def _brute_force(path: Path) -> None:
    with readable(path, "make it with python scripts/brute_force.py > FILE"), styled():
        text = (read_bytes(path, MOST_BYTES) or b"").decode()
        lines = [strict_json(line) for line in text.splitlines() if line.strip()]
        drawn, models = brute_force(lines)
    _say(save(drawn, [], path.with_suffix(""), models))


def _say(paths: list[Path]) -> None:
    say(f"written: {', '.join([str(paths[0]), *(path.suffix for path in paths[1:])])}")
