"""`report`: one HTML page of all runs, tables and figures in the results folder."""

from skipbench.config.compose import compose
from skipbench.report.console import say


def run(arguments: list[str]) -> None:
    """Writes RESULTS/report.html."""
    from skipbench.report.page.render import write_page

    path, counts = write_page(compose(arguments).results)
    say(f"written: {path} ({', '.join(f'{count} {kind}' for kind, count in counts.items())})")
