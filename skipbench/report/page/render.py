"""The page itself: templates of this folder filled with what was collected."""

import base64
import hashlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from skipbench.errors import SkipbenchError
from skipbench.report.definitions import DEFINITIONS, caution
from skipbench.report.page.collect import (
    COLUMNS,
    MEASURED,
    MOST_TEXTS,
    NAMES,
    OPTIONAL,
    WAITS,
    about,
    all_runs,
    as_script,
    unreadable,
)
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.html import html
from skipbench.report.tables.stored import stored_table
from skipbench.runs.files import write_atomic
from skipbench.runs.reading import MOST_BYTES, printable, read_bytes


def write_page(results: Path) -> tuple[Path, dict[str, int], list[str]]:
    """Writes `results/report.html` and returns its path, how many runs, tables and figures are in
    it, and what is wrong with each run that cannot be read.

    Tables are made again from their summaries; a file that cannot be read, or is a link, is named
    and left out.

    Raises:
        SkipbenchError: there is nothing to show, or the folder is not writable.
    """
    refused: list[str] = []
    runs, features = all_runs(results), feature_tables()
    in_style_of_page = partial(html, styled=False)
    tables = _each(
        results / "tables", "json", lambda d: in_style_of_page(stored_table(d.decode())), refused
    )
    for path in sorted((results / "tables").glob("*.html")):  # no text of it is used
        if path.stem in features:
            tables[path.stem] = in_style_of_page(feature_table(features[path.stem]))
        elif not path.with_suffix(".json").exists():
            named = printable(path.name)
            refused.append(
                f"{named} has no {printable(path.stem)}.json to be made from; write both "
                "with the command table"
            )
    figures = _each(results / "figures", "svg", _as_image, refused)
    if not (runs or tables or figures or refused):
        raise SkipbenchError(
            f"no runs, tables or figures in {results}; run a cell first, or name a folder "
            "with results="
        )
    path = results / "report.html"
    write_atomic(path, page(runs, dict(sorted(tables.items())), figures, refused))
    counts = {"runs": len(runs), "tables": len(tables), "figures": len(figures)}
    counts |= {"files refused": len(refused)} if refused else {}
    return path, counts, unreadable(runs)


def page(
    runs: list[dict[str, Any]],
    tables: dict[str, str],
    figures: dict[str, str],
    refused: Sequence[str] = (),
) -> str:
    """The whole document. The same records give the same bytes: no time and no random name is in
    it.

    Args:
        runs: as `collect.all_runs` returns them.
        tables: title to a fragment of our own HTML; figures: title to a data URI.
        refused: what is left out, and why.
    """
    here = files("skipbench.report.page")
    script = f"\n{(here / 'page.js').read_text(encoding='utf-8')}\n"
    environment = Environment(
        loader=DictLoader({"page": (here / "page.html.j2").read_text(encoding="utf-8")}),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page").render(
        runs=[run | {"json": Markup(as_script(run["detail"]))} for run in runs],
        columns=[c for c in COLUMNS if c not in OPTIONAL or any(r["cells"][c] for r in runs)],
        numeric=(*MEASURED, *WAITS),
        names={name: sorted({run["cells"][name] for run in runs}) for name in NAMES[:2]},
        tables={title: Markup(text) for title, text in tables.items()},
        figures=figures,
        definitions=DEFINITIONS,
        about=about(runs),
        caution=_caution(runs),
        unreadable=unreadable(runs),
        most_texts=MOST_TEXTS,
        style=Markup((here / "style.css").read_text(encoding="utf-8")),
        refused=refused,
        script=Markup(script),
        # The one script that runs, whatever else gets into the page; in the form of a
        # Content-Security-Policy.
        script_hash=f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}",
    )


def _caution(runs: Sequence[Mapping[str, Any]]) -> str | None:
    """The line on runs that replicate nothing, with their number where there are others."""
    cells = [run["cells"] for run in runs]
    each = [caution([cell["model"]], [cell["dataset"]]) for cell in cells]
    whole = caution([cell["model"] for cell in cells], [cell["dataset"] for cell in cells])
    count = sum(text is not None for text in each)
    if whole is None or count == len(runs):
        return whole
    return f"{count} of the {len(runs)} runs: {whole[0].lower()}{whole[1:]}"


def _each(
    folder: Path, suffix: str, shown: Callable[[bytes], str], refused: list[str]
) -> dict[str, str]:
    """Shows each file, by name; one that cannot be shown is added to `refused`."""
    found = {}
    for path in sorted(folder.glob(f"*.{suffix}")):
        try:
            data = read_bytes(path, MOST_BYTES)
            if data is not None:
                found[path.stem] = shown(data)
        except SkipbenchError as error:
            text = printable(str(error))
            refused.append(text if printable(str(path)) in text else printable(f"{path}: {error}"))
        # a table of any other content
        except (
            ValueError,
            TypeError,
            LookupError,
            AttributeError,
            ArithmeticError,
            RecursionError,
        ) as error:
            kind = type(error).__name__
            refused.append(printable(f"{path}: no table can be made of it ({kind}: {error})"))
    return found


def _as_image(data: bytes) -> str:
    """A data URI: names inside one figure cannot meet those of another, and in an image nothing
    runs.
    """
    return "data:image/svg+xml;base64," + base64.b64encode(data).decode()
