"""The papers' printed numbers: the form of the files and, where it is at hand, the papers' text."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from conftest import METHODS, SHARED

from skipbench.errors import SkipbenchError
from skipbench.report.definitions import KEYS, NAMED, UNITS
from skipbench.report.published import FOLDER, papers, published, read_paper

# the last table, the last figure
LAST = {"clasp": (1, 5), "knapspec": (2, 6), "self-sd": (18, 10), "swift": (14, 12)}
Row = dict[str, Any]


def of(paper: str, **wanted: object) -> list[Row]:
    return [row for row in published(paper) if all(row.get(k) == v for k, v in wanted.items())]


@pytest.mark.parametrize("paper", papers())
def test_every_table_and_figure_is_there_or_left_out_with_a_reason(paper: str) -> None:
    document = read_paper(paper)
    there = {*document.tables, *document.left_out}
    for kind, last in zip(("table", "figure"), LAST[paper], strict=True):
        found = {int(n) for name in there for n in re.findall(rf"^{kind}(\d+)[a-c]?$", name)}
        assert found == set(range(1, last + 1)), kind
    assert not document.tables.keys() & document.left_out.keys()
    assert all(document.left_out.values())
    with pytest.raises(SkipbenchError, match=f"'{paper}s'; there are those of clasp, knap"):
        published(f"{paper}s")


@pytest.mark.parametrize("paper", papers())
def test_rows_have_values_units_and_names_of_skipbench(paper: str) -> None:
    rows, names = published(paper), read_paper(paper).names
    assert all(isinstance(row["value"], int | float) or row["note"] for row in rows)
    assert all(row["unit"] == UNITS[row["column"]] for row in rows)
    assert all(0 <= row["value"] <= 1 for row in of(paper, column="alpha") if row["value"])
    assert set(names["method"]) <= set(METHODS)
    used = {(key, row[key]) for row in rows for key in NAMED if key in row}
    assert used == {(key, name) for key in names for name in names[key]}  # none unused
    for column in ("M", "tau", "speedup", "expected_speedup"):
        assert {row["value"] for row in of(paper, method="vanilla", column=column)} <= {1.0, None}


def test_percent_dash_spread_lost_decimals_and_hardware() -> None:
    where = {"model": "qwen3-4b", "method": "swift", "dataset": "mmlu-pro"}
    (alpha,) = of("knapspec", column="alpha", **where)
    assert alpha["value"] == 0.075 and "7.50%" in alpha["note"]
    assert not of("knapspec", method="vanilla", column="alpha")
    (row,) = of("self-sd", table="table5", column="us")
    assert (row["value"], row["spread"], row["unit"]) == (0.61, 0.14, "us")
    lost = of("self-sd", value=None)
    assert len(lost) == 26 and all("lost" in row["note"] for row in lost)
    assert {row["table"] for row in lost} == {f"table{n}" for n in (6, 8, 9, 10, 17)}
    (row,) = of("swift", table="sectionC.2", column="M", statistic="max")
    assert (row["value"], row["digits"]) == (7.8, 2)  # 7.80
    assert {row["hardware"] for row in of("swift", table="table11")} == {"an NVIDIA A6000"}
    assert {row["hardware"] for row in of("self-sd", model="codellama-34b")} == {None}


@pytest.mark.parametrize("paper", papers())
def test_every_key_column_name_and_note_of_a_file_is_known(paper: str) -> None:
    document = read_paper(paper)
    for name, table in document.tables.items():
        every = [number for part in table.parts for number in part.numbers]
        cells = [repr([*sorted(n.keys.items()), n.column]) for n in every]
        assert every and len({*cells}) == len(cells), f"{name} has two values for a cell, or none"
        for part in table.parts:
            columns = [column for _, column in part.grouped]
            assert isinstance(part.columns, dict) == bool(part.across), name
            assert {*columns} <= UNITS.keys() and {*part.percent} <= {*columns}, name
            assert all({*number.keys} <= KEYS for number in part.numbers), name
            assert {len(row) for row in part.rows} == {len(part.keys) + len(columns)}, name
            assert all(None not in row[: len(part.keys)] for row in part.rows), name
        for note in (note for note in table.notes if note.where):
            noted = [number for number in every if note.is_on(number)]
            assert noted, (name, note.text)
    assert all({*note.tables} <= document.tables.keys() for note in document.notes)


def spelled(value: Any) -> Iterator[str]:
    """The numbers of rows of a file, as it spells them."""
    if isinstance(value, str):
        yield from re.findall(r"^\d+(?:\.\d+)?$", value)
    for part in value if isinstance(value, list) else ():
        yield from spelled(part)


@pytest.mark.skipif(not (SHARED / "papers").is_dir(), reason="the papers' text is not here")
@pytest.mark.parametrize("paper", papers())
def test_every_number_stands_in_the_text(paper: str) -> None:
    text = (SHARED / "papers" / f"{paper}.md").read_text(encoding="utf-8")
    file = (FOLDER / f"{paper}.yaml").read_text(encoding="utf-8")
    numbers = set[str]()
    for table in yaml.load(file, yaml.BaseLoader)["tables"].values():  # 1.40 stays 1.40
        for part in table.get("parts", [table]):
            numbers |= {*spelled(part["rows"])}
    assert len(numbers) > 30
    for number in numbers:
        found = re.escape({"50000": "50 \\times 10^3"}.get(number, number))
        assert re.search(rf"(?<![\d.]){found}(?!\d|\.\d)", text), f"{paper}: {number}"
