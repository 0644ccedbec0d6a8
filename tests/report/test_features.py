"""The papers' feature tables: declarations read without torch, beside the papers' marks."""

from pathlib import Path

import pytest
from conftest import METHODS, Command

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.report.tables.features import (
    LOST,
    NOT_HERE,
    NOT_PRINTED,
    declared,
    feature_table,
    features,
)
from skipbench.report.tables.formats import markdown


def test_what_is_declared_is_known() -> None:
    found = declared()
    names = "asd clasp del knapspec layerskip lookahead parallel self-sd swift"
    assert set(found) == {*names.split()}
    assert set(found) <= {*METHODS}
    assert all(set(facts) <= set(features().meaning) for facts in found.values())


@pytest.mark.slow
def test_declarations_agree_with_the_keys_of_the_methods() -> None:
    for name in declared().keys() & {*METHODS}:
        facts = declared()[name]
        more = ["method.skip='attn:1;mlp:1'"] if name == "self-sd" else []
        given = compose([f"method={name}", *more])
        keys = given.method.node
        if name != "lookahead":  # its n-grams are a tree without a switch
            assert ("tree" in keys) == bool(facts["tree"]), name
            assert facts["tree"] is not True or keys["tree"] or name == "swift"
        assert "skip" not in keys or not facts["plug_and_play"], name
        assert not {"interval", "every", "steps"} & set(keys) or facts["adaptive"], name


@pytest.mark.parametrize("paper", ["swift", "knapspec"])
def test_every_row_of_the_paper_has_ours_below(paper: str) -> None:
    t = feature_table(paper)
    (grid,) = t.grids
    texts = [[cell.text for cell in row.cells] for row in grid.rows]
    assert {len(row) for row in texts} == {len(grid.columns)} and all(map(all, texts))
    assert [row[0] for row in texts[::2]] == [row[0] for row in texts[1::2]]
    assert list(t.lines[0]) == ["method", "source", *(c.name for c in grid.columns[2:])]
    for row, line in zip(grid.rows, t.lines, strict=True):
        whole = [t.footnotes[cell.mark - 1] if cell.mark else cell.text for cell in row.cells]
        assert whole == list(line.values())


def test_swift_prints_what_the_paper_does() -> None:
    shown = markdown(feature_table("swift"))
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    cells = [[field.strip() for field in line.split("|")[1:-1]] for line in lines]
    dash = "\u2014 [{}]".format
    parallel = ["Jacobi Decoding", "no", "yes", dash(1), "yes", "no", "no", "0.9x to 1.0x"]
    assert ["parallel", "paper", *parallel] in cells and f"[1] {NOT_PRINTED}" in shown
    ours = ["Layer skipping", "no", "no", "yes", "yes", "yes", "optional", dash(3)]
    assert ["self-sd", "here", *ours] in cells
    assert ["eagle", "here", *[dash(2)] * 8] in cells and f"[2] {NOT_HERE}" in shown
    # Table 10
    assert ["layerskip", "paper", *[dash(1)] * 2, "no", "no", *[dash(1)] * 4] in cells
    assert f"[1] {LOST}" in markdown(feature_table("knapspec"))


def test_another_paper_has_no_feature_table() -> None:
    with pytest.raises(SkipbenchError, match="swift, knapspec"):
        feature_table("clasp")


def test_the_command_writes_them_like_any_table(skipbench: Command, tmp_path: Path) -> None:
    names = ["swift-table1", "knapspec-table1"]
    done = skipbench("table", *names, f"results={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert all(f"{name}.csv" in {p.name for p in tmp_path.glob("tables/*")} for name in names)
    assert (tmp_path / "tables" / "swift-table1.md").read_text() == markdown(feature_table("swift"))
    assert "knapspec Table 1" in done.stdout
