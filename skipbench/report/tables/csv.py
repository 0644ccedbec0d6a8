"""Writes the numbers of a table as CSV, unrounded."""

import csv as stdlib_csv
import io

from skipbench.report.tables.model import Table


def csv(table: Table) -> str:
    """A line per record below the names of all columns; a missing value is an empty field."""
    names = dict.fromkeys(name for record in table.records for name in record)
    out = io.StringIO()
    writer = stdlib_csv.DictWriter(out, list(names), lineterminator="\n")
    writer.writeheader()
    writer.writerows(table.records)
    return out.getvalue()
