"""Writes the speedups of results/laptop/tables/real.md into README.md, between the marks there.

python scripts/readme_figures.py
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
README, TABLE = ROOT / "README.md", ROOT / "results" / "laptop" / "tables" / "real.md"
MARKED = re.compile(r"(<!-- real -->\n).*?(<!-- /real -->\n)", re.DOTALL)
METHODS = {
    "vanilla": "vanilla again",
    **{name: f"`{name}`" for name in ("auto", "prompt-lookup")},
    "fixed": "the known set",
    **{name: f"`{name}`" for name in ("self-sd", "swift", "clasp", "knapspec")},
}
MODELS = {"smollm2-135m": "SmolLM2", "smollm2-135m-deep": "with redundant layers"}


def written(readme: str, table: str) -> str:
    """The text of README with the figures of the table."""
    rows = [_cells(line) for line in table.splitlines() if line.startswith("| ")]
    runs = [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]
    lines = [f"| | {' | '.join(METHODS.values())} |", "|---" * (len(METHODS) + 1) + "|"]
    for model, name in MODELS.items():
        # a note with an equals sign is of a variant of the method
        by_method = {
            run["method"]: run
            for run in reversed(runs)
            if run["model"].replace("-q4_1", "") == model and not re.match(r"\S+=", run["note"])
        }
        shown = [by_method[m]["speedup"] if m in by_method else "" for m in METHODS]
        n = next(iter(by_method.values()))["n"]
        lines.append(f"| {name}, n = {n} | {' | '.join(shown)} |")
    made = "".join(f"{line}\n" for line in lines)
    text, count = MARKED.subn(lambda marks: f"{marks[1]}{made}{marks[2]}", readme)
    assert count == 1, "README.md: no <!-- real --> with its <!-- /real -->"
    return text


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


if __name__ == "__main__":
    README.write_text(written(README.read_text(), TABLE.read_text()))
