"""The registry: every run of every bundle in a folder, on one page with what the check of its
bundle says. Numbers are computed from the samples; a bundle that does not hold shows none.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from skipbench.contrib.artifact.claims import check, computed, hardware
from skipbench.errors import SkipbenchError, printable
from skipbench.report.page import document, plots
from skipbench.report.tables.formats import html
from skipbench.report.tables.runs import row_table
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import run_folders
from skipbench.runs.run import Run, read_run

SHOWN = ("speedup", "M", "accepted", "lossless", "n")  # keys of `columns=`
PAGE = "report.html"
ABOUT = (
    "Which method, on which engine: runs that their authors published as bundles. Runs are "
    "compared within a plot alone: one model, dataset, engine and machine, or one bench of "
    "servers. Checked, by bundle --check: every number and interval follows from the records, and "
    "every file has the digest that its bundle names. Not checked: that the seconds were measured "
    "as the provenance says; tokens and rounds can be made again on any machine, and diff finds an "
    "invented record. Of servers, a speedup is over the first one of their bench, and lossless are "
    "the answers that a checkpoint found right, or without one those of the first server."
)


class Bundle(NamedTuple):
    """A bundle with its runs; without any, `checked` says why it does not hold."""

    name: str
    runs: list[Run]
    checked: str


def write_registry(folder: Path) -> tuple[Path, list[str]]:
    """Writes the page of a folder of bundles into it; returns its path, and why bundles fail.

    Raises SkipbenchError for a folder without bundles.
    """
    bundles = bundles_of(folder)
    write_atomic(folder / PAGE, registry_page(bundles))
    return folder / PAGE, [f"{one.name}: {one.checked}" for one in bundles if not one.runs]


def bundles_of(folder: Path) -> list[Bundle]:
    """The bundles in a folder, checked. Raises SkipbenchError for a folder without bundles."""
    found = sorted(path for path in folder.glob("*") if path.is_dir())
    if not found:
        raise SkipbenchError(f"{folder} has no bundles; give the folder that their folders are in")
    return [_bundle(path) for path in found]


def registry_page(bundles: Sequence[Bundle], home: str | None = None) -> str:
    """The whole document, without an address that a browser loads.

    Args:
        home: address of the documentation; None for a page alone.
    """
    links = {"Documentation": home, "Add yours": "contribute-results.html"} if home else {}
    return document(
        "Results",
        {one.name: _table(one) for one in bundles if one.runs},
        plots([run for one in bundles for run in one.runs]),
        {},
        [f"{one.name}: {one.checked}" for one in bundles if not one.runs],
        ABOUT,
        links,
    )


def _table(bundle: Bundle) -> str:
    machines = dict.fromkeys(hardware(run.provenance) for run in bundle.runs)
    notes = [f"checked: {bundle.checked}", f"hardware: {', '.join(machines)}"]
    table = row_table(bundle.runs, SHOWN, bundle.name, notes, f"bundle-{bundle.name}")
    return html(table, styled=False)


def _bundle(folder: Path) -> Bundle:
    name = printable(folder.name)
    try:
        if folder.is_symlink():
            raise SkipbenchError("it is a link")
        checks = [*check(folder)]
        if wrong := [text for holds, text in checks if not holds]:
            raise SkipbenchError(f"{len(wrong)} of {len(checks)} checks fail: {wrong[0]}")
        runs = [computed(read_run(path)) for path in run_folders(folder)]
        if not runs:
            raise SkipbenchError("it has no runs")
        named = [replace(run, id=f"{name}/{run.id}") for run in runs]
        return Bundle(name, named, f"all {len(checks)} checks hold")
    except (SkipbenchError, OSError) as error:
        return Bundle(name, [], printable(str(error)))
