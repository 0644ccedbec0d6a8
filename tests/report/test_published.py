"""The papers' printed numbers: the form of the files, and the errors that a broken one gives."""

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import METHODS

from skipbench.errors import SkipbenchError
from skipbench.report import published as module
from skipbench.report.definitions import KEYS, NAMED, UNITS
from skipbench.report.published import papers, published, read_paper

# the last table, the last figure
LAST = {"clasp": (1, 5), "knapspec": (2, 6), "self-sd": (18, 10), "swift": (14, 12)}


def test_all_papers_are_there() -> None:
    assert papers() == sorted(LAST)


@pytest.mark.parametrize("paper", sorted(LAST))
def test_every_table_and_figure_is_there_or_left_out_with_a_reason(paper: str) -> None:
    document = read_paper(paper)
    there = {*document.tables, *document.left_out}
    for kind, last in zip(("table", "figure"), LAST[paper], strict=True):
        found = {int(n) for name in there for n in re.findall(rf"^{kind}(\d+)[a-c]?$", name)}
        assert found == set(range(1, last + 1)), kind
    assert not document.tables.keys() & document.left_out.keys()
    assert all(document.left_out.values())


@pytest.mark.parametrize("paper", sorted(LAST))
def test_rows_make_one_long_table(paper: str) -> None:
    import pandas as pd

    rows = published(paper)
    frame = pd.DataFrame(rows)
    columns = ["paper", "table", "title", "hardware", "column", "value", "spread", "unit", "note"]
    assert {*columns} <= set(frame.columns)
    assert all(isinstance(row["value"], int | float) or row["note"] for row in rows)
    assert all(row["unit"] == UNITS[row["column"]] for row in rows)
    alphas = (row["value"] for row in rows if row["column"] == "alpha")
    assert all(value is None or 0 <= value <= 1 for value in alphas)


def test_names_are_those_of_skipbench() -> None:
    for paper in papers():
        names = read_paper(paper).names
        assert set(names["method"]) <= set(METHODS)
        used = {(key, row[key]) for row in published(paper) for key in NAMED if key in row}
        assert used == {(key, name) for key in names for name in names[key]}  # none unused


def of(paper: str, **wanted: object) -> list[dict[str, Any]]:
    return [row for row in published(paper) if all(row.get(k) == v for k, v in wanted.items())]


def test_hardware_follows_the_model_or_the_table() -> None:
    devices = {row["model"]: row["hardware"] for row in of("clasp", table="figure5")}
    large = {"llama3.1-405b": "8x NVIDIA A800 (80GB)"}
    assert devices == {"llama3-8b": "1x NVIDIA A800 (80GB)"} | large
    assert {row["hardware"] for row in of("swift", table="table11")} == {"an NVIDIA A6000"}
    assert {row["hardware"] for row in of("self-sd", model="codellama-34b")} == {None}


def test_percent_dash_spread_and_lost() -> None:
    where = {"model": "qwen3-4b", "method": "swift", "dataset": "mmlu-pro"}
    (alpha,) = of("knapspec", column="alpha", **where)
    assert alpha["value"] == 0.075 and "7.50%" in alpha["note"]
    assert not of("knapspec", method="vanilla", column="alpha")
    (row,) = of("self-sd", table="table5", column="us")
    assert (row["value"], row["spread"], row["unit"]) == (0.61, 0.14, "us")
    lost = of("self-sd", value=None)
    assert len(lost) == 26 and all("lost" in row["note"] for row in lost)
    assert {row["table"] for row in lost} == {f"table{n}" for n in (6, 8, 9, 10, 17)}


@pytest.mark.parametrize("paper", sorted(LAST))
def test_every_key_column_name_and_note_of_a_file_is_known(paper: str) -> None:
    document = read_paper(paper)
    for name, table in document.tables.items():
        every = [number for part in table.parts for number in part.numbers]
        assert every, f"{name} has no rows; a table without numbers stands in left_out"
        cells = [repr([*sorted(n.keys.items()), n.column]) for n in every]
        assert len({*cells}) == len(cells), f"{name} has two values for a cell"
        for part in table.parts:
            columns = [column for _, column in part.grouped]
            assert isinstance(part.columns, dict) == bool(part.across), name
            assert {*columns} <= UNITS.keys() and {*part.percent} <= {*columns}, name
            assert all({*number.keys} <= KEYS for number in part.numbers), name
            widths = {len(row) for row in part.rows}
            assert widths == {len(part.keys) + len(columns)}, name
            assert all(None not in row[: len(part.keys)] for row in part.rows), name
        for number in every:
            named = ((key, number.keys[key]) for key in NAMED if key in number.keys)
            assert all(value in document.names[key] for key, value in named), name
        for note in (note for note in table.notes if note.where):
            noted = [number for number in every if note.is_on(number)]
            assert len(noted) == 1 if note.check else noted, (name, note.text)
        for note in table.notes:
            assert not note.check or (note.where and note.column and note.recomputed), note.text
    assert all({*note.tables} <= document.tables.keys() for note in document.notes)


def test_decimals_are_kept_as_printed() -> None:
    (row,) = of("swift", table="sectionC.2", column="M", statistic="max")
    assert (row["value"], row["digits"]) == (7.8, 2)  # 7.80
    whole = [row for row in published("self-sd") if row["value"] == 1.0]
    assert {row["digits"] for row in whole} >= {3}


def test_an_unknown_paper_names_those_at_hand() -> None:
    known = "'swfit'; there are those of clasp, knapspec, self-sd, swift"
    with pytest.raises(SkipbenchError, match=known):
        published("swfit")


def test_the_samples_of_a_paper_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = module.samples_of("swift-table2", "gsm8k")
    monkeypatch.setattr(module, "FOLDER", Path("nowhere"))
    assert module.samples_of("swift-table2", "gsm8k") == wanted == 1000
