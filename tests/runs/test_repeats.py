"""A cell in several processes: which runs it has, and what its metrics and tables say of them."""

import json
import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace
from test_metrics import arm, sample, vanilla

from skipbench.config.compose import compose
from skipbench.config.run_config import RunConfig
from skipbench.errors import SkipbenchError
from skipbench.experiments.resolve import all_done, joined_run, repetitions, resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.experiments.table_runs import run_entry
from skipbench.metrics.interval import geometric, repeated_ratio_interval
from skipbench.metrics.repeats import summarise_repeats
from skipbench.metrics.summary import summarise
from skipbench.report.tables.formats import markdown
from skipbench.report.tables.runs import row_table
from skipbench.runs.measures import Metrics, Profiled
from skipbench.runs.record import Round, Sample, Seconds

SMALL = ["limit=2", "dataset.max_new_tokens=8", "engine.warmup=0", "dataset=mini-math"]


def timed(seconds: list[float]) -> list[Sample]:
    """A run whose prompts take 4 s with vanilla."""
    rounds = [Round(2, 2, 1, 1, 2)] * 2
    return [
        replace(
            sample(vanilla(4, 4.0), arm(rounds, Seconds(1, s / 2, s / 2, 0, 0))),
            index=index,
            id=str(index),
            score={"vanilla": {"rouge": 0.5}, "method": {"rouge": s}},
        )
        for index, s in enumerate(seconds)
    ]


def summary(samples: list[Sample]) -> Metrics:
    return summarise(samples, 4, None, None, 10)


def test_processes_differ_in_their_seeds_and_the_first_is_the_plain_run() -> None:
    config = compose(["method=swift", "repeats=3"])
    ones = config.repetitions()
    assert [one.seed for one in ones] == [0, 1, 2]
    assert [one.method.node["seed"] for one in ones] == [0, 1, 2]
    assert resolve_cell(ones[0]).folder == resolve_cell(compose(["method=swift"])).folder
    assert len({resolve_cell(one).folder for one in ones}) == 3
    assert RunConfig.from_dict(config.to_dict()) == config
    with pytest.raises(SkipbenchError, match="repeats=0; wanted 1 or more"):
        compose(["repeats=0"]).repetitions()


def test_metrics_of_several_processes_by_hand() -> None:
    runs = [timed([2.0, 4.0, 4.0, 4.0, 4.0]), timed([1.0, 2.0, 2.0, 2.0, 2.0])]
    found = summarise_repeats([(run, summary(run)) for run in runs], layers=4)
    assert (found.samples, found.prompts, found.repeats) == (10, 5, 2)
    # decoding: 4 s of vanilla over the method's; end to end: 5 s / 5 tokens over (1 + seconds) / 5
    decoding = [{"0": 2.0, **dict.fromkeys("1234", 1.0)}, {"0": 4.0, **dict.fromkeys("1234", 2.0)}]
    mean, interval = repeated_ratio_interval(decoding)
    assert found.speedup.paired == pytest.approx(2**0.7) == mean
    assert interval is not None and found.speedup.ci95 == pytest.approx(interval)
    ones = (5 / 3) ** 0.2, 2.5**0.2 * (5 / 3) ** 0.8
    assert [geometric([*p.values()]) for p in found.speedup.by_process] == pytest.approx(ones)
    assert found.speedup.e2e == pytest.approx((ones[0] * ones[1]) ** 0.5)
    assert found.speedup.by_question["1"] == pytest.approx((5 / 3) ** 0.5)
    assert found.tokens_per_s == pytest.approx(40 / 27) and found.peak_memory_bytes == 10
    assert found.score is not None
    assert found.score.method["rouge"] == pytest.approx((18 + 9) / 10)
    known = {"int8_bytes": 8, "profiled": Profiled(attention_s=1, mlp_s=1, head_s=1, layers=4)}
    known |= {"score_rules": {"code": "first function"}}
    found = summarise_repeats([(run, replace(summary(run), **known)) for run in runs], layers=4)
    assert {name: getattr(found, name) for name in known} == known


@pytest.mark.slow
def test_a_cell_runs_in_processes_of_its_own(tmp_path: Path) -> None:
    words = [*SMALL, "method=uniform", f"results={tmp_path}"]
    run_cell(compose(words), print_table=False)
    first = resolve_cell(compose(words)).folder
    before = (first / "samples.jsonl").read_bytes()
    config = compose([*words, "repeats=2"])
    assert not all_done(config)
    metrics = run_cell(config, print_table=False)
    assert metrics is not None and all_done(config)
    assert (metrics.prompts, metrics.repeats) == (2, 2)
    cells = repetitions(resolve_cell(config))
    assert cells[0].folder == first and (first / "samples.jsonl").read_bytes() == before
    pids = {json.loads((c.folder / "status.json").read_text())["pid"] for c in cells}
    assert len(pids) == 2
    entry = run_entry(resolve_cell(config))
    assert entry.processes == [cell.folder.name for cell in cells]
    assert "| 2 x 2 |" in markdown(row_table([entry]))
    shutil.rmtree(cells[1].folder)
    run = joined_run(resolve_cell(config))
    assert run.reason == "1 of 2 repeats are done" and run.measured.repeats == 1
