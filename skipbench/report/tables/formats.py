"""The formats of a table, and their writers."""

import io
from csv import DictWriter
from typing import Any

from skipbench.report.columns import inert
from skipbench.report.tables.html import html
from skipbench.report.tables.latex import latex, tabular
from skipbench.report.tables.markdown import markdown
from skipbench.report.tables.model import Table


def csv(table: Table) -> str:
    """The unrounded numbers, a line per record; a missing value is an empty field, and a text that
    a spreadsheet would take for a formula begins with an apostrophe.
    """

    def plain(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        # the writer does not quote a carriage return, and a reader would begin a line there
        formula = value.startswith(("=", "+", "-", "@", "\t", "\r", "\n"))
        return "'" * formula + value.replace("\r", " ")

    names = dict.fromkeys(name for record in table.records for name in record)
    out = io.StringIO()
    writer = DictWriter(out, list(names), lineterminator="\n")
    writer.writerow({name: plain(name) for name in names})
    writer.writerows({k: plain(v) for k, v in record.items()} for record in table.records)
    return out.getvalue()


WRITERS = {"md": markdown, "tex": latex, "tabular.tex": tabular, "csv": csv, "html": html}
"""Writers by the suffix of the file."""


def write(table: Table) -> dict[str, str]:
    """The table in every format, by suffix. The same table gives the same bytes."""
    return {suffix: inert(writer(table)) for suffix, writer in WRITERS.items()}
