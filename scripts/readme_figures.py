"""Renders the committed tables again, and writes the speedups of `PLACES` into README.md, between
the marks there.

python scripts/readme_figures.py
"""

import argparse
import re
from pathlib import Path

from skipbench.report.tables.formats import write
from skipbench.report.tables.stored import read_summary, table_of

ROOT = Path(__file__).resolve().parent.parent
STORED = sorted((ROOT / "results").glob("*/tables/*.json"))
README = ROOT / "README.md"
SPEEDUPS = re.compile(r"(<!-- speedups -->\n).*?(<!-- /speedups -->\n)", re.DOTALL)
METHODS = {"vanilla": "vanilla again"} | {
    name: f"`{name}`" for name in ("prompt-lookup", "auto", "self-sd", "swift", "clasp", "knapspec")
}
PLACES = {
    "[H100, chat](results/gpu/h100-80gb/smollm2-bfloat16.md)": "gpu/h100-80gb/smollm2-bfloat16.md",
    "[CPU, chat](results/laptop/tables/head-to-head.md)": "laptop/tables/head-to-head.md",
    "[CPU, code](results/laptop/tables/real.md)": "laptop/tables/real.md",
    "[CPU, planted](results/laptop/tables/planted.md)": "laptop/tables/planted.md",
}
"""The rows of README's table: what they are called there, and tables of one model each."""


def filled(readme: str) -> str:
    """The text of README with today's figures."""
    return SPEEDUPS.sub(lambda marks: f"{marks[1]}{speedups()}{marks[2]}", readme)


def speedups() -> str:
    """README's table: the speedup of each method in each place, a dash where it did not run."""
    lines = [f"| | {' | '.join(METHODS.values())} |", "|---" * (len(METHODS) + 1) + "|"]
    for name, table in PLACES.items():
        by_method = {run["method"]: run["speedup"] for run in runs_of(table)}
        shown = [by_method.get(method, "-") for method in METHODS]
        lines.append(f"| {' | '.join([name, *shown])} |")
    return "".join(f"{line}\n" for line in lines)


def runs_of(table: str) -> list[dict[str, str]]:
    """The first grid of a table in Markdown below `results`, by column."""
    text = (ROOT / "results" / table).read_text()
    first = text[text.index("\n| ") :].strip().partition("\n\n")[0]
    rows = [_cells(line) for line in first.splitlines() if line.startswith("| ")]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for path in STORED:
        made = write(table_of(read_summary(path)))
        for suffix in ("md", "csv"):  # all.csv can be made of the summary beside them
            path.with_suffix(f".{suffix}").write_text(made[suffix])
    README.write_text(filled(README.read_text()))
