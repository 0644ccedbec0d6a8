"""The page itself: templates of this folder filled with what was collected."""

import hashlib
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from markupsafe import Markup, escape

from skipbench.errors import SkipbenchError, printable
from skipbench.report.columns import inert
from skipbench.report.definitions import DEFINITIONS, caution
from skipbench.report.page import collect, forest
from skipbench.report.page.collect import PageRun
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.html import html, rendered
from skipbench.report.tables.stored import read_summary, table_of
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import MOST_BYTES, read_bytes
from skipbench.runs.run import Run

FOLDER = Path(__file__).parent
SHOWN = ("runs", "tables", "figures")
WATCH_S = 5.0  # between two looks at the folder
Written = tuple[Path, dict[str, int], list[str]]
T = TypeVar("T")
# raised by a table of any other content; a fault of the page itself is not caught
_NO_TABLE = ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError


def write_page(results: Path, live: bool = False) -> Written:
    """Writes `results/report.html`; returns its path, how many runs, tables and figures are in it,
    and the error of each run that cannot be read. Other unreadable files are named and left out.
    Raises SkipbenchError if there is nothing to show, or the folder is not writable.
    """
    refused: list[str] = []
    runs, features = collect.all_runs(results), feature_tables()
    unstyled = partial(html, styled=False)
    folder = results / "tables"
    made = _each(folder, "json", _stored, refused)
    tables = {name: text for name, (text, _) in made.items()}
    others = [(f"#table-{name}", run) for name, (_, runs) in made.items() for run in runs]
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
    figures = dict[str, str]()
    for folder in (results / "figures", *sorted(results.glob("runs/*/figures"))):
        own = _each(folder, "svg", lambda svg: uri + b64encode(svg).decode(), refused)
        of_run = f"{folder.parent.name}: " if folder.parent != results else ""
        figures |= {of_run + name: address for name, address in own.items()}
    if not (runs or tables or figures or refused):
        raise SkipbenchError(
            f"no runs, tables or figures in {results}; run a cell first, or name a folder "
            "with results="
        )
    path = results / "report.html"
    text = page(runs, dict(sorted(tables.items())), figures, refused, others, live)
    write_atomic(path, inert(text))
    counts = {"runs": len(runs), "tables": len(tables), "figures": len(figures)}
    counts |= {"files refused": len(refused)} if refused else {}
    return path, counts, [run.error for run in runs if run.error]


def watched(results: Path, pause: Callable[[float], None]) -> Iterator[Written]:
    """Writes a live page now, and after each `pause` (of so many seconds) in which a run, table or
    figure has changed; at the end one that is not live.
    """
    before = None
    try:
        while True:
            files = (path for name in SHOWN for path in (results / name).rglob("*.*"))
            now = {path: path.stat().st_mtime_ns for path in files if path.is_file()}
            began = time.process_time()
            if now != before:
                yield write_page(results, live=True)
            before = now
            pause(max(WATCH_S, 20 * (time.process_time() - began)))
    finally:
        write_page(results)


def _stored(text: bytes) -> tuple[str, list[Run]]:
    """A stored table as HTML, and its runs."""
    stored = read_summary(text)
    table = table_of(stored)
    own = tuple(pair for pair in table.definitions if DEFINITIONS.get(pair[0]) != pair[1])
    return html(replace(table, definitions=own), styled=False), stored.runs


def page(
    runs: list[PageRun],
    tables: dict[str, str],
    figures: dict[str, str],
    refused: Sequence[str] = (),
    others: Sequence[tuple[str, Run]] = (),
    live: bool = False,
) -> str:
    """The whole document; the same records give the same bytes: no time, no random name.

    Args:
        runs: as `collect.all_runs` returns them.
        tables: title to a fragment of our own HTML; figures: title to a data URI.
        refused: files that are left out, and why.
        others: runs of the tables, each behind its address.
        live: it loads itself again.
    """
    own = [(f"#run={quote(run.id, safe='')}", run.run) for run in runs if run.run]
    has = {column for run in runs for column, text in run.cells.items() if text}
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
        panels=forest.panels([*own, *others]),
        live=live,
        cautions=cautions(runs),
        unreadable=[run.error for run in runs if run.error],
        most_texts=collect.MOST_TEXTS,
        refused=refused,
        linked=True,
        **scripts(FOLDER / "table.js", FOLDER / "page.js"),
    )


def scripts(*files: Path) -> dict[str, str]:
    """These files as the one `script` that runs, whatever else gets into the page, and its
    `script_hash` in the form of a Content-Security-Policy.
    """
    text = "\n".join(["", *(path.read_text(encoding="utf-8") for path in files)])
    digest = b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return {"script": Markup(text), "script_hash": f"sha256-{digest}"}


def cautions(runs: Sequence[PageRun]) -> list[str]:
    """The line on runs that replicate nothing, with their number where there are others."""
    models, datasets = ([run.cells[name] for run in runs] for name in ("model", "dataset"))
    count = sum(bool(caution([m], [d])) for m, d in zip(models, datasets, strict=True))
    of = f"{count} of the {len(runs)} runs: m" if count < len(runs) else "M"
    return [of + text[1:] for text in caution(models, datasets)]


def _each(
    folder: Path, suffix: str, shown: Callable[[bytes], T], refused: list[str]
) -> dict[str, T]:
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
