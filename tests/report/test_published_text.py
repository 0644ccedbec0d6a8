"""The papers' numbers, read again from the papers' text where that folder is at hand: each table in
order, number by number.
"""

import functools
import re
from typing import Any

import pytest
import yaml
from conftest import SHARED

from skipbench.report.published import FOLDER, papers

NEEDS_TEXT = pytest.mark.skipif(
    not (SHARED / "papers").is_dir(),
    reason="the folder of the papers' text is not beside this checkout",
)
# paper, table: how its first line with numbers starts, how many lines there are, and the order in
# which the text has them
ROWS, COLUMNS, ANY = "row by row", "column by column", "in any order"
PLACES = {
    ("swift", "table2"): ("| LLaMA-2-13B      | VANILLA   | 1.00   | 1.00", 12, ROWS),
    ("swift", "table3"): ("| HumanEval (pass@1)  | VANILLA | 1.00          |", 4, ROWS),
    ("swift", "table4"): ("| LLaMA-2-13B          | VANILLA", 6, ROWS),
    ("swift", "table5"): (("| LLaMA-2-70B          | VANILLA | 1.00   | -        | 1.00\u00d7      "
        "  |"), 8, ROWS),
    ("swift", "table6"): ("| Yi-34B      | VANILLA", 4, ROWS),
    ("swift", "table7"): ("| HumanEval (pass@1)  | VANILLA | 1.00     |", 4, ROWS),
    ("swift", "table8"): ("| Vanilla                   | 1.0", 5, ROWS),
    ("swift", "table9"): ("| 16       | 3.91", 4, ROWS),
    ("swift", "table10"): ("| LAYERSKIP                      | ✗", 4, ROWS),
    ("swift", "table12"): ("| SELF-SD                                     | -", 5, ROWS),
    ("clasp", "table1"): ("<b>Greedy Setting: Temperature=0</b>", 26, ROWS),
    ("knapspec", "table2"): ("AR 19.65", 23, ROWS),
    ("self-sd", "table1"): ("LLaMA-2-13B\tAutoregressive\t0.0", 12, ROWS),
    ("self-sd", "table2"): ("CodeLLaMA-13B\tAutoreg.\tpass@1\t", 4, ROWS),
    ("self-sd", "table3"): ("K\t2\t4\t6\t8\tAdaptive", 4, COLUMNS),
    ("self-sd", "table4"): (r"$\overline{\gamma}$	0.2", 4, COLUMNS),
    ("self-sd", "table5"): ("Drafting\t-\t", 10, ANY),
    ("self-sd", "table6"): ("\u03b1\t0.20", 2, COLUMNS),
    ("self-sd", "table7"): ("CNN/DM\tLLaMA-2-13B\t512", 10, ROWS),
    ("self-sd", "table8"): ("ROUGE-2\t0.108\t0.108\t0.107\t0.107\t\n", 3, COLUMNS),
    ("self-sd", "table9"): ("#Iteration\t200", 4, COLUMNS),
    ("self-sd", "table10"): ("#Token\t0", 2, ANY),
    ("self-sd", "table11"): ("K\t10\t12", 4, COLUMNS),
    ("self-sd", "table12"): ("ROUGE-2↑\t0.107\t0.105", 5, COLUMNS),
    ("self-sd", "table13"): ("ROUGE-2↑\t0.107\t0.114", 5, COLUMNS),
    ("self-sd", "table14"): ("GSM8K\tCodeLLaMA-13B\tAutoreg.", 6, ROWS),
    ("self-sd", "table15"): (
        "CodeLLaMA-13B\tAutoreg.\tpass@10\t0.659\t1.000\u00d7\n"
        "CodeLLaMA-13B\tSelf-Spec.\tpass@10\t0.659\t$1.345", 4, ROWS,
    ),
    ("self-sd", "table16"): ("LLaMA-2-13B (ours)", 10, ROWS),
    ("self-sd", "table17"): ("CNN/DM CNN/DM XSum XSum", 1, COLUMNS),
}  # fmt: skip
STRAY = {  # numbers that the text has too much, and those of the file that it has elsewhere
    ("self-sd", "table10"): ([], ["1.15"]),  # in appendix E
    ("self-sd", "table11"): (["0.924"], []),  # twice
    ("self-sd", "table17"): (["0.266", "0.327"], []),  # without their rows
}


def text_of(paper: str) -> str:
    return (SHARED / "papers" / f"{paper}.md").read_text(encoding="utf-8")


def printed(text: str) -> list[str]:
    """The numbers of a table's lines; cells with words are labels."""
    found = []
    for line in text.splitlines():
        markup = r"</?(?:b|i|math)>|\\times|\\pm|\\text|\\mu|[${}\u00d7%~*±]"
        plain = re.sub(markup, " ", line)
        plain = re.sub(r"\(L=\S+ layers\)", " ", plain)
        cells = re.split(r"[|\t]", plain) if re.search(r"[|\t]", plain) else plain.split()
        for cell in cells:
            words = re.sub(r"(?<=\d)M\b|\b(?:ms|s)\b|(?<=\d)ms\b", " ", cell).split()
            if words and all(re.fullmatch(r"\d+(?:\.\d+)?", word) for word in words):
                found += words
    return found


def transcribed(table: Any, order: str) -> list[str]:
    """The numbers of a table as the file spells them; halves that stand side by side in the paper
    row by row.
    """
    parts = table.get("parts", [table])
    rows = [part["rows"] for part in parts]
    if len(parts) > 1 and all(part.get("across") == "dataset" for part in parts):
        rows = [*zip(*rows, strict=True)]
    ordered = [row for part in rows for row in part]
    if order == COLUMNS:
        width = len(parts[0]["keys"]) + len(parts[0]["columns"])
        ordered = [[row[i] for row in ordered if i < len(row)] for i in range(width)]
    cells = [cell for row in ordered for cell in row]
    flat = [n for cell in cells for n in (cell if isinstance(cell, list) else [cell])]
    return [n for n in flat if n and re.fullmatch(r"\d+(?:\.\d+)?", n)]


@functools.cache  # YAML is slow to read
def tables_as_spelled(paper: str) -> Any:
    """The file with every scalar as its text, so that 1.40 stays 1.40."""
    text = (FOLDER / f"{paper}.yaml").read_text(encoding="utf-8")
    return yaml.load(text, yaml.BaseLoader)["tables"]


@NEEDS_TEXT
@pytest.mark.parametrize(("paper", "table"), PLACES)
def test_a_table_is_that_of_the_paper(paper: str, table: str) -> None:
    start, count, order = PLACES[paper, table]
    text = text_of(paper)
    assert text.count(start) == 1, f"{start!r} stands {text.count(start)} times in the text"
    lines = [line for line in text[text.index(start) :].splitlines()[: 2 * count] if line.strip()]
    there = printed("\n".join(lines[:count]))
    here = transcribed(tables_as_spelled(paper)[table], order)
    for numbers, stray in zip((there, here), STRAY.get((paper, table), ([], [])), strict=True):
        for number in stray:
            del numbers[len(numbers) - 1 - numbers[::-1].index(number)]
    assert len(here) > 3
    arranged = sorted if order == ANY else list
    assert arranged(here) == arranged(there)


@NEEDS_TEXT
@pytest.mark.parametrize("paper", papers())
def test_every_number_stands_in_the_text(paper: str) -> None:
    text = text_of(paper)
    for name, table in tables_as_spelled(paper).items():
        for number in transcribed(table, ROWS):
            spelled = re.escape({"50000": "50 \\times 10^3"}.get(number, number))
            assert re.search(rf"(?<![\d.]){spelled}(?!\d|\.\d)", text), f"{paper}, {name}: {number}"


@NEEDS_TEXT
def test_every_table_with_numbers_is_compared() -> None:
    there = {(paper, name) for paper in papers() for name in tables_as_spelled(paper)}
    left = {name for name in there - PLACES.keys() if name[1].startswith("table")}
    assert left == {("swift", "table1"), ("swift", "table11")}  # words and numbers mixed: by eye
