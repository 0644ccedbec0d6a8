"""`--plan` and `--budget`: GPUs, memory and hours of cells before anything is loaded."""

from dataclasses import replace
from pathlib import Path

import pytest
from conftest import PAPERS, Command, rest_slow

from skipbench.config.compose import compose
from skipbench.config.hardware import Slurm
from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.experiments.costs import (
    LEAST,
    Cost,
    bill,
    budget_hours,
    cost_of,
    gpu_of,
    limited,
    within,
)
from skipbench.experiments.grid import plan
from skipbench.experiments.plan import without_repeats
from skipbench.launch.slurm import memory_for
from skipbench.launch.submit import bill_line


def config(*words: str) -> RunConfig:
    return compose(list(words))


@pytest.mark.parametrize(
    ("model", "dtype", "least", "most"),
    [
        ("llama3-8b", "bfloat16", 1, 1),
        ("llama2-13b", "float16", 1, 1),
        ("llama2-70b", "bfloat16", 2, 2),
        ("llama3.1-405b", "float16", 6, 6),  # in int8, as its file says
    ],
)
def test_gpus_follow_from_the_size_of_the_model(
    model: str, dtype: str, least: int, most: int
) -> None:
    words = [f"model={model}", f"model.dtype={dtype}", "dataset=cnndm", "method=swift"]
    cost = cost_of(config(*words, "limit=null"), gpu_of(None))
    assert cost is not None and least <= cost.gpus <= most
    # the weights alone, read once per token by both arms at the whole bandwidth, take less
    shape = config(*words).model.sizes
    assert shape is not None
    quantization = config(*words).model.quantization
    weights = shape.weight_bytes(dtype, quantization)
    floor = 2 * 1000 * 64 * weights / 2.039e12 / 3600
    assert floor < cost.hours < 3 * floor + cost.fixed_h + 1
    assert cost.memory_bytes > weights


def test_the_405b_takes_at_least_five() -> None:
    words = ["model=llama3.1-405b", "dataset=cnndm", "method=swift", "model.quantization=nf4"]
    quantized = cost_of(config(*words, "engine=reference"), gpu_of(None))
    half = cost_of(config(*words[:3]), gpu_of(None))
    assert quantized is not None and half is not None
    assert quantized.gpus < 5 <= half.gpus


def test_a_context_bounds_what_a_novel_needs() -> None:
    cut = cost_of(config("model=llama3.1-8b", "dataset=pg19", "method=swift"), gpu_of(None))
    assert cut is not None and cut.memory_bytes < 20 * 2**30


def test_wall_clock_and_charged_hours_by_hand() -> None:
    costs = [Cost(1, 1, gpus, 1, hours, 0.0) for gpus, hours in ((1, 3), (2, 4), (1, 1), (8, 1))]
    assert bill(costs, gpus=4) == (5, 3 + 8 + 1 + 8)  # the last takes two such nodes
    assert bill(costs, gpus=4, exclusive=True) == (9, 4 * (3 + 4 + 1) + 8)
    assert bill(costs) == (9, 20) and bill([]) == (0, 0)


@pytest.mark.parametrize("name", ["slurm-a100", "slurm-a6000"])
def test_charged_hours_are_the_planned_ones(name: str) -> None:
    hardware = config(f"hardware={name}").hardware
    assert isinstance(hardware, Slurm)
    words = ["model=llama2-13b", "dataset=cnndm", "method=swift", "limit=null"]
    cost = cost_of(config(*words), gpu_of(hardware))
    assert cost is not None and cost.gpus == 1
    line, charged = bill_line([cost, cost, None], hardware)
    assert charged == 2 * cost.gpu_hours
    assert f"3 cells, about {cost.hours:.1f} h wall-clock on one node of 8 GPUs" in line
    assert line.endswith("1 cells are not counted: their time is not known")
    line, charged = bill_line([cost, cost], replace(hardware, exclusive=True))
    assert charged == 8 * 2 * cost.gpu_hours and f"about {2 * cost.hours:.1f} h" in line


def test_a_budget_is_kept_and_shared() -> None:
    costs = [Cost(1000, 1000, 1, 1, 0.5, 0.01), Cost(80, 80, 2, 1, 0.0, 0.1)]
    whole = sum(c.gpu_hours for c in costs)
    assert within(costs, whole) == costs
    some = within(costs, whole / 2)
    assert sum(c.gpu_hours for c in some) <= whole / 2
    shares = [c.prompts / c.of for c in some]
    assert max(shares) - min(shares) < 0.02 and min(c.prompts for c in some) > LEAST
    with pytest.raises(SkipbenchError, match=f"{LEAST} prompts per cell take"):
        within(costs, 0.5)


def test_a_budget_becomes_the_limit_of_cells() -> None:
    words = ["model=llama3-8b", "method=swift", "dataset=cnndm", "limit=null"]
    (some,) = limited([config(*words)], 0.5, gpu_of(None))
    (all_of,) = limited([config(*words)], 500, gpu_of(None))
    assert some.limit is not None and LEAST < some.limit < 1000 and all_of.limit is None
    (unknown,) = limited([config("limit=3")], 0.5, gpu_of(None))
    assert unknown.limit == 3


@pytest.mark.parametrize(("text", "hours"), [("200h", 200), ("30min", 0.5), ("1.5", 1.5)])
def test_hours(text: str, hours: float) -> None:
    assert budget_hours(text) == hours


@pytest.mark.parametrize("text", ["", "h", "-3h", "2 days", "nan", "inf"])
def test_what_is_no_number_of_hours_is_refused(text: str) -> None:
    with pytest.raises(SkipbenchError, match="budget="):
        budget_hours(text)


def test_vanilla_alone_is_no_cell_of_a_table_where_another_arm_holds_it() -> None:
    for scale, others in (("paper", set()), ("embedded", {"vanilla"})):
        cells = without_repeats("clasp-table1", plan("clasp-table1", [], scale), scale)
        assert {c.overrides["method"] for c in cells} == {"self-sd", "swift", "clasp"} | others


@pytest.mark.parametrize(
    "name",
    rest_slow(["clasp-table1", "self-sd-table14", "self-sd-table15"], "self-sd-table14".__eq__),
)
def test_searches_that_a_table_needs_are_its_cells(name: str) -> None:
    """Each on a training split, or on a dataset that the table does not evaluate."""
    cells = [c for c in plan(name, [], "paper") if c.overrides["method"] == "self-sd"]
    assert any(c.searches for c in cells)
    for cell in cells:
        of = compose(cell.words(name))
        if not cell.searches:
            assert of.model.sets["self-sd"]  # published
            continue
        assert of.search_dataset is not None
        on = of.search_dataset.for_search(of.limit)
        assert on.name != of.dataset.name or on.node["split"] == "train"


def test_a_plan_is_printed_with_its_sum(skipbench: Command, tmp_path: Path) -> None:
    words = ["scale=paper", "models=llama3-8b", f"results={tmp_path}"]
    for command in (["table"], ["status"], ["submit"]):
        more = ["hardware=slurm-a100"] if command == ["submit"] else []
        done = skipbench(*command, "clasp-table1", *words, *more, "--plan")
        assert done.returncode == 0, done.stderr
        # three methods greedy and sampled, and the noise floor of each decoding
        assert "sum: 8 cells" in done.stdout and "GPU-hours on a100-80gb" in done.stdout
        assert done.stdout.splitlines()[-1].startswith("all: 8 cells, about ")
    some = skipbench("table", "clasp-table1", *words, "--plan", "--budget", "5h")
    assert " of 480 " in some.stdout
    used = float(some.stdout.partition("at most ")[2].partition(" ")[0])
    assert 4 < used <= 5.05
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("name", PAPERS)
def test_every_experiment_plans(name: str, skipbench: Command, tmp_path: Path) -> None:
    words = ["scale=paper", "hardware=slurm-a100", f"results={tmp_path}"]
    assert "sum: " in skipbench("submit", name, *words, "--plan").stdout
    for command in (["submit", name, *words, "--print"], ["status", name, *words]):
        done = skipbench(*command)
        assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr


def test_the_memory_of_a_job_grows_with_the_weights() -> None:
    assert memory_for("120G", 16 * 2**30) == "120G"
    assert memory_for("120G", 129 * 2**30) == "145G"
    assert memory_for("1T", 800 * 2**30) == "1T"
    assert memory_for("800G", 800 * 2**30) == "816G"
    assert memory_for(None, 800 * 2**30) is None
