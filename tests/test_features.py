"""The papers' feature tables: declarations read without torch, beside the papers' marks."""

import csv
import io
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
from conftest import METHODS, ROOT, Command

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.report.features import (
    MEANING,
    declared,
    feature_table,
    features_csv,
    features_html,
    features_latex,
    features_markdown,
)


def test_what_is_declared_is_known() -> None:
    found = declared()
    assert set(found) <= set(METHODS) and {"swift", "clasp", "self-sd", "knapspec", "del"} <= set(
        found
    )
    assert all(set(facts) <= set(MEANING) for facts in found.values())


def test_declarations_agree_with_the_keys_of_the_methods() -> None:
    for name, facts in declared().items():
        given = compose(
            [f"method={name}", "method.skip='attn:1;mlp:1'"]
            if name == "self-sd"
            else [f"method={name}"]
        )
        keys = given.method.node
        if name != "lookahead":  # its n-grams are a tree without a switch
            assert ("tree" in keys) == bool(facts["tree"]), name
            assert facts["tree"] is not True or keys["tree"] or name == "swift"
        assert "skip" not in keys or not facts["plug_and_play"], name
        assert not {"interval", "every", "steps"} & set(keys) or facts["adaptive"], name


@pytest.mark.parametrize("paper", ["swift", "knapspec"])
def test_every_row_of_the_paper_has_ours_below(paper: str) -> None:
    t = feature_table(paper)
    assert len({len(row) for row in (t.head, *t.rows)}) == 1 and all(all(row) for row in t.rows)
    assert [row[0] for row in t.rows[::2]] == [row[0] for row in t.rows[1::2]]
    rows = list(csv.reader(io.StringIO(features_csv(t))))
    assert [tuple(row) for row in rows[1:]] == list(t.rows)
    assert features_latex(t).count(r"\\") == len(t.rows) + 1
    HTMLParser().feed(features_html(t))
    assert features_html(t).count("<tr>") == features_html(t).count("</tr>") == len(t.rows) + 1


def test_swift_prints_what_the_paper_does() -> None:
    shown = features_markdown(feature_table("swift"))
    cells = [
        [field.strip() for field in line.split("|")[1:-1]]
        for line in shown.splitlines()
        if line.startswith("|")
    ]
    assert ["parallel", "paper", "Jacobi Decoding", "no", "yes", "yes", "no", "no"] in cells
    assert ["self-sd", "here", "Layer skipping", "no", "no", "yes", "yes", "optional"] in cells
    assert any(row[0] == "eagle" and "not implemented here" in row for row in cells)


def test_another_paper_has_no_feature_table() -> None:
    with pytest.raises(SkipbenchError, match="swift, knapspec"):
        feature_table("clasp")


def test_no_torch_is_imported() -> None:
    code = (
        "import sys; from skipbench.report import features, formats, papertable; "
        "features.feature_table('swift');"
        "formats.html(papertable.paper_table('swift', 'table2', [], 'paper')); assert "
        "'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_command_writes_them_like_any_table(skipbench: Command, tmp_path: Path) -> None:
    names = ["swift-table1", "knapspec-table1"]
    done = skipbench("table", *names, f"results={tmp_path}")
    assert done.returncode == 0, done.stderr
    assert all(f"{name}.html" in {p.name for p in tmp_path.glob("tables/*")} for name in names)
    assert (tmp_path / "tables" / "swift-table1.md").read_text() == features_markdown(
        feature_table("swift")
    )
    assert "knapspec Table 1" in done.stdout
