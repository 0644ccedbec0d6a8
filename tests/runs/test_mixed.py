"""A run that goes on under other conditions is refused, or says so in every table."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from builders import SMALL, interrupt, make_run
from conftest import unseal

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.experiments.table_runs import run_entry
from skipbench.report.page.collect import all_runs
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.runs import row_table
from skipbench.report.tables.stored import stored_table, summary
from skipbench.runs.provenance import Provenance
from skipbench.runs.run import read_run
from skipbench.runs.store import read_samples

ELSEWHERE: dict[str, Any] = {"device": "NVIDIA H100", "cpu": "EPYC", "threads": 96}
ELSEWHERE |= {"host": "node7", "native_kernels": "amx", "versions": {"torch": "2.1.0"}}


def test_a_run_does_not_go_on_elsewhere_unless_told_to_and_every_table_says_so(
    tmp_path: Path,
) -> None:
    words = [*SMALL, "limit=3", "method=uniform", "dataset=mini-stories", f"results={tmp_path}"]
    config = compose(words)
    run_cell(config)
    folder = resolve_cell(config).folder
    interrupt(folder, 2)
    path = folder / "provenance.json"
    here = json.loads(path.read_text())
    path.write_text(json.dumps(here | ELSEWHERE))
    before = {p.name: p.read_bytes() for p in folder.glob("*.json*")}
    with pytest.raises(SkipbenchError, match="mixed=true") as refused:
        run_cell(config)
    told = str(refused.value)
    assert "device NVIDIA H100 -> cpu" in told and "threads 96 -> 1" in told and "\n" not in told
    assert f"cpu EPYC -> {here['cpu']}" in told
    assert f"native_kernels amx -> {here['native_kernels']}" in told
    assert f"torch 2.1.0 -> {here['versions']['torch']}" in told
    assert {p.name: p.read_bytes() for p in folder.glob("*.json*")} == before
    run_cell(compose([*words, "mixed=true"]))
    origin = json.loads(path.read_text())
    assert origin["device"] == "NVIDIA H100" and len(read_samples(folder / "samples.jsonl")) == 3
    (one,) = origin["resumed"]
    assert (one["after_samples"], one["device"], one["host"]) == (2, "cpu", here["host"])
    assert "layers" not in one  # only what is not as in the first
    run = run_entry(resolve_cell(config))
    (page,) = all_runs(tmp_path)
    tables = [
        (folder / "table.md").read_text(),
        markdown(row_table([run])),
        markdown(stored_table(summary("t", "embedded", [run]))),
        markdown(row_table([read_run(folder)])),
        str(page.cells["note"]),
    ]
    for text in tables:
        assert "from sample 1 device NVIDIA H100" in text and "from sample 3 device cpu" in text


def test_a_process_under_the_same_conditions_goes_on_and_is_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose([*SMALL, "limit=2", "method=uniform", f"results={tmp_path}"])
    run_cell(config)
    folder = resolve_cell(config).folder
    interrupt(folder, 1)
    path = folder / "provenance.json"
    early = json.loads(path.read_text()) | {"host": "node7", "cores": 3}
    del early["native_kernels"], early["threads"]  # as an earlier version wrote it
    path.write_text(json.dumps(early))
    capsys.readouterr()
    run_cell(config)
    assert "other threads; other native_kernels is not known" in capsys.readouterr().err
    (one,) = read_run(folder).provenance.resumed
    assert one["after_samples"] == 1 and one["host"] != "node7" and "device" not in one
    assert not read_run(folder).provenance.mixed
    interrupt(folder, 0)  # nothing is left of the first processes
    path.write_text(json.dumps(early | ELSEWHERE))
    run_cell(config)
    assert read_run(folder).provenance.device == "cpu"
    assert not read_run(folder).provenance.resumed


def test_a_return_to_the_first_conditions_is_told(tmp_path: Path) -> None:
    stretches = [{"after_samples": 2, "threads": 4}, {"after_samples": 5, "host": "b"}]
    origin = {"device": "cpu", "threads": 1, "host": "a"}

    def mixed_text(**more: Any) -> str:
        return msgspec.convert(origin | more, Provenance).mixed

    text = mixed_text(resumed=stretches)
    assert text == "from sample 1 threads 1; from sample 3 threads 4; from sample 6 threads 1"
    assert mixed_text(resumed=stretches[1:]) == mixed_text() == ""
    folder = make_run(tmp_path, 0, origin | {"resumed": stretches})
    unseal(folder)
    (folder / "provenance.json").write_text(json.dumps(origin | {"resumed": [{"device": 3}]}))
    with pytest.raises(SkipbenchError, match="cannot be read"):
        read_run(folder)
