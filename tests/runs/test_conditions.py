"""A run goes on under the conditions that it was begun under, or is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from builders import SMALL, interrupt

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.runs.run import read_run

ELSEWHERE: dict[str, Any] = {"device": "NVIDIA H100", "cpu": "EPYC", "threads": 96}
ELSEWHERE |= {"host": "node7", "native_kernels": "amx", "versions": {"torch": "2.1.0"}}


def test_a_run_does_not_go_on_elsewhere(tmp_path: Path) -> None:
    config = compose([*SMALL, "limit=3", "method=uniform", f"results={tmp_path}"])
    run_cell(config)
    folder = resolve_cell(config).folder
    interrupt(folder, 2)
    path = folder / "provenance.json"
    here = json.loads(path.read_text())
    path.write_text(json.dumps(here | ELSEWHERE))
    before = {p.name: p.read_bytes() for p in folder.glob("*.json*")}
    with pytest.raises(SkipbenchError, match="fresh=true") as refused:
        run_cell(config)
    told = str(refused.value)
    assert "device NVIDIA H100 -> cpu" in told and "threads 96 -> 1" in told and "\n" not in told
    assert f"cpu EPYC -> {here['cpu']}" in told
    assert f"native_kernels amx -> {here['native_kernels']}" in told
    assert f"torch 2.1.0 -> {here['versions']['torch']}" in told
    assert {p.name: p.read_bytes() for p in folder.glob("*.json*")} == before


def test_a_process_under_the_same_conditions_goes_on_and_is_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose([*SMALL, "limit=2", "method=uniform", f"results={tmp_path}"])
    run_cell(config)
    folder = resolve_cell(config).folder
    interrupt(folder, 1)
    path = folder / "provenance.json"
    early = json.loads(path.read_text()) | {"host": "node7", "cores": 3}
    path.write_text(json.dumps(early))
    run_cell(config)
    (one,) = read_run(folder).provenance.resumed
    assert one["after_turns"] == 1 and one["host"] != "node7" and "device" not in one
    interrupt(folder, 0)  # nothing is left of the first processes
    path.write_text(json.dumps(early | ELSEWHERE))
    run_cell(config)
    assert read_run(folder).provenance.device == "cpu"
    assert not read_run(folder).provenance.resumed
