"""Sweeps through Hydra: grids and experiments in one table, cells that fail, and a method from
outside the package.
"""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import hydra
import pytest
from conftest import ROOT, Command, rest_slow
from hydra.core.hydra_config import HydraConfig

from skipbench.config import catalog
from skipbench.config.catalog import row_command, with_search_path
from skipbench.config.compose import compose, use_config_dir
from skipbench.config.explain import hydra_initialized
from skipbench.config.hardware import Slurm
from skipbench.config.paths import CONF
from skipbench.experiments.resolve import resolve_cell
from skipbench.launch.manifest import write_rows
from skipbench.launch.slurm import script
from skipbench.launch.sweeper import job, labels

SMALL = ("limit=1", "dataset.max_new_tokens=6", "engine.warmup=0")
MATHS = ("dataset=mini-math", *SMALL)


def rows(stdout: str) -> list[dict[str, str]]:
    """The first table of a sweep: column to text."""
    table = stdout.partition("## ")[2].partition("\n\n")[2].partition("\n\n")[0]
    lines = [line for line in table.splitlines() if line.startswith("|")]
    head, _, *body = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [dict(zip(head, row, strict=True)) for row in body]


def runs(results: Path) -> int:
    return len(list(results.glob("runs/*/*/metrics.json")))


def test_a_cell_returns_its_speedup(tmp_path: Path) -> None:
    words = ["method=uniform", *MATHS, f"results={tmp_path}"]
    with hydra_initialized():
        config = hydra.compose("config", overrides=words)
    speedup = job(config)
    metrics = json.loads((resolve_cell(compose(words)).folder / "metrics.json").read_text())
    assert speedup == metrics["speedup"]["e2e"] is not None


@pytest.mark.slow
def test_the_cases_of_an_experiment_are_swept(skipbench: Command, tmp_path: Path) -> None:
    words = ("method=swift", *SMALL, f"results={tmp_path}")
    done = skipbench("-m", "experiment=swift-table8", "scale=embedded", *words)
    assert done.returncode == 0, done.stderr
    found = [row["point"] for row in rows(done.stdout)]
    assert len(found) == len(set(found)) == 4
    status = skipbench("status", "swift-table8", "scale=embedded", *words)
    assert status.returncode == 0 and status.stdout.startswith(
        f"swift-table8: {runs(tmp_path)} cells"
    ), status.stdout


def test_a_failed_cell_is_named_and_stops_no_other(skipbench: Command, tmp_path: Path) -> None:
    done = skipbench(
        "-m", "method=uniform", "method.ratio=0.01,0.2,0.4", *MATHS, f"results={tmp_path}"
    )
    assert done.returncode == 1
    assert "failed: method.ratio=0.01: " in done.stderr and "Traceback" not in done.stderr
    found = rows(done.stdout)
    assert [row["point"] for row in found] == ["method.ratio=0.2", "method.ratio=0.4"]
    assert all(row["method"] == "uniform" and row["lossless"] == "1/1" for row in found)
    assert done.stdout.count("## ") == 1 and runs(tmp_path) == 2


@pytest.mark.slow
def test_a_token_that_expired_stops_no_other_cell(tmp_path: Path) -> None:
    class Hub(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.send_response(401)
            self.send_header("X-Error-Message", "Invalid credentials in Authorization header")
            self.end_headers()

        do_GET = do_HEAD

    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as hub:
        threading.Thread(target=hub.serve_forever, daemon=True).start()
        words = ("-m", "model=qwen3-4b,tiny", "model.device=cpu", "method=uniform", *MATHS)
        done = subprocess.run(
            [sys.executable, "-m", "skipbench", *words, f"results={tmp_path}"],
            env=os.environ
            | {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_port}", "HF_TOKEN": "hf_expired"}
            | {"HF_HUB_OFFLINE": "0"},
            capture_output=True,
            text=True,
            check=False,
        )
        hub.shutdown()
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "failed: model=qwen3-4b: cannot load the model in " in done.stderr
    assert runs(tmp_path) == 1


WRONG = [
    ("method=uniform,unifrm", "unknown method 'unifrm'. Did you mean uniform"),
    ("method.ratio=interval(0,1)", "hydra/sweeper=optuna"),
    ("method=uniform,fixed", "method.skip must be given, as in method.skip=VALUE"),
]


@pytest.mark.parametrize(("word", "says"), rest_slow(WRONG, lambda case: "interval" in case[0]))
def test_a_wrong_word_ends_a_sweep_before_its_first_cell(
    word: str, says: str, skipbench: Command, tmp_path: Path
) -> None:
    done = skipbench("-m", "method=uniform", word, *MATHS, f"results={tmp_path}")
    assert done.returncode == 2 and not list(tmp_path.iterdir())
    assert (
        done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and says in done.stderr
    )


def test_points_are_labelled_by_what_they_differ_in() -> None:
    assert labels([["a=1", "b=1"], ["a=1", "b='2'"]]) == ["b=1", "b=2"]
    assert labels([["a=1", "b=1"]]) == ["a=1 b=1"]


MINE = """
from skipbench.decode.drafting import SkipMethod


class Every(SkipMethod):
    step: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        self.skip = self.plan(2 * i + 1 for i in range(1, self.layers, self.step))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A folder of configuration files with one method, whose module is on the path."""
    (tmp_path / "conf" / "method").mkdir(parents=True)
    (tmp_path / "every_layer.py").write_text(MINE)
    text = (
        "# Skips every so many layers.\ndefaults: [_mine, /stop@stop: fixed, _self_]\n"
        "_target_: every_layer.Every\nname: mine\n"
    )
    (tmp_path / "conf" / "method" / "mine.yaml").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalog, "_folders", catalog.config_folders())
    yield str(tmp_path / "conf")
    sys.modules.pop("every_layer", None)


@pytest.mark.slow
def test_a_method_of_ones_own_runs_in_another_process(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    use_config_dir(Path(folder))
    config = compose(["method=mine", *MATHS, f"results={tmp_path / 'results'}"])
    cells = write_rows(tmp_path, [{"configs": [config.to_dict()]}])
    done = subprocess.run(row_command(str(cells), "0"), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert runs(tmp_path / "results") == 1
    made = script("mine", cells, range(1), Slurm(), "python", tmp_path)
    assert f"--config-dir {folder} runrow {cells}" in made


@pytest.mark.slow
def test_a_job_of_a_launcher_knows_the_folders_of_its_sweep(
    folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_config_dir(Path(folder))
    words = with_search_path(["method=mine", *MATHS, f"results={tmp_path / 'results'}"])
    with hydra_initialized():
        config = hydra.compose("config", overrides=words)
        whole = hydra.compose("config", overrides=words, return_hydra_config=True)
    monkeypatch.setattr(HydraConfig.instance(), "cfg", whole)
    monkeypatch.setattr(catalog, "_folders", [CONF])  # its process has seen no command line
    assert job(config) is not None


def test_a_folder_that_is_not_there(skipbench: Command, tmp_path: Path) -> None:
    done = skipbench("list", "methods", "--config-dir", str(tmp_path / "none"))
    assert done.returncode == 2 and "no such folder" in done.stderr


def test_a_file_with_a_key_that_its_method_lacks_is_named(
    skipbench: Command, folder: str, tmp_path: Path
) -> None:
    (Path(folder) / "method" / "mine.yaml").write_text(
        "defaults: [_mine, /stop@stop: fixed, _self_]\n"
        "_target_: every_layer.Every\nname: mine\nsetp: 3\n"
    )
    done = skipbench(
        "--config-dir", folder, "method=mine", *MATHS, f"results={tmp_path / 'results'}"
    )
    assert (
        done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    )
    assert "unknown key 'method.setp'. Allowed here: " in done.stderr
