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
    raise SkipbenchError(
        f"there is no run {name}, neither in that folder nor in {results / 'runs' / name}"
    )


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

    first, second = folders = [Path(word) for word in asked.words]
    for folder in folders:
        if not (folder / "runs").is_dir():
            raise SkipbenchError(f"{folder} holds no runs; give a folder of results")
    cells, alone = differences(first, second)
    if not cells:
        raise SkipbenchError(f"{first} and {second} hold no cell of the same settings")
    width = max(len(cell.name) for cell in cells)
    show(f"{'cell':<{width}}  {'samples':>9}  {'A':>7}  {'B':>7}  B / A")
    for cell in cells:
        a, b = (f"{s:.3f}x" if s is not None else "-" for s in cell.speedups)
        ratio = "-" if cell.ratio is None else f"{cell.ratio:.3f}"
        if cell.interval is not None:
            ratio += " [{:.3f}, {:.3f}]".format(*cell.interval) + " *" * cell.apart
        show(f"{cell.name:<{width}}  {cell.samples:>9}  {a:>7}  {b:>7}  {ratio}")
        if cell.limits[0] != cell.limits[1] or cell.same_tokens < cell.samples:
            limits = " and ".join("all" if of is None else str(of) for of in cell.limits)
            ms = " and ".join("-" if M is None else f"{M:.4g}" for M in cell.M)
            same = f"{cell.same_tokens} of {cell.samples} outputs have the same tokens"
            show(f"  {same}; M {ms}; limit {limits}")
    for origin in dict.fromkeys(text for cell in cells for text in cell.origins):
        show(f"origin: {origin}")
    for folder, names in zip(folders, alone, strict=True):
        if names:
            show(f"only in {folder}: {', '.join(names)}")
    apart = sum(cell.apart for cell in cells)
    show(f"{len(cells)} cells in both; {apart} whose interval leaves out 1")
    if apart:
        raise SystemExit(1)
