"""Writes the numbers of a table as CSV, unrounded."""

import csv as stdlib_csv
import io
from typing import Any

from skipbench.report.tables.model import Table

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")


def csv(table: Table) -> str:
    """A line per record below the names of all columns; a missing value is an empty field.

    A text that a spreadsheet would take for a formula begins with an apostrophe.
    """
    names = dict.fromkeys(name for record in table.records for name in record)
    out = io.StringIO()
    writer = stdlib_csv.DictWriter(out, list(names), lineterminator="\n")
    writer.writerow({name: _inert(name) for name in names})
    writer.writerows({k: _inert(v) for k, v in record.items()} for record in table.records)
    return out.getvalue()


def _inert(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    # the writer does not quote it, and a reader would begin a line there
    text = value.replace("\r", " ")
    return f"'{text}" if value.startswith(_FORMULA) else text
