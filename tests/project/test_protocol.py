"""docs/protocol.md and who names it; what is read is data: it names no target to call."""

import hashlib
import io
import re
from collections.abc import Callable
from pathlib import Path

import pandas
import pytest
from conftest import ROOT

from skipbench.config.build import check_targets
from skipbench.config.paths import private_folder
from skipbench.errors import SkipbenchError
from skipbench.report.tables.formats import write
from skipbench.report.tables.paper import paper_table
from skipbench.runs.provenance import PROTOCOLS

PAGE = ROOT / "docs/protocol.md"


def test_the_page_is_that_of_its_version() -> None:
    text = PAGE.read_text()
    (version,) = re.findall(r"^`protocol: (\d+)`$", text, re.MULTILINE)
    assert int(version) == max(PROTOCOLS) and len(text.splitlines()) <= 120
    digest = hashlib.sha256(PAGE.read_bytes()).hexdigest()
    assert PROTOCOLS[int(version)] == digest, "a changed protocol is a new version"


def as_published(rows: pandas.DataFrame) -> pandas.DataFrame:
    return rows.assign(measured=rows["published"] * 1.08)


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (as_published, "replicated"),
        (lambda rows: rows.assign(measured=rows["published"] * 0.85), "contradicted"),  # signs
        (lambda rows: rows.assign(measured=2.6 - rows["published"]), "contradicted"),  # orders
        (lambda rows: rows.assign(measured=rows["published"] * 1.2), "open"),  # values
        (lambda rows: as_published(rows).assign(half=0.06), "open"),
        (lambda rows: as_published(rows).iloc[1:], "open"),
    ],
)
def test_the_rule_can_be_computed(
    tmp_path: Path, change: Callable[[pandas.DataFrame], pandas.DataFrame], wanted: str
) -> None:
    table = pandas.read_csv(io.StringIO(write(paper_table("swift", "table2", []))["all.csv"]))
    speedups = table[(table["column"] == "speedup") & table["published"].notna()]
    single = speedups[(speedups["dataset"] != "overall") & (speedups["method"] != "vanilla")]
    made = change(single.assign(half=0.02))
    assert len(single) == 27
    low, high = made["measured"] * (1 - made["half"]), made["measured"] * (1 + made["half"])
    percent = 100 * (made["measured"] / made["published"] - 1)
    inside = (low <= made["published"]) & (made["published"] <= high)
    values = {"measured": made["measured"], "measured_low": low, "measured_high": high}
    for name, column in (values | {"percent": percent, "published_inside": inside}).items():
        table[name] = table[name].astype(object)
        table.loc[made.index, name] = column
    table.to_csv(tmp_path / "table.csv", index=False)
    rule: dict[str, Callable[[str], str]] = {}
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    exec(compile(code, str(PAGE), "exec"), rule)
    assert rule["verdict"](str(tmp_path / "table.csv")) == wanted


def test_a_private_folder_is_closed_to_others(tmp_path: Path) -> None:
    (place := tmp_path / "cache" / "native").mkdir(parents=True)
    place.chmod(0o775)
    assert private_folder(place).stat().st_mode & 0o777 == 0o700
    assert private_folder(tmp_path / "new" / "native").parent.stat().st_mode & 0o777 == 0o700
    (tmp_path / "link").symlink_to(place)
    with pytest.raises(PermissionError, match="no folder of this user's own"):
        private_folder(tmp_path / "link")


@pytest.mark.parametrize(
    "node",
    [{"_target_": "os.system"}, {"a": [{"_target_": "pandas.read_pickle"}]}, {"b": "${oc.env:A}"},
     {"stop": {"_target_": ["skipbench"]}}],
)  # fmt: skip
def test_a_target_that_no_file_names_is_refused(node: dict[str, object]) -> None:
    with pytest.raises(SkipbenchError, match=r"_target_=|is an interpolation"):
        check_targets({"_target_": "known", **node}, {"known"})
