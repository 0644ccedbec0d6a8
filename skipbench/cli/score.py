"""`score`: executes the code that runs have generated, in a sandbox, and adds the scores to their
metrics.
"""

from collections.abc import Sequence
from pathlib import Path

from skipbench.cli import commands
from skipbench.cli.parser import parse
from skipbench.console import progress_of, show
from skipbench.errors import SkipbenchError
from skipbench.experiments.cell import header
from skipbench.report.cell import markdown_cell
from skipbench.report.columns import number
from skipbench.runs.files import write_atomic
from skipbench.runs.measures import Metrics, Score
from skipbench.runs.reading import run_folders
from skipbench.runs.run import read_run
from skipbench.scoring.execute import Scored, score_run, waits_for_score


def run(arguments: Sequence[str]) -> None:
    """Scores `RUN [RUN ...]`, or `all` that wait for it.

    Raises:
        SkipbenchError: a run that is not there or cannot be scored, or a wrong key or value.
    """
    asked = parse(commands.Score, arguments)
    every = asked.words == ("all",)
    folders = _waiting(asked.results) if every else [_folder(n, asked.results) for n in asked.words]
    if not folders:
        show(f"no run in {asked.results} waits for a score")
    for folder in folders:
        with progress_of(folder.name) as update:
            scored = score_run(folder, asked.sandbox, asked.timeout, update)
        done = read_run(folder)
        if scored is not None:
            write_atomic(folder / "table.md", markdown_cell(scored.metrics, header(done)))
        for line in (folder.name, *_lines(done.metrics, scored)):
            show(line)


def _folder(name: str, results: Path) -> Path:
    for folder in (Path(name), results / "runs" / name):
        if (folder / "config.yaml").is_file():
            return folder
    raise SkipbenchError(
        f"there is no run {name}, neither in that folder nor in {results / 'runs' / name}"
    )


def _waiting(results: Path) -> list[Path]:
    """Finished runs whose generated code was not executed yet."""
    runs = map(read_run, run_folders(results))
    return [
        run.folder
        for run in runs
        if run.folder and waits_for_score(run.setting("dataset.scorer"), run.metrics)
    ]


def _lines(metrics: Metrics | None, scored: Scored | None) -> list[str]:
    """Scores of a run, vanilla against the method, and whether they are equal."""
    score = (metrics and metrics.score) or Score()
    vanilla, method = score.vanilla, score.method
    lines = [
        f"  {name} {number(vanilla.get(name), 3)} -> {number(method.get(name), 3)}"
        for name in {**vanilla, **method}
    ]
    if scored is None:
        return ["  nothing to execute: its scores were made by the run itself", *lines]
    if scored.differ:
        lines.append(
            f"  vanilla and the method differ on {len(scored.differ)} of {scored.samples} "
            f"samples, first {scored.differ[0]}"
        )
    else:
        same = "equal" if vanilla == method else "not equal"
        lines.append(f"  vanilla and the method are {same}, {scored.samples} samples")
    rules = scored.metrics.score_rules or {}
    return [*lines, f"  a program had {rules['program']} ({rules['limits']})"]
