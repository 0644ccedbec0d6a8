"""`--plan`: GPUs, memory and hours of rows before anything is loaded."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from conftest import PAPERS, Command
from msgspec.structs import replace

from skipbench.config.catalog import known_hardware, shape_of
from skipbench.config.compose import compose
from skipbench.config.run_config import RunConfig
from skipbench.experiments.blocks import MOST_ARMS, blocks_of, costs_of
from skipbench.experiments.costs import LOADED_PER_S, Cost, arm_s, bill, gpu_of
from skipbench.launch.slurm import memory_for
from skipbench.runs.cell import Cell


def config(*words: str) -> RunConfig:
    return compose(list(words))


def test_a_step_reads_the_weights_and_the_cache() -> None:
    model, device = config("model=llama3.1-8b").model, known_hardware()["a100-80gb"]
    shape = shape_of("llama3.1-8b")
    assert device.bandwidth is not None
    read = shape.weight_bytes(model.dtype) - 2 * shape.vocab * shape.hidden  # no embedding
    rate = 0.6 * device.bandwidth
    assert arm_s(model, device, 0, 1) == pytest.approx(read / rate)
    more = arm_s(model, device, 16384, 1) - arm_s(model, device, 0, 1)
    assert more > shape.cache_bytes(model.dtype, 16384) / rate  # and the prefill
    quantized = arm_s(replace(model, quantization="int8"), device, 0, 1)
    read = shape.weight_bytes(model.dtype, "int8") - 2 * shape.vocab * shape.hidden
    assert quantized == pytest.approx(read / rate)


def test_wall_clock_and_charged_hours_by_hand() -> None:
    jobs = ((1, 3), (2, 4), (1, 1), (8, 1))
    costs = [Cost((1,), 1, gpus, 1, hours, (0.0,), 0.0) for gpus, hours in jobs]
    assert bill(costs, gpus=4) == (5, 3 + 8 + 1 + 8)  # the last takes two such nodes
    assert bill(costs, gpus=4, exclusive=True) == (9, 4 * (3 + 4 + 1) + 8)
    assert bill(costs) == (9, 20) and bill([]) == (0, 0)


ON_8B = ("model=llama3-8b", "dataset=cnndm", "limit=null")


def row(*methods: str, more: Sequence[str] = ()) -> list[Cell]:
    return [Cell(config(*ON_8B, f"method={name}", *more)) for name in methods]


def sets(cell: Cell, *iterations: int) -> list[Cell]:
    """The cell with searches of so many sets."""
    of = cell.config
    searches = (replace(of.search, iterations=n) for n in iterations)
    return [Cell(replace(of, search_dataset=of.dataset, search=one)) for one in searches]


def seeds(cell: Cell, count: int) -> list[Cell]:
    """The cell with other methods."""
    return [Cell(replace(cell.config, method=cell.config.method.but(seed=n))) for n in range(count)]


def test_a_row_loads_once_and_decodes_vanilla_once_by_hand() -> None:
    noise = row("vanilla", more=["limit=20"])
    (searched,) = sets(*row("self-sd"), row("self-sd")[0].config.search.iterations)
    (alone,) = costs_of(blocks_of(row("swift")), gpu_of(None))
    (cost,) = costs_of(blocks_of([*row("swift", "recycling"), searched, *noise]), gpu_of(None))
    assert alone is not None and cost is not None
    assert alone.hours == pytest.approx(alone.load_h + 2000 * alone.prompt_h)
    assert cost.prompts == (1000, 1000, 1000, 20) and cost.load_h == alone.load_h
    assert alone.load_h == pytest.approx(16.06e9 / LOADED_PER_S / 3600, rel=0.01)
    decoded = (1000 + 3 * 1000 + 20) * alone.prompt_h
    assert cost.search_h[2] > 0 and sum(cost.search_h) == cost.search_h[2]
    assert cost.hours == pytest.approx(alone.load_h + cost.search_h[2] + decoded)


def test_a_search_is_paid_once_by_the_cell_of_most_sets() -> None:
    of = row("self-sd", more=["decoding.temperature=0.5"]) + row("self-sd")
    cells = [cell for one in of for cell in sets(one, 20, 50)]
    costs = costs_of(blocks_of(cells), gpu_of(None))
    paid = [hours for cost in costs if cost for hours in cost.search_h]
    assert [hours > 0 for hours in paid] == [False, True, False, False]


@pytest.mark.parametrize(
    ("arms", "sizes"), [(1, [1]), (9, [9]), (10, [5, 5]), (17, [9, 8]), (23, [8, 8, 7])]
)
def test_rows_are_cut_into_blocks_of_arms(arms: int, sizes: list[int]) -> None:
    cells = seeds(*row("random"), arms)
    other = Cell(config("model=llama3-8b", "dataset=xsum", "method=random"))
    blocks = blocks_of([*cells, other])
    assert [len(block) for block in blocks] == [*sizes, 1] and max(sizes) <= MOST_ARMS
    assert [id(cell) for block in blocks for cell in block] == [id(c) for c in [*cells, other]]
    assert [len(block) for block in blocks_of([*cells, other], cut=False)] == [arms, 1]


def test_cells_that_may_become_one_run_are_never_cut_apart() -> None:
    searched, others = sets(*row("random"), *range(10, 16)), seeds(*row("random"), 6)
    mixed = [cell for pair in zip(others, searched, strict=True) for cell in pair]
    found = [[id(cell) for cell in block] for block in blocks_of(mixed)]
    assert found == [[id(cell) for cell in searched], [id(cell) for cell in others]]


def test_a_plan_is_printed_with_its_sum(skipbench: Command, tmp_path: Path) -> None:
    words = ["scale=paper", "models=llama3-8b", f"results={tmp_path}"]
    for command, what in (("table", "rows"), ("submit", "jobs")):
        more = ["hardware=slurm-a100"] if command == "submit" else []
        done = skipbench(command, "clasp-table1", *words, *more, "--plan")
        # three methods greedy and sampled; the noise floor of each is of 20, in another order
        assert "sum: 8 cells in 4 rows" in done.stdout and "hours on a100-80gb" in done.stdout
        assert done.stdout.splitlines()[-1].startswith(f"all: 4 {what}, about ")
        limits = [line.split() for line in done.stdout.splitlines()[-5:-1]]
        assert [name for name, *_ in limits] == ["limit=10", "limit=20", "limit=40", "all"]
        charged = [float(line[-3]) for line in limits]
        assert 0 < charged[0] < charged[1] < charged[2] < charged[3]
    some = skipbench("table", "clasp-table1", *words, "--plan", "limit=20")
    used = float(some.stdout.partition("at most ")[2].partition(" ")[0])
    assert 0.5 * charged[1] < used <= charged[1]  # the noise floor has half of its prompts
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
