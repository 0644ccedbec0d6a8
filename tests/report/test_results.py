"""The committed results: tables and figures are rendered again, to the byte, from the records kept
beside them. Those of SmolLM2 are what `make results` makes; those of the embedded model are an
example of every kind.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import ROOT, rest_slow
from msgspec import to_builtins

from scripts.pack_records import runs_of, table_of, unpacked
from skipbench.metrics.summary import summarise
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.formats import write
from skipbench.report.tables.stored import read_summary
from skipbench.report.tables.stored import table_of as table_of_summary

RESULTS = ROOT / "results"
LAPTOP, EMBEDDED = RESULTS / "laptop", RESULTS / "embedded"


def _named(pattern: str, folders: Sequence[Path] = (LAPTOP, EMBEDDED)) -> list[str]:
    """Paths below `results`, without their suffix."""
    found = [path for folder in folders for path in folder.glob(pattern)]
    return sorted(str(path.relative_to(RESULTS).with_suffix("")) for path in found)


TABLES = _named("tables/*.md")


@pytest.mark.parametrize("name", TABLES)
def test_a_table_renders_to_the_same_bytes(name: str) -> None:
    features, last = feature_tables(), name.split("/")[-1]
    known = last in features
    made = (
        feature_table(features[last])
        if known
        else table_of_summary(read_summary(RESULTS / f"{name}.json"))
    )
    for suffix in ("md", "csv"):  # all.csv is not among them
        assert (RESULTS / f"{name}.{suffix}").read_text() == write(made)[suffix], (
            f"python -m skipbench table results/{name}.json"
        )


def test_nothing_of_a_machine_is_in_them() -> None:
    for path in [*RESULTS.glob("*/tables/*"), *RESULTS.glob("*/figures/*")]:
        if path.suffix not in (".png", ".pdf"):
            found = re.search(r"/(home|root|tmp|work|Users)/", path.read_text())
            assert not found, f"{path} names {found[0] if found else ''}"


def _numbers(tree: object, path: str = "") -> dict[str, float]:
    """All numbers of nested values, by their path."""
    if isinstance(tree, dict):
        return {k: v for n, of in tree.items() for k, v in _numbers(of, f"{path}/{n}").items()}
    if isinstance(tree, list | tuple):
        return _numbers(dict(enumerate(tree)), path)
    return {path: float(tree)} if isinstance(tree, int | float) else {}


@pytest.mark.parametrize("name", rest_slow(_named("records/*.xz"), lambda name: "swift" in name))
def test_the_numbers_of_a_table_follow_from_its_records(name: str) -> None:
    place = RESULTS / f"{name}.xz"
    stored = json.loads(table_of(place).read_text())["runs"]
    by_run = unpacked(place)
    measured = [run for run in stored if not run.get("group")]  # no cell of these is empty
    assert by_run.keys() == set(runs_of(table_of(place)))
    for run in measured:
        layers = 24 if run["model"].startswith("planted-24x") else 30
        kept = run["metrics"]
        turns = by_run[run["id"]][: kept["samples"]]  # others show more of this run
        again = to_builtins(summarise(turns, run["id"].split("/")[1], layers))
        keys = ("samples", "M", "alpha", "tokens_per_s", "lossless", "skipped", "speedup")
        # what follows from profiled prices, or from programs that were executed, is not in a pack
        names = again["vanilla"].keys() - {"score"}
        for each in (again, kept):
            each["vanilla"] = {name: each["vanilla"].get(name) for name in names}
        for key in (*keys, "vanilla"):
            assert _numbers(again.get(key)) == pytest.approx(_numbers(kept.get(key)), rel=1e-9), key
