"""One static HTML page of a results folder: a forest plot per row, all runs, tables and figures. It
has no scripts, loads nothing and needs no server.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup, escape
from msgspec.structs import replace

from skipbench.errors import SkipbenchError, printable
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.formats import html, rendered
from skipbench.report.tables.runs import row_table
from skipbench.report.tables.stored import read_summary, table_of
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import read_bytes, run_folders
from skipbench.runs.run import Run, read_run

_SVG = "data:image/svg+xml;base64,"  # nothing in an image runs, and no name in it meets another's


def write_page(results: Path) -> tuple[Path, dict[str, int], list[str]]:
    """Writes `results/report.html`; returns its path, how many runs, tables and figures are in it,
    and the error of each run that cannot be read. Other unreadable files are named and left out.
    Raises SkipbenchError if there is nothing to show, or the folder is not writable.
    """
    runs, unreadable = readable_runs(results)
    tables, shown, refused = dict[str, str](), [*runs], list[str]()
    if runs:
        tables["runs"] = html(row_table(runs, title="Runs", name="runs"), styled=False)
    for path in sorted((results / "tables").glob("*.json")):
        try:
            stored = read_summary(path)
            tables[path.stem] = html(table_of(stored), styled=False)
            shown += stored.runs
        except SkipbenchError as error:
            refused.append(printable(f"{path.name}: {error}"))
    for name, paper in feature_tables().items():
        if (results / "tables" / f"{name}.md").exists():
            tables[name] = html(feature_table(paper), styled=False)
    figures = dict[str, str]()
    for path in sorted([*results.glob("figures/*.svg"), *results.glob("runs/*/*/figures/*.svg")]):
        try:
            if (data := read_bytes(path)) is not None:
                of_run = "/".join(path.relative_to(results).parts[1:-2])
                name = f"{of_run}: {path.stem}" if of_run else path.stem
                figures[name] = _SVG + b64encode(data).decode()
        except SkipbenchError as error:
            refused.append(printable(f"{path.name}: {error}"))
    if not (tables or figures or refused or unreadable):
        raise SkipbenchError(
            f"no runs, tables or figures in {results}; run a cell first, or name a folder "
            "with results="
        )
    text = document("skipbench report", tables, plots(shown), figures, [*unreadable, *refused])
    write_atomic(results / "report.html", text)
    counts = {"runs": len(runs) + len(unreadable), "tables": len(tables) - bool(runs)}
    counts |= {"figures": len(figures)} | ({"files refused": len(refused)} if refused else {})
    return results / "report.html", counts, unreadable


def readable_runs(results: Path) -> tuple[list[Run], list[str]]:
    """The runs of a folder, without metrics and with the reason where they are not finished; and
    why others cannot be read.
    """
    runs, errors = list[Run](), list[str]()
    for folder in run_folders(results):
        try:
            run = read_run(folder)
            _ = run.turns  # those of a damaged file are no numbers to show
            state = ": ".join(filter(None, (run.status.state, run.status.error)))
            runs.append(run if run.metrics else replace(run, reason=state))
        except (SkipbenchError, OSError) as error:
            errors.append(printable(f"{folder.parent.name}/{folder.name}: {error}"))
    return runs, errors


def plots(runs: Sequence[Run]) -> dict[str, str]:
    """A forest plot of each row of the runs, as a data URI by the row's title."""
    from skipbench.report.figures.forest import forest, rows_of
    from skipbench.report.figures.style import drawn

    rows = sorted(rows_of(runs).items())
    images = {name: drawn(forest({name: own}), "svg") for name, own in rows}
    return {name: _SVG + b64encode(image).decode() for name, image in images.items()}


def document(
    title: str,
    tables: Mapping[str, str],
    plots: Mapping[str, str],
    figures: Mapping[str, str],
    refused: Sequence[str] = (),
    about: str = "",
    links: Mapping[str, str] | None = None,
) -> str:
    """The whole page; the same records give the same bytes: no time, no random name. `tables` are
    fragments of our own HTML by name, plots and figures data URIs by title, `links` addresses by
    text, and `about` stands below the title.
    """
    own = {name: Markup(table) for name, table in tables.items()}
    shown = {"plots": plots, "figures": figures, "refused": refused, "links": links or {}}
    return rendered("page.html.j2", escape, title=title, about=about, tables=own, **shown)
