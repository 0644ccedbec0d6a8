"""The committed results: tables and figures are rendered again, to the byte, from the records kept
beside them. Those of SmolLM2 are what `make results` makes; those of the embedded model are an
example of every kind.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from builders import turn
from conftest import ROOT, rest_slow
from msgspec import to_builtins
from msgspec.structs import replace

from scripts.pack_records import pack, runs_of, table_of, unpacked
from scripts.readme_figures import MODELS, README, TABLE, written
from scripts.readme_figures import runs_of as rows_of
from skipbench.metrics.acceptance import expected_M
from skipbench.metrics.summary import summarise
from skipbench.report.tables.features import feature_table, feature_tables
from skipbench.report.tables.formats import write
from skipbench.report.tables.stored import read_summary
from skipbench.report.tables.stored import table_of as table_of_summary
from skipbench.runs.files import write_atomic
from skipbench.runs.record import dump

RESULTS = ROOT / "results"
LAPTOP, EMBEDDED = RESULTS / "laptop", RESULTS / "embedded"
MADE = r"^(TABLE2|results: FIGURES) :?= (.+)$"
MAKE = dict(re.findall(MADE, (ROOT / "Makefile").read_text(), re.M))


def _named(pattern: str, folders: Sequence[Path] = (LAPTOP, EMBEDDED)) -> list[str]:
    """Paths below `results`, without their suffix."""
    found = [path for folder in folders for path in folder.glob(pattern)]
    return sorted(str(path.relative_to(RESULTS).with_suffix("")) for path in found)


def _experiment(name: str) -> str:
    return name.split("/")[-1].partition(".")[0]


TABLES = _named("tables/*.md")
PAPERS = MAKE["TABLE2"].split()


def test_what_make_results_makes_is_there() -> None:
    own = [name for name in _named("tables/*.md", [LAPTOP]) if _experiment(name) in PAPERS]
    if not own:
        pytest.skip("make results has not been run since results/laptop was made the one to show")
    assert own == sorted(f"laptop/tables/{name}.laptop" for name in PAPERS)
    figures = _named("figures/*.svg", [LAPTOP])
    shown = sorted(f"laptop/figures/{name}.laptop" for name in MAKE["results: FIGURES"].split())
    assert sorted(figures) == shown


def test_tables_without_runs_and_the_controls_are_there() -> None:
    names = {*feature_tables(), "real"}
    assert {f"laptop/tables/{name}" for name in names} <= {*TABLES}


def test_eq_1_gives_the_measured_tokens_of_the_committed_runs() -> None:
    """The median of KnapSpec's Eq. 1 over M. A stop rule ends drafts at doubtful tokens, so that
    acceptance is not independent of where a draft ends: there it is below 1.
    """
    by_method: dict[str, list[float]] = {}
    for place in LAPTOP.glob("records/*.xz"):
        methods = {run["id"]: run["method"] for run in _runs_of(table_of(place))}
        for name, turns in unpacked(place).items():
            rounds = [r for turn in turns for r in turn.arms[name.split("/")[1]].rounds]
            expected = expected_M(rounds)
            if expected is not None and any(r.steps for r in rounds):
                ratio = expected / fmean(r.emitted for r in rounds)
                by_method.setdefault(methods[name], []).append(ratio)
    assert {"self-sd", "swift", "clasp", "knapspec"} <= by_method.keys()
    of_all = [ratio for ratios in by_method.values() for ratio in ratios]
    assert 0.94 < median(of_all) < 1.06
    assert all(0.85 < median(ratios) < 1.15 for ratios in by_method.values())


def _runs_of(table: Path) -> list[dict[str, Any]]:
    return list(json.loads(table.read_text())["runs"])


def test_the_readme_carries_the_skipped_shares_of_its_table() -> None:
    readme, table = README.read_text(), TABLE.read_text()
    assert written(readme, table) == readme
    shares = [line for line in readme.splitlines() if line.startswith("| share of sub-layers")]
    runs = [run for run in rows_of(table) if run["model"] in MODELS]
    skipped = [run["skipped"] for run in runs if run["method"] == "self-sd"]
    assert [re.findall(r"[\d.]+", line)[-4] for line in shares] == skipped and len(skipped) == 1


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


@pytest.mark.parametrize(
    "name", rest_slow(_named("records/*.xz"), lambda name: "swift" in name or "real" in name)
)
def test_the_numbers_of_a_table_follow_from_its_records(name: str) -> None:
    place = RESULTS / f"{name}.xz"
    stored = json.loads(table_of(place).read_text())["runs"]
    by_run = unpacked(place)
    measured = [run for run in stored if run.get("metrics") and not run.get("group")]
    assert by_run.keys() == set(runs_of(table_of(place)))
    for run in measured:
        layers = 30
        again = to_builtins(summarise(by_run[run["id"]], run["id"].split("/")[1], layers))
        kept = run["metrics"]
        keys = (
            "samples",
            "M",
            "alpha",
            "tokens_per_s",
            "lossless",
            "skipped",
            "speedup",
            "vanilla",
        )
        # what follows from profiled prices, or from programs that were executed, is not in a pack
        names = again["vanilla"].keys() - {"score"}
        for each in (again, kept):
            each["vanilla"] = {name: each["vanilla"].get(name) for name in names}
        for key in (*keys, "vanilla"):
            assert _numbers(again.get(key)) == pytest.approx(_numbers(kept.get(key)), rel=1e-9), key


def test_turns_are_packed_and_read(tmp_path: Path) -> None:
    """Those of the arms of the table alone, and vanilla."""
    both = turn(0, "one")
    more = replace(both, order=[*both.order, "two"], arms=both.arms | {"two": both.arms["one"]})
    write_atomic(tmp_path / "results" / "runs" / "row" / "turns.jsonl", f"{dump(more)}\n")
    table = tmp_path / "tables" / "t.json"
    write_atomic(table, json.dumps({"runs": [{"id": "row/one", "metrics": {}}, {"id": None}]}))
    assert unpacked(pack(tmp_path / "results", table)) == {}
    write_atomic(table, json.dumps({"runs": [{"id": "row/one", "metrics": {"M": 1}}]}))
    assert unpacked(pack(tmp_path / "results", table)) == {"row/one": [both]}
