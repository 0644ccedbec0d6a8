"""`project`: records replayed with other costs."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from conftest import Command, unseal

from skipbench.config.catalog import known_hardware, shape_of
from skipbench.config.compose import compose
from skipbench.config.paths import CONF
from skipbench.contrib.artifact.replay import project
from skipbench.contrib.artifact.replay_rules import replay, texts_of
from skipbench.decode.stopping import Fixed
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.metrics.costs import Costs, Datasheet
from skipbench.metrics.loop_costs import LatencyRecord
from skipbench.runs.provenance import config_hash
from skipbench.runs.store import read_samples


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two real runs on the embedded model."""
    folder = tmp_path_factory.mktemp("results")
    short = ["limit=5", "engine.warmup=0", "dataset.max_new_tokens=16", f"results={folder}"]
    for method, more in (("uniform", ["method.stop.threshold=0.5"]), ("prompt-lookup", [])):
        run_cell(compose([f"method={method}", *more, *short]), print_table=False)
    return folder


@pytest.fixture
def run(results: Path) -> Path:
    """The folder of the one that has a stop rule."""
    (found,) = results.glob("runs/*uniform*")
    return found


def measured_costs(results: Path) -> Costs:
    (path,) = (results / "latency").glob("*.json")
    return msgspec.json.decode(path.read_bytes(), type=LatencyRecord).costs()


def test_a_projection_says_that_it_is_one(skipbench: Command, run: Path) -> None:
    done = skipbench("project", str(run), "hardware=a100-80gb")
    assert done.returncode == 0, done.stderr
    assert "projection  a100-80gb" in done.stdout and "no measurement" in done.stdout
    machine = json.loads(skipbench("project", str(run), "hardware=a100-80gb", "--json").stdout)
    assert machine["projection"]["device"] == "a100-80gb" and machine["method"] == "uniform"
    headline = json.loads((run / "metrics.json").read_text())["speedup"]
    head, own, _ = done.stdout.splitlines()[1:4]
    assert head.split()[-2:] == ["micro", "speedup"]
    assert own.split()[-2:] == [f"{headline['micro']:.3f}x", f"{headline['e2e']:.3f}x"]


def test_a_card_projects_as_its_run(
    skipbench: Command, run: Path, results: Path, tmp_path: Path
) -> None:
    shown = skipbench("card", run.name, f"results={results}").stdout
    assert "uniform on tiny, mini-stories: 5 requests" in shown
    assert '"rejection_sample_method": "synthetic"' in shown and "draft length" in shown
    cards = tmp_path / "cards.jsonl"
    skipbench("card", f"results={results}", "--json", str(cards))
    assert len(cards.read_text().splitlines()) == 2
    one = skipbench("card", f"results={results}", "arm=uniform", "--json").stdout
    assert json.loads(one) in map(json.loads, cards.read_text().splitlines())
    cards.write_text(one)
    of_card = json.loads(skipbench("project", f"card={cards}", "hardware=h200", "--json").stdout)
    of_run = json.loads(skipbench("project", str(run), "hardware=h200", "--json").stdout)
    for rate in ("tokens_per_s", "vanilla", "micro"):
        assert of_card["projection"][rate] == pytest.approx(of_run["projection"][rate])
    assert of_card["measured"]["micro"] == pytest.approx(of_run["measured"]["micro"])
    for words, why in (
        ([f"card={cards}"], "no machine of its own"),
        ([str(run), f"card={cards}", "hardware=h200"], "needs one run, or card=FILE"),
        (["card=/nowhere", "hardware=h200"], "acceptance cards"),
    ):
        done = skipbench("project", *words)
        assert done.returncode == 2 and why in done.stderr
    assert "no run of asd in" in skipbench("card", f"results={results}", "arm=asd").stderr


@pytest.mark.parametrize("name", ["h100-measured", "h100-measured-fused"])
def test_measured_hardware_projects_as_its_latency_file(
    name: str, skipbench: Command, run: Path, results: Path, tmp_path: Path
) -> None:
    """Of runs of a model whose sizes are those of the one that was timed, and of no others."""
    card = json.loads(skipbench("card", run.name, f"results={results}", "--json").stdout)

    def projected(sizes: str, *words: str) -> tuple[dict[str, Any], str]:
        shape = shape_of(sizes)
        card["layers"], card["model"] = shape.layers, sizes
        card["settings"]["model"]["architecture"] = asdict(shape)
        (tmp_path / "card.jsonl").write_text(json.dumps(card))
        done = skipbench("project", f"card={tmp_path / 'card.jsonl'}", *words, "--json")
        return json.loads(done.stdout or "{}").get("projection", {}), done.stderr

    file = CONF / "hardware" / f"{name}.json"
    of_file, _ = projected("llama3.1-8b", f"profile={file}")
    of_name, _ = projected("llama3.1-8b", f"hardware={name}")
    assert of_name == {**of_file, "device": name}
    for words, why in (
        (("llama2-7b", f"hardware={name}"), "has the prices of llama3-8b, and llama2-7b has"),
        (("llama2-13b", f"profile={file}"), "of 32 layers, and the run's has 40"),
    ):
        found, error = projected(*words)
        assert not found and why in error and error.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["hardware=a1000"], "wanted one of"),
        ([], "holds no times of rounds"),
        (["hardware=a6000", "profile=x.json"], "one of hardware=DEVICE and profile=FILE"),
        (["hardware=a6000", "search=0"], "search=0"),
        (["profile=/nowhere.json"], "no latency file"),
        (["speed=3"], "does not take speed=3; it takes hardware"),
    ],
)
def test_what_cannot_be_projected_is_refused(
    words: list[str], why: str, skipbench: Command, run: Path
) -> None:
    done = skipbench("project", str(run), *words)
    assert done.returncode == 2 and why in done.stderr


@pytest.mark.parametrize("path", ["/no/such/checkpoint", "nobody/no-such-model", "a/b/c"])
def test_a_model_that_is_gone_has_no_sizes(
    path: str, skipbench: Command, run: Path, tmp_path: Path
) -> None:
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["model"]["path"] = path
    name = f"{run.name.rpartition('_')[0]}_{config_hash(settings)}"
    moved = shutil.copytree(run, tmp_path / "runs" / name)
    (moved / "config.yaml").write_text(yaml.safe_dump(settings))
    unseal(moved)
    done = skipbench("project", str(moved), "hardware=a100-80gb")
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert path in done.stderr and "give profile=FILE" in done.stderr


def test_no_costs_without_tokens() -> None:
    costs = Datasheet(shape_of("llama3-8b"), "bfloat16", known_hardware()["a6000"])
    with pytest.raises(SkipbenchError, match="no decoded tokens"):
        project([], costs)


def test_the_rule_of_the_run_replays_to_the_run(run: Path, results: Path) -> None:
    samples = read_samples(run / "samples.jsonl")
    costs = measured_costs(results)
    texts, far = texts_of(samples, costs.layers), project(samples, costs)
    rule = compose(["method=uniform"]).method.make_stop()
    same = replay(texts, Fixed(rule.max_steps, 0.5), (), costs)
    rounds = [r for s in samples for r in s.method.rounds]
    assert (same.rounds, same.steps) == (len(rounds), sum(r.steps for r in rounds))
    assert same.accepted == sum(r.accepted for r in rounds) and not same.unknown
    assert same.speedup(far) == pytest.approx(far.micro, rel=1e-9)
    short = replay(texts, Fixed(1, 0.5), (), costs)
    assert short.steps <= short.rounds and short.emitted == same.emitted


def test_stop_rules_are_searched(skipbench: Command, run: Path, results: Path) -> None:
    done = skipbench("project", str(run), "hardware=a100-80gb", "search=2")
    assert done.returncode == 0, done.stderr
    assert "stop rules and trees replayed" in done.stdout and "method.stop." in done.stdout
    (other,) = results.glob("runs/*prompt-lookup*")
    none = skipbench("project", str(other), "hardware=a100-80gb", "search=2")
    assert none.returncode == 2 and "no confidence per drafted token" in none.stderr
