"""The page itself: templates of this folder filled with what was collected."""

import base64
import re
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from skipbench.errors import SkipbenchError
from skipbench.report.definitions import DEFINITIONS, caution
from skipbench.report.page.collect import COLUMNS, MEASURED, MOST_TEXTS, NAMES, all_runs, as_script
from skipbench.runs.files import write_atomic


def write_page(results: Path) -> tuple[Path, dict[str, int]]:
    """Writes `results/report.html` and returns its path and how many runs, tables and figures are in it.

    Raises:
        SkipbenchError: there is nothing to show, or the folder is not writable.
    """
    runs, tables, figures = all_runs(results), _tables(results / "tables"), _figures(results / "figures")
    if not (runs or tables or figures):
        raise SkipbenchError(
            f"no runs, tables or figures in {results}; run a cell first, or name a folder with results="
        )
    path = results / "report.html"
    try:
        write_atomic(path, page(runs, tables, figures))
    except OSError as error:
        raise SkipbenchError(f"cannot write {path}: {error}; free some space or make the folder writable") from error
    return path, {"runs": len(runs), "tables": len(tables), "figures": len(figures)}


def page(runs: list[dict[str, Any]], tables: dict[str, str], figures: dict[str, str]) -> str:
    """The whole document. The same records give the same bytes: no time and no random name is in it.

    Args:
        runs: as `collect.all_runs` returns them.
        tables: title to a fragment of HTML; figures: title to a data URI.
    """
    here = files("skipbench.report.page")
    environment = Environment(
        loader=DictLoader({"page": (here / "page.html.j2").read_text(encoding="utf-8")}),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    return environment.get_template("page").render(
        runs=[run | {"json": Markup(as_script(run["detail"]))} for run in runs],
        columns=COLUMNS,
        numeric=MEASURED,
        names={name: sorted({run["cells"][name] for run in runs}) for name in NAMES[:2]},
        tables={title: Markup(text) for title, text in tables.items()},
        figures=figures,
        definitions=DEFINITIONS,
        caution=caution([r["cells"]["model"] for r in runs], [r["cells"]["dataset"] for r in runs]),
        most_texts=MOST_TEXTS,
        style=Markup((here / "style.css").read_text(encoding="utf-8")),
        script=Markup((here / "page.js").read_text(encoding="utf-8")),
    )


def _tables(folder: Path) -> dict[str, str]:
    """The tables that `skipbench table` wrote: of a whole document its body, without anything that runs or loads."""
    found = {}
    for path in sorted(folder.glob("*.html")):
        text = path.read_text(encoding="utf-8", errors="replace")
        body = re.search(r"<body[^>]*>(.*)</body>", text, re.S | re.I)
        text = body[1] if body else text
        text = re.sub(r"<(script|style|iframe|object)\b.*?</\1\s*>", "", text, flags=re.S | re.I)
        text = re.sub(r"<(link|meta|base|img|embed|script)\b[^>]*>", "", text, flags=re.I)
        text = re.sub(r"\s(on\w+|href|src|id)\s*=\s*(\"[^\"]*\"|'[^']*'|[^\s>]+)(?=[^<]*>)", "", text, flags=re.I)
        found[path.stem] = text
    return found


def _figures(folder: Path) -> dict[str, str]:
    """As data URIs in an image: names inside one figure cannot meet those of another, and nothing in it runs."""
    return {
        path.stem: "data:image/svg+xml;base64," + base64.b64encode(path.read_bytes()).decode()
        for path in sorted(folder.glob("*.svg"))
    }
