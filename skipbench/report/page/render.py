"""The page itself: templates of this folder filled with what was collected."""

import hashlib
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from markupsafe import Markup, escape

from skipbench.errors import SkipbenchError
from skipbench.report.columns import inert
from skipbench.report.definitions import DEFINITIONS, caution
from skipbench.report.page import collect
from skipbench.report.page.collect import Row
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.html import html, rendered
from skipbench.report.tables.stored import stored_table
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import MOST_BYTES, printable, read_bytes

# raised by a table of any other content; a fault of the page itself is not caught
_NO_TABLE = ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError


def write_page(results: Path) -> tuple[Path, dict[str, int], list[str]]:
    """Writes `results/report.html` and returns its path, how many runs, tables and figures are in
    it, and the error of each run that cannot be read.

    Tables are made again from their summaries; a file that cannot be read, or is a link, is named
    and left out. Raises SkipbenchError if there is nothing to show, or the folder is not writable.
    """
    refused: list[str] = []
    runs, features = collect.all_runs(results), feature_tables()
    unstyled = partial(html, styled=False)
    folder = results / "tables"
    tables = _each(folder, "json", lambda data: unstyled(stored_table(data)), refused)
    for path in sorted(folder.glob("*.html")):  # no text of it is used
        if path.stem in features:
            tables[path.stem] = unstyled(feature_table(features[path.stem]))
        elif not path.with_suffix(".json").exists():
            refused.append(
                f"{printable(path.name)} has no {printable(path.stem)}.json to be made from; write "
                "both with the command table"
            )
    # data URIs: nothing in an image runs, and no name in it meets another's
    uri = "data:image/svg+xml;base64,"
    figures = _each(results / "figures", "svg", lambda svg: uri + b64encode(svg).decode(), refused)
    if not (runs or tables or figures or refused):
        raise SkipbenchError(
            f"no runs, tables or figures in {results}; run a cell first, or name a folder "
            "with results="
        )
    path = results / "report.html"
    write_atomic(path, inert(page(runs, dict(sorted(tables.items())), figures, refused)))
    counts = {"runs": len(runs), "tables": len(tables), "figures": len(figures)}
    counts |= {"files refused": len(refused)} if refused else {}
    return path, counts, [run.error for run in runs if run.error]


def page(
    runs: list[Row], tables: dict[str, str], figures: dict[str, str], refused: Sequence[str] = ()
) -> str:
    """The whole document; the same records give the same bytes: no time, no random name.

    Args:
        runs: as `collect.all_runs` returns them.
        tables: title to a fragment of our own HTML; figures: title to a data URI.
        refused: files that are left out, and why.
    """
    has = {column for run in runs for column, text in run.cells.items() if text}
    script = f"\n{Path(__file__).with_name('page.js').read_text(encoding='utf-8')}\n"
    return rendered(
        "page.html.j2",
        escape,
        runs=runs,
        as_script=collect.as_script,
        columns=[c for c in collect.COLUMNS if c not in collect.OPTIONAL or c in has],
        numeric=(*collect.MEASURED, *collect.WAITS),
        names={name: sorted({run.cells[name] for run in runs}) for name in collect.NAMES[:2]},
        tables={title: Markup(text) for title, text in tables.items()},
        figures=figures,
        definitions=DEFINITIONS,
        about=collect.about(runs),
        cautions=_cautions(runs),
        unreadable=[run.error for run in runs if run.error],
        most_texts=collect.MOST_TEXTS,
        refused=refused,
        script=Markup(script),
        # The one script that runs, whatever else gets into the page; in the form of a
        # Content-Security-Policy.
        script_hash=f"sha256-{b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )


def _cautions(runs: Sequence[Row]) -> list[str]:
    """The line on runs that replicate nothing, with their number where there are others."""
    models, datasets = ([run.cells[name] for run in runs] for name in ("model", "dataset"))
    count = sum(bool(caution([m], [d])) for m, d in zip(models, datasets, strict=True))
    of = f"{count} of the {len(runs)} runs: m" if count < len(runs) else "M"
    return [of + text[1:] for text in caution(models, datasets)]


def _each(
    folder: Path, suffix: str, shown: Callable[[bytes], str], refused: list[str]
) -> dict[str, str]:
    """Shows each file, by name; one that cannot be shown is added to `refused`."""
    found = {}
    for path in sorted(folder.glob(f"*.{suffix}")):
        try:
            if (data := read_bytes(path, MOST_BYTES)) is not None:
                found[path.stem] = shown(data)
        except SkipbenchError as error:
            text = printable(str(error))
            refused.append(text if printable(str(path)) in text else printable(f"{path}: {error}"))
        except _NO_TABLE as error:
            kind = type(error).__name__
            refused.append(printable(f"{path}: no table can be made of it ({kind}: {error})"))
    return found
