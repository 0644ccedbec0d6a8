"""`bundle`: results to publish, and their check."""

from pathlib import Path
from typing import Annotated

from skipbench.cli.command import Command
from skipbench.console import say, show


class Bundle(Command):
    """a results folder to publish, with claims that anybody can compute again:  bundle OUT
    results=FOLDER | bundle --check OUT | bundle --page FOLDER
    """

    SETTINGS = False
    WORDS = 1, 1
    NEEDS = "needs a folder to write, or with --check one that was written: bundle OUT results=DIR"
    results: Annotated[Path, "the results folder"] = Path("results")
    check: Annotated[bool, "computes every claim of OUT again from its samples"] = False
    page: Annotated[bool, "writes a page of all bundles in this folder, checked"] = False


def run_bundle(asked: Bundle) -> None:
    """Writes a bundle; with `--check` prints a line per claim, with `--page` writes the page of all
    bundles in a folder. Exits with 1 if a check fails.
    """
    from skipbench.contrib.artifact.claims import check

    folder = Path(asked.words[0])
    if asked.page:
        from skipbench.contrib.artifact.registry import write_registry

        path, wrong = write_registry(folder)
        say("\n".join([f"written: {path}", *wrong]))
        if wrong:
            raise SystemExit(1)
        return
    if not asked.check:
        from skipbench.contrib.artifact.write import write_bundle

        runs, claims = write_bundle(folder, asked.results)
        say(f"written: {folder} ({runs} runs, {claims} claims)")
        return
    failed = 0
    for holds, text in check(folder):
        failed += not holds
        show(f"{'holds' if holds else 'FAILS'}  {text}")
    if failed:
        say(f"{failed} do not hold")
        raise SystemExit(1)
