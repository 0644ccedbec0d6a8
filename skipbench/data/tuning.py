"""Prompts on which settings are chosen, disjoint from every dataset that results are reported on:
summaries of docstrings, questions, code to go on with, code to edit, and sums.

Docstrings and code are from packages of Python 3.11's standard library (PSF licence):
`stdlib-code` reads only its single modules, and `pydoc-summary` only the language reference.
"""

from pathlib import Path

from skipbench.data.rows import Example, read_file, sample_rows

FILE = Path(__file__).with_name("tuning.jsonl")


def tuning(size: int | None, seed: int, shuffle: bool) -> list[Example]:
    """The 60 rows, their kinds in turns, grouped by the `task`. Arguments are those of
    `sample_rows`.
    """
    found = read_file(FILE, {"id": str, "task": str, "prompt": str})
    rows = [Example(row["id"], row["prompt"], groups={"task": row["task"]}) for row in found]
    return sample_rows(rows, size, seed, shuffle)
