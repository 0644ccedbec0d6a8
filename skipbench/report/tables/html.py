"""Writes a table as HTML without scripts or links; renders the templates of tables and page."""

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from skipbench.report.tables.model import Table

FOLDER = Path(__file__).parent


def html(table: Table, styled: bool = True) -> str:
    """A `<section>`; without `styled`, for a page with a style of its own."""
    return rendered("table.html.j2", escape, table=table, styled=styled)


def rendered(name: str, escape: Callable[[str], str], **values: Any) -> str:
    """A template with these values: a name here or of the page, or the path of another.

    `escape` applies to every text but those of `Markup`.
    """
    environment = Environment(
        *("<%", "%>", "<<", ">>"),
        loader=FileSystemLoader([FOLDER, FOLDER.parent, Path(name).parent]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=lambda v: escape(v) if isinstance(v, str) and not isinstance(v, Markup) else v,
    )
    return environment.get_template(Path(name).name).render(values)
