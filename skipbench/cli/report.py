"""`report`: one HTML page of all runs, tables and figures in the results folder."""

import sys
from collections.abc import Sequence

from skipbench.cli.commands import Report
from skipbench.cli.parser import parse
from skipbench.config.compose import compose
from skipbench.console import complain, say


def run(arguments: Sequence[str]) -> None:
    """Writes RESULTS/report.html.

    Raises:
        SystemExit: 1, when runs cannot be read; the page is written, and they are named.
    """
    from skipbench.report.page.render import write_page

    path, counts, unreadable = write_page(compose(parse(Report, arguments).settings).results)
    say(f"written: {path} ({', '.join(f'{count} {kind}' for kind, count in counts.items())})")
    if unreadable:
        many = f"{len(unreadable)} of {counts['runs']} runs cannot be read"
        complain(f"{many}: {'; '.join(unreadable)}")
        sys.exit(1)
