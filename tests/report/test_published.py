"""The papers' printed numbers: the form of the files, and the errors that a broken one gives."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import METHODS

from skipbench.errors import SkipbenchError
from skipbench.report import published as module
from skipbench.report.definitions import NAMED, UNITS
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


def small() -> dict[str, Any]:
    table = {"title": "T", "keys": ["model"], "across": "dataset", "rows": [["m", 2, 0.5]]}
    table["columns"] = {"d": ["M", "alpha"]}
    names = {"model": {"m": "M-7B"}, "dataset": {"d": "D"}}
    head = {"paper": "small", "title": "S", "arxiv": "1", "version": "1", "hardware": None}
    return {**head, "software": None, "names": names, "tables": {"table1": table}}


def with_(**values: Any) -> Callable[[Any], Any]:
    return lambda document: document["tables"]["table1"].update(values)


BROKEN: list[tuple[Callable[[Any], Any], str]] = [
    (lambda d: d.pop("version"), r"small.yaml: Object missing required field `version`"),
    (lambda d: d.update(tabels={}), r"small.yaml: Object contains unknown field `tabels`"),
    (lambda d: d["tables"]["table1"].pop("rows"), r"table1: .*missing required field `rows`"),
    (with_(colums=[]), r"table1: .*unknown field `colums`"),
    (with_(columns=["M"]), r"table1: columns are a list, but across=dataset"),
    (with_(columns={"d": ["M", "alhpa"]}), r"table1: unknown columns \['alhpa'\]"),
    (with_(percent=["tau"]), r"table1: percent names \['tau'\]"),
    (with_(keys=["modle"]), r"table1: unknown keys \['modle'\]"),
    (with_(settings={"temp": 0}), r"table1: unknown keys \['temp'\]"),
    (with_(rows=[["m", 2]]), r"table1: row \['m', 2\]; wanted \['model'\], then 2 values"),
    (with_(rows=[[None, 2, 0.5]]), r"table1: row \[None, 2, 0.5\]"),
    (with_(rows=["m 2 0.5"]), r"table1: row 'm 2 0.5'"),
    (with_(rows=[["m", "two", 0.5]]), r"table1: .*'two' is no number"),
    (with_(rows=[["n", 2, 0.5]]), r"table1: model 'n' is not among names: m"),
    (with_(rows=[["m", 2, 0.5]] * 2), r"table1: two values for"),
    (with_(rows=[]), r"table1: no rows"),
    (with_(notes=[{"text": "x", "where": {"model": "n"}}]), r"table1: a note names .* 0 cells"),
    (with_(notes=[{"text": "x", "check": "m"}]), r"needs where, column .* at `\$.notes\[0\]`"),
    (with_(parts=[{}]), r"table1: .*unknown field `across`"),
    (lambda d: d["tables"].update(table1=None), r"table1: Expected `object`, got `null`"),
    (with_(across=None), r"table1: columns are a mapping, but across=None"),
    (lambda d: d.update(tables=[]), r"small.yaml: Expected `object`, got `array` - at `\$.tables`"),
]


@pytest.mark.parametrize(("breaks", "says"), BROKEN, ids=[says for _, says in BROKEN])
def test_a_broken_file_names_table_and_fault(
    breaks: Callable[[Any], Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    document = small()
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(document))
    assert [row["value"] for row in published("small")] == [2, 0.5]
    breaks(document)
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(document))
    with pytest.raises(SkipbenchError, match=says):
        published("small")


def test_an_unknown_paper_names_those_at_hand() -> None:
    known = "'swfit'; there are those of clasp, knapspec, self-sd, swift"
    with pytest.raises(SkipbenchError, match=known):
        published("swfit")


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FOLDER", tmp_path)
    (tmp_path / "small.yaml").write_text("tables: [1")
    with pytest.raises(SkipbenchError, match=r"small.yaml is no YAML"):
        published("small")


def test_the_samples_of_a_paper_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = module.samples_of("swift-table2", "gsm8k")
    monkeypatch.setattr(module, "FOLDER", Path("nowhere"))
    assert module.samples_of("swift-table2", "gsm8k") == wanted == 1000
