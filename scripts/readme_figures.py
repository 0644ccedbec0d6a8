"""Renders the committed tables again, and writes their figures into the documents: into README.md
those of results/laptop/tables/real.md, between the marks there, and into `PAGES` the columns that a
block names.

python scripts/readme_figures.py
"""

import argparse
import re
from pathlib import Path

from skipbench.report.tables.formats import write
from skipbench.report.tables.stored import read_summary, table_of

ROOT = Path(__file__).resolve().parent.parent
STORED = sorted((ROOT / "results").glob("*/tables/*.json"))
README, TABLE = ROOT / "README.md", ROOT / "results" / "laptop" / "tables" / "real.md"
PAGES = [README, *(ROOT / "docs" / name for name in ("auto.md", "gpu.md", "methods/int8.md"))]
BLOCK = re.compile(
    r"(<!-- table (?P<table>\S+) (?P<model>\S+): (?P<columns>[^\n]+?) -->\n)"
    r".*?(<!-- /table -->\n)",
    re.DOTALL,
)
"""`<!-- table PATH MODEL: COLUMN, COLUMN -->`: rows of a model in a table below `results`."""
MARKED = re.compile(r"(<!-- real -->\n).*?(<!-- /real -->\n)", re.DOTALL)
METHODS = {
    "vanilla": "vanilla again",
    **{name: f"`{name}`" for name in ("auto", "prompt-lookup")},
    **{name: f"`{name}`" for name in ("self-sd", "swift", "clasp", "knapspec")},
}
NO_SET = {"vanilla", "auto", "prompt-lookup"}
MODELS = {"smollm2-135m-q4_1": "SmolLM2 in 4 bits"}


def filled(page: str) -> str:
    """The text of a page with the figures of its blocks."""

    def block(marks: re.Match[str]) -> str:
        table = (ROOT / "results" / marks["table"]).read_text()
        names = marks["columns"].split(", ")
        lines = [f"| {' | '.join(names)} |", "|---" * len(names) + "|"]
        for run in runs_of(table):
            if run["model"] == marks["model"]:
                lines.append(f"| {' | '.join(run.get(name, '') for name in names)} |")
        return "".join(f"{line}\n" for line in [marks[1][:-1], *lines, marks[5][:-1]])

    return BLOCK.sub(block, page)


def runs_of(table: str) -> list[dict[str, str]]:
    """The first grid of a table in Markdown, by column."""
    first = table[table.index("\n| ") :].strip().partition("\n\n")[0]
    rows = [_cells(line) for line in first.splitlines() if line.startswith("| ")]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def written(readme: str, table: str) -> str:
    """The text of README with the figures of the table."""
    runs = runs_of(table)
    lines = [f"| | {' | '.join(METHODS.values())} |", "|---" * (len(METHODS) + 1) + "|"]
    for model, name in MODELS.items():
        # a note with an equals sign is of a variant of the method
        by_method = {
            run["method"]: run
            for run in reversed(runs)
            if run["model"] == model and not re.match(r"\S+=", run["note"])
        }
        shown = [by_method[m]["speedup"] if m in by_method else "" for m in METHODS]
        n = next(iter(by_method.values()))["n"]
        lines.append(f"| {name}, n = {n} | {' | '.join(shown)} |")
        skips = [by_method[m]["skipped"] if m in {*by_method} - NO_SET else "" for m in METHODS]
        lines.append(f"| share of sub-layers skipped | {' | '.join(skips)} |")
    made = "".join(f"{line}\n" for line in lines)
    text, count = MARKED.subn(lambda marks: f"{marks[1]}{made}{marks[2]}", readme)
    assert count == 1, "README.md: no <!-- real --> with its <!-- /real -->"
    return text


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for path in STORED:
        made = write(table_of(read_summary(path)))
        for suffix in ("md", "csv"):  # all.csv can be made of the summary beside them
            path.with_suffix(f".{suffix}").write_text(made[suffix])
    README.write_text(written(README.read_text(), TABLE.read_text()))
    for page in PAGES:
        page.write_text(filled(page.read_text()))
