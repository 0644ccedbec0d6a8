"""`check`: the contract of a method."""

import sys

from skipbench.cli.commands import Check
from skipbench.config.compose import compose
from skipbench.console import show
from skipbench.errors import SkipbenchError


def run_check(asked: Check) -> None:
    """Prints a line per property, and what to do where one is broken, which exits with 1."""
    if not any(word.startswith("method=") for word in asked.settings):
        raise SkipbenchError(f"check {Check.NEEDS}")
    method = compose(asked.settings).method
    from skipbench.bench.check_method import check_method

    broken = 0
    for name, fault, advice in check_method(method.factory()):
        if fault is None:
            show(f"ok      {name}")
            continue
        broken += 1
        show(f"FAILED  {name}: {fault}\n        {advice}")
    show(f"{method.name}: {broken or 'no'} propert{'y' if broken == 1 else 'ies'} broken")
    if broken:
        sys.exit(1)
