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
    assert {
        "paper",
        "table",
        "title",
        "hardware",
        "column",
        "value",
        "spread",
        "unit",
        "note",
    } <= set(frame.columns)
    assert all(isinstance(row["value"], int | float) or row["note"] for row in rows)
    assert all(row["unit"] == UNITS[row["column"]] for row in rows)
    assert all(
        0 <= row["value"] <= 1
        for row in rows
        if row["column"] == "alpha" and row["value"] is not None
    )


def test_names_are_those_of_skipbench() -> None:
    for paper in papers():
        names = read_paper(paper).names
        assert set(names["method"]) <= set(METHODS)
        used = {(key, row[key]) for row in published(paper) for key in NAMED if key in row}
        assert used == {(key, name) for key in names for name in names[key]}, (
            "names that no table uses"
        )


def test_hardware_follows_the_model_or_the_table() -> None:
    devices = {
        row["model"]: row["hardware"] for row in published("clasp") if row["table"] == "figure5"
    }
    assert devices == {
        "llama3-8b": "1x NVIDIA A800 (80GB)",
        "llama3.1-405b": "8x NVIDIA A800 (80GB)",
    }
    assert {row["hardware"] for row in published("swift") if row["table"] == "table11"} == {
        "an NVIDIA A6000"
    }
    assert {
        row["hardware"] for row in published("self-sd") if row.get("model") == "codellama-34b"
    } == {None}


def test_percent_dash_spread_and_lost() -> None:
    (alpha,) = (
        row
        for row in published("knapspec")
        if (row.get("model"), row.get("method"), row.get("dataset"), row["column"])
        == ("qwen3-4b", "swift", "mmlu-pro", "alpha")
    )
    assert alpha["value"] == 0.075 and "7.50%" in alpha["note"]
    assert not [
        r for r in published("knapspec") if r.get("method") == "vanilla" and r["column"] == "alpha"
    ]
    rows = [
        row for row in published("self-sd") if row["table"] == "table5" and row["column"] == "us"
    ]
    assert [(row["value"], row["spread"], row["unit"]) for row in rows] == [(0.61, 0.14, "us")]
    lost = [row for row in published("self-sd") if row["value"] is None]
    assert len(lost) == 26 and {row["table"] for row in lost} == {
        "table6",
        "table8",
        "table9",
        "table10",
        "table17",
    }
    assert all("lost" in row["note"] for row in lost)


def small() -> dict[str, Any]:
    table = {
        "title": "T",
        "keys": ["model"],
        "across": "dataset",
        "columns": {"d": ["M", "alpha"]},
        "rows": [["m", 2, 0.5]],
    }
    names = {"model": {"m": "M-7B"}, "dataset": {"d": "D"}}
    head = {
        "paper": "small",
        "title": "S",
        "arxiv": "1",
        "version": "1",
        "hardware": None,
        "software": None,
        "names": names,
    }
    return {**head, "tables": {"table1": table}}


BROKEN: list[tuple[Callable[[Any], Any], str]] = [
    (lambda d: d.pop("version"), r"small.yaml: Object missing required field `version`"),
    (lambda d: d.update(tabels={}), r"small.yaml: Object contains unknown field `tabels`"),
    (lambda d: d["tables"]["table1"].pop("rows"), r"table1: .*missing required field `rows`"),
    (lambda d: d["tables"]["table1"].update(colums=[]), r"table1: .*unknown field `colums`"),
    (lambda d: d["tables"]["table1"].update(columns=["M"]), (r"table1: columns are a list, but "
        r"across=dataset")),
    (lambda d: d["tables"]["table1"].update(columns={"d": ["M", "alhpa"]}), (r"table1: unknown "
        r"columns \['alhpa'\]")),
    (lambda d: d["tables"]["table1"].update(percent=["tau"]), r"table1: percent names \['tau'\]"),
    (lambda d: d["tables"]["table1"].update(keys=["modle"]), r"table1: unknown keys \['modle'\]"),
    (lambda d: d["tables"]["table1"].update(settings={"temp": 0}), (r"table1: unknown keys "
        r"\['temp'\]")),
    (lambda d: d["tables"]["table1"].update(rows=[["m", 2]]), (r"table1: row \['m', 2\]; wanted "
        r"\['model'\], then 2 values")),
    (lambda d: d["tables"]["table1"].update(rows=[[None, 2, 0.5]]),
    r"table1: row \[None, 2, 0.5\]"),
    (lambda d: d["tables"]["table1"].update(rows=["m 2 0.5"]), r"table1: row 'm 2 0.5'"),
    (lambda d: d["tables"]["table1"].update(rows=[["m", "two", 0.5]]), (r"table1: .*'two' is no "
        r"number")),
    (lambda d: d["tables"]["table1"].update(rows=[["n", 2, 0.5]]), (r"table1: model 'n' is not "
        r"among names: m")),
    (lambda d: d["tables"]["table1"].update(rows=[["m", 2, 0.5]] * 2), r"table1: two values for"),
    (lambda d: d["tables"]["table1"].update(rows=[]), r"table1: no rows"),
    (lambda d: d["tables"]["table1"].update(notes=[{"text": "x", "where": {"model": "n"}}]),
    r"table1: a note names .* 0 cells"),
    (lambda d: d["tables"]["table1"].update(notes=[{"text": "x", "check": "mean"}]), (r"table1: "
        r"a note with a check needs where, column and recomputed - at `\$.notes\[0\]`")),
    (lambda d: d["tables"]["table1"].update(parts=[{}]), r"table1: .*unknown field `across`"),
    (lambda d: d["tables"].update(table1=None), r"table1: Expected `object`, got `null`"),
    (lambda d: d["tables"]["table1"].update(across=None), (r"table1: columns are a mapping, but "
        r"across=None")),
    (lambda d: d.update(tables=[]), r"small.yaml: Expected `object`, got `array` - at `\$.tables`"),
]  # fmt: skip


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
    with pytest.raises(
        SkipbenchError, match="'swfit'; there are those of clasp, knapspec, self-sd, swift"
    ):
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
