"""`method=A,B,C`: a row of several methods, which take turns on every prompt."""

import re
import sys
from collections.abc import Sequence

from skipbench.config.compose import compose
from skipbench.console import complain, is_json, show
from skipbench.errors import reason_of
from skipbench.experiments.cell import resolve_cell
from skipbench.experiments.row import failure_of, run_row, show_run
from skipbench.experiments.table_runs import run_entry
from skipbench.report.tables.formats import for_terminal
from skipbench.report.tables.runs import row_table
from skipbench.runs.run import Run

SEVERAL = re.compile(r"method=([\w.-]+(?:,[\w.-]+)+)")


def methods_of(overrides: Sequence[str]) -> list[str]:
    """The methods of `method=A,B,C`; empty where one is chosen."""
    found = [match for word in overrides if (match := SEVERAL.fullmatch(word))]
    return list(dict.fromkeys(found[-1][1].split(","))) if found else []


def run_methods(methods: Sequence[str], overrides: Sequence[str]) -> None:
    """Runs what is missing of a row, and prints its table; exits with 1 where a method failed."""
    rest = [word for word in overrides if not SEVERAL.fullmatch(word)]
    configs = [compose([*rest, f"method={name}"]) for name in methods]
    runs, failed = list[Run](), dict[str, Exception]()
    for config, outcome in zip(configs, run_row(configs), strict=True):
        error = failure_of(outcome) if isinstance(outcome, Run) else outcome
        if error is not None:
            failed[config.method.name] = error
        if isinstance(outcome, Run):
            if outcome.metrics is not None:
                runs.append(run_entry(resolve_cell(config)))
            if is_json() or outcome.metrics is None:
                show_run(outcome)
    if runs and not is_json():
        show(for_terminal(row_table(runs)))
    for name, error in failed.items():
        complain(f"failed: {name}: {reason_of(error)}")
    if failed:
        sys.exit(1)
