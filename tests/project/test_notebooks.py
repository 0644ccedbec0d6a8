"""The notebooks: committed without outputs, and the code of each runs in a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def cells(path: Path) -> list[dict[str, Any]]:
    return [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]


def test_notebooks_have_no_outputs() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        assert not [c for c in cells(path) if c["outputs"] or c["execution_count"]], path


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    script = tmp_path / f"{path.stem}.py"
    script.write_text("\n\n".join("".join(c["source"]) for c in cells(path)))
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    how = {"env": environment, "capture_output": True, "text": True, "cwd": tmp_path}
    done = subprocess.run([sys.executable, script], timeout=300, **how)
    assert done.returncode == 0, done.stderr
