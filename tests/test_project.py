"""`project` and `diff`: records replayed with other costs, and two folders against each other."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import Command, unseal

from skipbench.config.catalog import known_hardware, shape_of
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.cell import run_cell
from skipbench.metrics.replay import DatasheetCosts, MeasuredCosts, measured, pass_s, project
from skipbench.runs.store import read_samples
from skipbench.skipset import fixed_set


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real runs on the embedded model."""
    folder = tmp_path_factory.mktemp("results")
    short = ["limit=3", "engine.warmup=0", "dataset.max_new_tokens=24", f"results={folder}"]
    for method in ("uniform", "prompt-lookup"):
        run_cell(compose([f"method={method}", *short]), print_table=False)
    return folder


def test_a_datasheet_gives_what_reading_the_weights_takes() -> None:
    shape, device = shape_of("llama3.1-8b"), known_hardware()["a100-80gb"]
    costs = DatasheetCosts(shape, "bfloat16", device)
    read = shape.weight_bytes("bfloat16") - 2 * shape.vocab * shape.hidden
    assert device.bandwidth is not None
    assert pass_s(costs, 0, 1) == pytest.approx(read / (0.6 * device.bandwidth), rel=0.01)
    half = fixed_set("uniform", shape.layers, 0.5)
    assert 0.4 < pass_s(costs, 0, 1, half) / pass_s(costs, 0, 1) < 0.6
    assert pass_s(costs, 16384, 1) > 1.1 * pass_s(costs, 0, 1)
    assert pass_s(costs, 0, 4096) > 5 * pass_s(costs, 0, 1)  # arithmetic


def test_on_its_own_machine_a_run_projects_to_itself(results: Path) -> None:
    (latency,) = (results / "latency").glob("*.json")
    here = MeasuredCosts(json.loads(latency.read_text()))
    for path in results.glob("runs/*/samples.jsonl"):
        samples = read_samples(path)
        own, there = measured(samples), project(samples, here, here)
        assert there.speedup == pytest.approx(own.speedup, rel=1e-6)
        assert there.tokens == own.tokens > 0


def test_a_projection_says_that_it_is_one(skipbench: Command, results: Path) -> None:
    (run,) = results.glob("runs/*uniform*")
    done = skipbench("project", str(run), "hardware=a100-80gb", "lengths=12")
    assert done.returncode == 0, done.stderr
    assert "projection  a100-80gb" in done.stdout and "no measurement" in done.stdout
    assert "by fixed draft length: " in done.stdout


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["hardware=a1000"], "wanted one of"),
        ([], "one of hardware=DEVICE and profile=FILE"),
        (["profile=/nowhere.json"], "no latency file"),
        (["hardware=a6000", "lengths=0"], "lengths=0"),
        (["speed=3"], "keys: "),
    ],
)
def test_what_cannot_be_projected_is_refused(
    words: list[str], why: str, skipbench: Command, results: Path
) -> None:
    (run,) = results.glob("runs/*uniform*")
    done = skipbench("project", str(run), *words)
    assert done.returncode == 2 and why in done.stderr


def test_no_run_is_refused(skipbench: Command, tmp_path: Path) -> None:
    assert skipbench("project", str(tmp_path), "hardware=a6000").returncode == 2


def test_a_folder_differs_from_itself_in_nothing(
    skipbench: Command, results: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other"
    shutil.copytree(results, other)
    same = skipbench("diff", str(results), str(other))
    assert same.returncode == 0 and "2 cells in both; 0 whose interval leaves out 1" in same.stdout
    slowed = next(other.glob("runs/*uniform*/samples.jsonl"))
    lines = [json.loads(line) for line in slowed.read_text().splitlines()]
    for line in lines:
        line["method"]["seconds"]["draft"] *= 100
        line["method"]["tokens"][-1] += 1
    unseal(slowed.parent)
    (slowed.parent / "metrics.json").unlink()  # else its figures would be others than the samples'
    slowed.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = skipbench("diff", str(results), str(other))
    assert found.returncode == 1 and "other tokens" in found.stdout
    assert "1 whose interval leaves out 1" in found.stdout
    shutil.rmtree(next(other.glob("runs/*prompt-lookup*")))
    assert "only in " in skipbench("diff", str(results), str(other)).stdout
    assert skipbench("diff", str(results)).returncode == 2
    assert skipbench("diff", str(results), str(tmp_path)).returncode == 2


def test_no_costs_without_tokens() -> None:
    costs = DatasheetCosts(shape_of("llama3-8b"), "bfloat16", known_hardware()["a6000"])
    with pytest.raises(SkipbenchError, match="no decoded tokens"):
        project([], costs)
