"""`bundle`: a results folder to publish, and the check of one."""

import json
from pathlib import Path

from skipbench.cli.commands import Bundle
from skipbench.console import say, show
from skipbench.report.bundle.claims import check


def run_bundle(asked: Bundle) -> None:
    """Writes a bundle; with `--check` prints a line per claim, and exits with 1 if one fails."""
    folder = Path(asked.words[0])
    if not asked.check:
        from skipbench.report.bundle.write import write_bundle

        runs, claims = write_bundle(folder, asked.results)
        say(f"written: {folder} ({runs} runs, {claims} claims)")
        return
    failed = 0
    for holds, text in check(folder):
        failed += not holds
        if asked.json:
            show(json.dumps({"holds": holds, "text": text}))
        else:
            show(f"{'holds' if holds else 'FAILS'}  {text}")
    if failed:
        say(f"{failed} do not hold")
        raise SystemExit(1)
