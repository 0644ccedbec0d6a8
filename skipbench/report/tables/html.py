"""Writes a table as a piece of HTML for any page: no scripts, nothing that is loaded, wide grids
scroll in their own box.
"""

from html import escape
from pathlib import Path

from skipbench.report.tables.model import Table
from skipbench.report.tables.template import rendered


def html(table: Table, styled: bool = True) -> str:
    """A `<section>` with the grids and everything that stands below them; without `styled`, for a
    page with a style of its own.
    """
    return rendered(Path(__file__).with_name("table.html.j2"), escape, table=table, styled=styled)
