"""`project` and `diff`: records replayed with other costs, and two folders against each other."""

import json
import math
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
from skipbench.contrib.artifact.costs import Costs, LoopCosts, costs_of
from skipbench.contrib.artifact.replay import project
from skipbench.contrib.artifact.replay_rules import replay, texts_of
from skipbench.contrib.artifact.round_costs import kinds
from skipbench.decode.stopping import Fixed
from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import datasheet
from skipbench.experiments.row import run_cell
from skipbench.metrics.prices import Parts, Prices, TimedRound
from skipbench.profile.roofline import match
from skipbench.runs.provenance import config_hash
from skipbench.runs.record import Verified
from skipbench.runs.store import read_samples
from skipbench.skipset import fixed_set


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
    return costs_of(msgspec.json.decode(path.read_bytes(), type=Prices))


def test_a_datasheet_gives_what_reading_the_weights_takes() -> None:
    shape, device = shape_of("llama3.1-8b"), known_hardware()["a100-80gb"]
    costs = datasheet(shape, "bfloat16", device)
    read = shape.weight_bytes("bfloat16") - 2 * shape.vocab * shape.hidden
    one = costs.pass_s(1, 0)
    assert device.bandwidth is not None and one == pytest.approx(read / (0.6 * device.bandwidth))
    half = fixed_set("uniform", shape.layers, 0.5)
    assert 0.4 < costs.pass_s(1, 0, half) / one < 0.6
    assert costs.pass_s(1, 16384) > 1.1 * one
    assert costs.pass_s(4096, 0) > 5 * one  # arithmetic
    quantized = datasheet(shape, "bfloat16", device, "int8").pass_s(1, 0)
    read = shape.weight_bytes("bfloat16", "int8") - 2 * shape.vocab * shape.hidden
    assert quantized == pytest.approx(read / (0.6 * device.bandwidth))


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


def test_measured_hardware_is_no_place_and_no_datasheet(skipbench: Command) -> None:
    assert match("NVIDIA H100 80GB HBM3", known_hardware()) == "h100-sxm"
    table = "table", "swift-table2", "scale=paper", "--plan"
    for words, why in (
        (["hardware=h100-measured"], "hardware=h100-measured is no place where cells run"),
        (["hardware=slurm-a100", "hardware.device=h100-measured"], "wanted one of a100-40gb"),
    ):
        done = skipbench(*table, *words)
        assert done.returncode == 2 and why in done.stderr and done.stderr.count("\n") == 1


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
    costs = datasheet(shape_of("llama3-8b"), "bfloat16", known_hardware()["a6000"])
    with pytest.raises(SkipbenchError, match="no decoded tokens"):
        project([], Costs(costs))


def test_costs_of_rounds_are_found_again() -> None:
    """Points that follow the model give the model back, between the points as well."""
    layers, plain = 10, Verified()

    def point(
        context: int, rows: int, steps: int, attention: int, mlp: int, how: Verified
    ) -> TimedRound:
        draft = 3e-5 + steps * (1e-4 + attention * (2e-4 + 1e-7 * context) + mlp * 3e-4)
        verify = 5e-3 + rows * (1e-3 + 1e-6 * context) + 2e-3 * how.tree * rows
        verify += (5e-4 - 3e-4 * how.tree) * bool(how.top_tokens) * rows
        return TimedRound(
            context, rows, steps, attention, mlp, how, draft if steps else 0.0, verify, 0.0
        )

    points = [point(c, r, 0, 10, 10, plain) for c in (64, 512) for r in (1, 5, 17)]
    sets = ((10, 10), (5, 5), (0, 10), (10, 0))
    points += [point(c, 5, 4, a, m, plain) for c in (64, 512) for a, m in sets]
    points += [point(64, 2, 1, 5, 5, plain), point(64, 9, 8, 5, 5, plain)]
    points += [point(64, r, 0, 10, 10, Verified(tree=True)) for r in (5, 17)]
    points += [point(64, r, 0, 10, 10, Verified(tree=True, top_tokens=6)) for r in (5, 17)]
    points += [point(64, r, 0, 10, 10, Verified(top_tokens=6)) for r in (5, 17)]
    costs = LoopCosts(layers, points)
    half = fixed_set("uniform", layers, 0.5)
    at = 300 + 6 / 2
    kept = layers - len(half.attention), layers - len(half.mlp)
    wanted = 3e-5 + 6 * (1e-4 + kept[0] * (2e-4 + 1e-7 * at) + kept[1] * 3e-4)
    assert costs.draft_s(300, 6, half, Verified()) == pytest.approx(wanted)
    wanted = 5e-3 + 11 * (1e-3 + 1e-6 * 300)
    assert costs.verify_s(300, 11, Verified()) == pytest.approx(wanted)
    tree = costs.verify_s(300, 11, Verified(tree=True))
    assert tree == pytest.approx(wanted + 2e-3 * 11)
    # timed together, a tree and top tokens are taken as they are, not as a sum
    both = costs.verify_s(300, 11, Verified(tree=True, top_tokens=6))
    assert both == pytest.approx(wanted + (2e-3 + 5e-4 - 3e-4) * 11)


def test_costs_of_plans_are_those_that_made_the_rounds() -> None:
    layers, model = 10, Parts(2e-4, 1e-7, 3e-4, 1e-3, 10)
    low = msgspec.structs.replace(model, attention_s=9e-5, mlp_s=1.4e-4, head_s=4e-4)
    model = msgspec.structs.replace(model, variants={"int8": low})
    passes, rounds = Prices(model=model), []
    for kind in kinds(layers, (64, 512), {"int8"}):
        draft_s = kind.steps * passes.pass_s(1, kind.context, kind.plan)
        kept = layers - len(kind.plan.attention), layers - len(kind.plan.mlp)
        text = str(kind.plan) if kind.plan.variant else ""
        if kind.how == Verified():
            given = kind.context, kind.rows, kind.steps, *kept, kind.how, draft_s, 1e-3, 0.0
            rounds.append(TimedRound(*given, plan=text))
    costs = LoopCosts(layers, rounds)
    for text in ("mlp:5,7", "int8;attn:1-4;mlp:2", "int8"):
        plan = DraftPlan.parse(text, layers)
        wanted = Costs(passes).draft_s(300, 5, plan)
        assert costs.draft_s(300, 5, plan) == pytest.approx(wanted, rel=1e-6)


def test_the_first_step_of_an_early_exit_has_a_price_of_its_own() -> None:
    """A short draft up to an exit is not a part of a long one: each length is found again."""
    layers, first, step = 10, 9e-4, 3e-4

    def point(steps: int, kept: int, exits: int, draft_s: float) -> TimedRound:
        how = Verified(exit_sublayer=exits)
        return TimedRound(64, 1 + steps, steps, kept, kept, how, draft_s, 5e-3, 0.0)

    points = [point(0, layers, 0, 0.0)]
    points += [point(n, kept, 0, n * kept * 4e-4) for n in (1, 4, 8) for kept in (5, 10)]
    points += [point(n, 1, 2, first + (n - 1) * step) for n in (1, 4)]
    costs = LoopCosts(layers, points)
    late = DraftPlan.of(layers, range(2, 2 * layers))
    for steps in (1, 2, 4, 8):
        found = costs.draft_s(64 - steps / 2, steps, late, Verified(exit_sublayer=2))
        assert found == pytest.approx(first + (steps - 1) * step, rel=1e-3)


def test_one_row_behind_many_takes_longer() -> None:
    """The same share per e-fold of the rows before, and none behind another single row."""

    def point(rows: int) -> TimedRound:
        behind_s = 1.1e-3 * (1 + 0.03 * math.log(rows))
        return TimedRound(64, rows, 0, 4, 4, Verified(), 0.0, 1e-3 * rows, behind_s)

    costs = LoopCosts(4, [point(n) for n in (1, 5, 17)])
    assert costs.verify_s(64, 1, Verified()) == pytest.approx(1e-3)
    behind = costs.verify_s(64, 1, Verified(), before=9)
    assert behind == pytest.approx(1e-3 * (1 + 0.03 * math.log(9)))
    assert costs.verify_s(64, 5, Verified(), before=9) == pytest.approx(5e-3)


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
