"""The registry: every run of every bundle in a folder, on one page with what the check of its
bundle says. Numbers are computed from the samples; a bundle that does not hold shows none.
"""

from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from markupsafe import escape
from msgspec.structs import replace

from skipbench.contrib.artifact.claims import check, hardware
from skipbench.contrib.servers.published import benches, runs_of, served
from skipbench.errors import SkipbenchError, printable
from skipbench.metrics.summary import summarise
from skipbench.report.columns import MISSING, inert, main_cells, number, sample_count
from skipbench.report.page import forest
from skipbench.report.page.collect import PageRun
from skipbench.report.page.render import FOLDER, cautions, scripts
from skipbench.report.tables.html import rendered
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import run_folders
from skipbench.runs.run import Run, read_run

CHOSEN = ("model", "hardware", "engine", "method")  # each has a list of its values
NUMBERS = ("speedup", "M", "accepted share", "lossless", "n")
COLUMNS = (
    *("model", "method", "speedup", "hardware", "engine", "dataset"),
    *(*NUMBERS[1:], "date", "bundle", "checked"),
)  # the page keeps the first two in sight
PAGE = "report.html"


def write_registry(folder: Path) -> tuple[Path, list[str]]:
    """Writes the page of a folder of bundles into it; returns its path, and why bundles fail.

    Raises SkipbenchError for a folder without bundles.
    """
    rows = rows_of(folder)
    write_atomic(folder / PAGE, registry_page(rows))
    return folder / PAGE, [row.error for row in rows if row.error]


def rows_of(folder: Path) -> list[PageRun]:
    """A row per run, by bundle; one with the reason for a bundle that does not hold. Raises
    SkipbenchError for a folder without bundles.
    """
    bundles = sorted(path for path in folder.glob("*") if path.is_dir())
    if not bundles:
        raise SkipbenchError(f"{folder} has no bundles; give the folder that their folders are in")
    return [row for bundle in bundles for row in _rows(bundle)]


def registry_page(rows: Sequence[PageRun], home: str | None = None) -> str:
    """The whole document, without an address that a browser loads.

    Args:
        rows: as `rows_of` returns them.
        home: address of the documentation; None for a page alone.
    """
    runs = [(_address(row.cells["bundle"], row.run.method), row.run) for row in rows if row.run]
    sound, known = [row for row in rows if row.run], [run for _, run in runs]
    text = rendered(
        str(Path(__file__).with_name("registry.html.j2")),
        escape,
        runs=rows,
        columns=COLUMNS,
        numeric=NUMBERS,
        linked=False,
        names={name: sorted({row.cells[name] for row in sound}) for name in CHOSEN},
        panels=forest.panels(runs),
        over="vanilla" + ", of servers over the first one of their bench" * any(map(served, known)),
        cautions=cautions(sound),
        failed=[row.error for row in rows if row.error],
        home=home,
        **scripts(FOLDER / "table.js", Path(__file__).with_name("registry.js")),
    )
    return inert(text)


def _address(*words: str) -> str:
    """Of the rows in which these words are."""
    return f"#filter={quote(' '.join(words))}"


def _rows(bundle: Path) -> list[PageRun]:
    name = printable(bundle.name)
    try:
        if bundle.is_symlink():
            raise SkipbenchError("it is a link")
        told = [*check(bundle)]
        if wrong := [text for holds, text in told if not holds]:
            raise SkipbenchError(f"{len(wrong)} of {len(told)} checks fail: {wrong[0]}")
        runs = [_computed(read_run(folder)) for folder in run_folders(bundle)]
        runs += [run for folder in benches(bundle) for run in runs_of(folder)]
        if not runs:
            raise SkipbenchError("it has no runs")
        return [_row(name, run, f"all {len(told)} checks hold") for run in runs]
    except (SkipbenchError, OSError) as error:
        why = printable(f"{name}: {error}")
        cells = dict.fromkeys(COLUMNS, MISSING) | {"bundle": name, "checked": f"FAILS: {error}"}
        return [PageRun(name, cells, {}, {}, why)]


def _computed(run: Run) -> Run:
    """With the numbers of its samples."""
    metrics = summarise(run.samples, run.provenance.layers or 0, None, None, None)
    return replace(run, metrics=metrics)


def _row(bundle: str, run: Run, checked: str) -> PageRun:
    run = replace(run, id=f"{bundle}/{run.id}")
    metrics = run.measured
    measured = main_cells(metrics) | {"n": sample_count(metrics)}
    measured["accepted share"] = number(metrics.accepted_share, 3)
    lossless = metrics.lossless
    engine = ", ".join(filter(None, ("skipbench", run.origin.engine, run.origin.dtype)))
    engine = run.provenance.engine or "" if served(run) else engine
    values = {"speedup": run.speedup, "M": metrics.M, "n": metrics.samples}
    values["accepted share"] = metrics.accepted_share
    values["lossless"] = lossless.identical / lossless.comparable if lossless.comparable else None
    cells = {
        **{name: measured[name] for name in NUMBERS},
        "model": run.model,
        "method": run.method,
        "hardware": hardware(run.provenance),
        "engine": engine,
        "dataset": run.dataset,
        "date": run.origin.date,
        "bundle": bundle,
        "checked": checked,
    }
    sort = {name: value for name, value in values.items() if value is not None}
    return PageRun(str(run.id), cells, sort, {}, run=run)
