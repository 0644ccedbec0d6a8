"""The formats of a table, and their writers."""

from skipbench.report.tables.csv import csv
from skipbench.report.tables.html import html
from skipbench.report.tables.latex import latex
from skipbench.report.tables.markdown import markdown
from skipbench.report.tables.model import Table

WRITERS = {"md": markdown, "tex": latex, "csv": csv, "html": html}
"""By the suffix of the file."""


def write(table: Table) -> dict[str, str]:
    """The table in every format, by suffix. The same table gives the same bytes."""
    return {suffix: writer(table) for suffix, writer in WRITERS.items()}
