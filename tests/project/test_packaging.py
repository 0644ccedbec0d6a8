"""The wheel carries `conf` and the embedded model, and works outside the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="the build back end comes with the extra dev")
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", str(ROOT), "-q", "-w", str(folder)]
    command += ["--no-deps", "--no-build-isolation"]
    built = subprocess.run(command, check=False, capture_output=True, text=True)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = folder.glob("*.whl")
    assert wheel.stat().st_size < 30e6
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, cwd: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = [sys.executable, "-m", "skipbench", *arguments]
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_carries_every_file(installed: Path) -> None:
    for suffix in ("py", "yaml", "jsonl", "jinja", "html", "css", "js", "c"):
        here = {path.relative_to(ROOT) for path in (ROOT / "skipbench").rglob(f"*.{suffix}")}
        assert here <= {path.relative_to(installed) for path in installed.rglob(f"*.{suffix}")}
    hardware = {path.name for path in (ROOT / "conf" / "hardware").iterdir()}
    assert "h100-measured.json" in hardware
    assert hardware <= {path.name for path in (installed / "skipbench/conf/hardware").iterdir()}
    assert (installed / "skipbench/launch/plugin/hydra_plugins/skipbench_sweeper.py").exists()


def test_runs_and_sweeps(installed: Path, tmp_path: Path) -> None:
    words = "dataset=mini-math", "engine.warmup=0", "limit=1", "results=out"
    output = run(installed, tmp_path, "-m", "method=uniform,middle", "dry_run=true", *words)
    assert output.count(": missing\n") == 2 and not (tmp_path / "out/runs").exists()
    output = run(installed, tmp_path, *words)
    assert "lossless" in output and "1/1" in output
    assert list(tmp_path.glob("out/runs/*/*/metrics.json"))
