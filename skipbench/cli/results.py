"""`score`, `report`, `diff`: commands on folders of results."""

import sys
from pathlib import Path

from skipbench.cli import commands
from skipbench.console import complain, say, show
from skipbench.errors import SkipbenchError
from skipbench.runs.files import write_atomic
from skipbench.runs.measures import Metrics, Score
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run

NAMED = 5  # runs that cannot be read; all are on the page


def run_score(asked: commands.Score) -> None:
    """Scores `RUN [RUN ...]`, or `all` that wait for it."""
    from skipbench.report.columns import ALL
    from skipbench.report.tables.formats import markdown
    from skipbench.report.tables.runs import run_table
    from skipbench.report.values import number
    from skipbench.scoring.execute import score_run
    from skipbench.scoring.scorers import waits_for_score

    if asked.words == ("all",):
        runs = {folder: read_run(folder) for folder in run_folders(asked.results)}
        named = {folder: run.setting("dataset.scorer") for folder, run in runs.items()}
        folders = [one for one, run in runs.items() if waits_for_score(named[one], run.metrics)]
        if not folders:
            show(f"no run in {asked.results} waits for a score")
    else:
        folders = [run_folder(name, asked.results) for name in asked.words]
    for folder in folders:
        scored = score_run(folder, asked.sandbox, asked.timeout)
        run = read_run(folder)
        show(folder.name)
        metrics = run.metrics or Metrics()
        vanilla, method = ((of.score or Score()).means for of in (metrics.baseline, metrics))
        if scored is None:
            show("  nothing to execute: its scores were made by the run itself")
        else:
            write_atomic(folder / "table.md", markdown(run_table(run, [ALL])))
        for name in {**vanilla, **method}:
            show(f"  {name} {number(vanilla.get(name), 3)} -> {number(method.get(name), 3)}")
        if scored is None:
            continue
        same = f"are {'equal' if vanilla == method else 'not equal'}, {scored.samples} samples"
        if differ := scored.differ:
            same = f"differ on {len(differ)} of {scored.samples} samples, first {differ[0]}"
        show(f"  vanilla and the method {same}")
        limits = scored.metrics.score_rules or {}
        show(f"  a program had {limits['program']} ({limits['limits']})")


def run_folder(name: str, results: Path) -> Path:
    """The folder of a run, given as it is or by its name. Raises SkipbenchError without one."""
    for folder in (Path(name), results / "runs" / name):
        if (folder / "config.yaml").is_file():
            return folder
    raise SkipbenchError(f"there is no run {name}, nor one in {results / 'runs' / name}")


def run_report(asked: commands.Report) -> None:
    """Writes RESULTS/report.html; exits with 1 when runs cannot be read, which it names."""
    from skipbench.report.page import write_page

    path, counts, unreadable = write_page(asked.results)
    one = {kind: kind.replace("s", "", 1) for kind, count in counts.items() if count == 1}
    kinds = (f"{count} {one.get(kind, kind)}" for kind, count in counts.items())
    say(f"written: {path} ({', '.join(kinds)})")
    if unreadable:
        many = f"{len(unreadable)} of {counts['runs']} runs cannot be read"
        more = f"; {len(unreadable) - NAMED} more, see the page" * (len(unreadable) > NAMED)
        complain(f"{many}: {'; '.join(unreadable[:NAMED])}{more}")
        sys.exit(1)


def run_diff(asked: commands.Diff) -> None:
    """Prints per cell of both folders the ratio of their speedups, with its interval, and other
    origins; exits with 1 when some interval leaves out 1.
    """
    from skipbench.report.difference import differences

    folders = [Path(word) for word in asked.words]
    for folder in folders:
        if not (folder / "runs").is_dir():
            raise SkipbenchError(f"{folder} holds no runs; give a folder of results")
    lines, apart = differences(*folders)
    show("\n".join(lines))
    if apart:
        sys.exit(1)
