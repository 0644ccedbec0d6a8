"""`doctor`: what this machine can run, and what is missing for more."""

from skipbench.config.catalog import known_models
from skipbench.config.compose import compose
from skipbench.report.console import show


def run(arguments: list[str]) -> None:
    """Prints one line per finding: `ok`, `note` or `missing`."""
    from skipbench.bench.doctor import findings

    for line in findings(compose(arguments).results, known_models()):
        show(line)
