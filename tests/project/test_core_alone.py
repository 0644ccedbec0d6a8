"""The core runs without `skipbench/contrib`, and replicates the papers."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

PAPERS = ["self-sd", "swift", "clasp", "knapspec"]


@pytest.mark.slow
def test_the_papers_methods_and_tables_need_no_contrib(tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("contrib", "__pycache__")
    shutil.copytree(ROOT / "skipbench", tmp_path / "skipbench", ignore=ignore)
    shutil.copytree(ROOT / "conf", tmp_path / "conf")

    def run(*words: str, status: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "skipbench", *words],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(tmp_path)},
            capture_output=True,
            text=True,
        )
        assert done.returncode == status, done.stderr
        return done.stderr if status else done.stdout

    methods = [line.split()[0] for line in run("list", "methods").splitlines()]
    assert {*PAPERS, "vanilla", "prompt-lookup", "del"} <= {*methods}
    assert not {"auto", "int8"} & {*methods}
    small = "limit=1", "dataset.max_new_tokens=16", "dataset=mini-math", "columns=all"
    told = run(f"method={','.join(PAPERS)}", *small[:3])
    assert all(f"{name} " in told for name in PAPERS) and told.count("1/1") >= len(PAPERS)
    assert "SWIFT" in run("table", "swift-table2", "scale=paper", "--render-only")
    (tmp_path / "model.gguf").touch()
    missing = run("model.path=model.gguf", "method=vanilla", *small[:3], status=2)
    assert "is a part of skipbench/contrib that is not here" in missing
