"""Sweeps through Hydra: grids and experiments in one table, cells that fail, and a method from
outside the package.
"""

import json
import subprocess
from pathlib import Path

import hydra
import pytest
from conftest import ROOT, Command

from skipbench.config import catalog
from skipbench.config.catalog import row_command
from skipbench.config.compose import compose, use_config_dir
from skipbench.config.explain import hydra_initialized
from skipbench.config.hardware import Slurm
from skipbench.experiments.resolve import resolve_cell
from skipbench.launch.manifest import write_rows
from skipbench.launch.slurm import script
from skipbench.launch.sweeper import job

SMALL = ("limit=1", "dataset.max_new_tokens=6", "engine.warmup=0")
MATHS = ("dataset=mini-math", *SMALL)


def test_a_cell_returns_its_speedup(tmp_path: Path) -> None:
    words = ["method=uniform", *MATHS, f"results={tmp_path}"]
    with hydra_initialized():
        config = hydra.compose("config", overrides=words)
    speedup = job(config)
    metrics = json.loads((resolve_cell(compose(words)).folder / "metrics.json").read_text())
    assert speedup == metrics["speedup"]["e2e"] is not None


@pytest.mark.slow
def test_the_cases_of_an_experiment_are_swept(skipbench: Command, tmp_path: Path) -> None:
    words = ("scale=embedded", "method=swift", *SMALL, f"results={tmp_path}")
    done = skipbench("-m", "experiment=swift-table8", *words)
    assert done.returncode == 0 and done.stdout.count("## ") == 1, done.stderr
    status = skipbench("status", "swift-table8", *words)
    runs = len(list(tmp_path.glob("runs/*/*/metrics.json")))
    assert status.returncode == 0 and runs > 1
    assert status.stdout.startswith(f"swift-table8: {runs} cells: {runs} done"), status.stdout


def test_a_failed_cell_is_named_and_stops_no_other(skipbench: Command, tmp_path: Path) -> None:
    words = ("method=uniform", "method.ratio=0.01,0.4", *MATHS, f"results={tmp_path}")
    done = skipbench("-m", *words, "--json")
    assert done.returncode == 1
    assert "failed: method.ratio=0.01: " in done.stderr and "Traceback" not in done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["label"] for row in found] == ["method.ratio=0.4"]
    assert found[0]["metrics"]["lossless"]["identical"] == 1
    assert len(list(tmp_path.glob("runs/*/*/metrics.json"))) == 1


MINE = """
from skipbench.decode.drafting import SkipMethod


class Every(SkipMethod):
    step: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.skip = self.plan(2 * i + 1 for i in range(1, self.layers, self.step))
"""
YAML = """# Skips every so many layers.
defaults: [_mine, /stop@stop: fixed, _self_]
_target_: every_layer.Every
name: mine
"""


@pytest.mark.slow
def test_a_method_of_ones_own_runs_in_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "conf" / "method").mkdir(parents=True)
    (folder / "mine.yaml").write_text(YAML)
    (tmp_path / "every_layer.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "_folders", catalog.config_folders())
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    use_config_dir(folder.parent)
    config = compose(["method=mine", *MATHS, f"results={tmp_path / 'results'}"])
    cells = write_rows(tmp_path, [{"configs": [config.to_dict()]}])
    done = subprocess.run(row_command(str(cells), "0"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("results/runs/*/*/metrics.json"))) == 1
    made = script("mine", cells, range(1), Slurm(), "python", tmp_path)
    assert f"--config-dir {folder.parent} runrow {cells}" in made
