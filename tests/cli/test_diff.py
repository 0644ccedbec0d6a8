"""`diff`: two results folders against each other."""

import json
import shutil
from pathlib import Path

from conftest import Command

from skipbench.config.compose import compose
from skipbench.experiments.row import run_cell


def test_a_folder_differs_from_itself_in_nothing(skipbench: Command, tmp_path: Path) -> None:
    results, other = tmp_path / "results", tmp_path / "other"
    short = ["limit=5", "engine.warmup=0", "dataset.max_new_tokens=16", f"results={results}"]
    for method in ("uniform", "prompt-lookup"):
        run_cell(compose([f"method={method}", *short]), print_table=False)
    shutil.copytree(results, other)
    same = skipbench("diff", str(results), str(other))
    assert same.returncode == 0 and "2 cells in both; 0 whose interval leaves out 1" in same.stdout
    turns, slowed = next(other.glob("runs/*/turns.jsonl")), next(other.glob("runs/*/uniform*"))
    lines = [json.loads(line) for line in turns.read_text().splitlines()]
    for arm in (line["arms"][slowed.name] for line in lines if slowed.name in line["arms"]):
        arm["seconds"]["draft"] *= 100
        arm["tokens"][-1] += 1
    (slowed / "metrics.json").unlink()  # else its figures would be others than the turns'
    turns.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = skipbench("diff", str(results), str(other))
    assert found.returncode == 1 and "0 of 5 outputs have the same tokens" in found.stdout
    assert "1 whose interval leaves out 1" in found.stdout
    shutil.rmtree(next(other.glob("runs/*/prompt-lookup*")))
    assert "only in " in skipbench("diff", str(results), str(other)).stdout
    assert skipbench("diff", str(results)).returncode == 2
    assert skipbench("diff", str(results), str(tmp_path)).returncode == 2
