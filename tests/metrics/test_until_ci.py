"""A cell that takes prompts until its speedup's interval is narrow enough."""

import json
from pathlib import Path

import pytest

from skipbench.bench.prompts import Prompt
from skipbench.bench.turns import spread
from skipbench.config.compose import compose
from skipbench.data.rows import Row
from skipbench.errors import SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.metrics.interval import STOP_FROM, half_width, paired_ratio_interval
from skipbench.metrics.repeats import summarise_repeats
from skipbench.report.columns import stopped_early
from skipbench.runs.measures import Metrics, UntilCi
from skipbench.runs.record import Sample
from skipbench.runs.store import read_samples

SHORT = ["method=uniform", "engine.warmup=0", "dataset.max_new_tokens=6", "limit=10"]


def test_the_width_needs_eight_samples() -> None:
    ratios = [1.0, 1.1, 1.05, 0.98, 1.2, 1.01, 1.07, 1.02, 1.15]
    assert half_width(ratios[: STOP_FROM - 1]) == float("inf")
    mean, ends = paired_ratio_interval(ratios)
    assert ends is not None
    assert half_width(ratios) == pytest.approx((ends[1] - ends[0]) / 2 / mean)


def test_a_cell_stops_and_says_so(tmp_path: Path) -> None:
    config = compose([*SHORT, "until_ci=0.99", f"results={tmp_path}"])
    metrics = run_cell(config, print_table=False)
    assert metrics is not None
    told = metrics.until_ci
    assert told is not None
    assert told.stopped and told.samples == metrics.samples == 8 and told.of == 10
    assert told.half_width is not None and told.half_width < 0.99
    assert "stopped at 8 of 10 prompts, by until_ci=0.99" in str(stopped_early(metrics))
    folder = resolve_cell(config).folder
    # interrupted behind five samples, it goes on to the same eight
    lines = (folder / "samples.jsonl").read_text().splitlines(keepends=True)
    texts = (folder / "completions.jsonl").read_text().splitlines(keepends=True)
    (folder / "samples.jsonl").write_text("".join(lines[:5]))
    (folder / "completions.jsonl").write_text("".join(texts[:5]))
    (folder / "metrics.json").unlink()
    status = json.loads((folder / "status.json").read_text())
    status.pop("sha256")
    (folder / "status.json").write_text(json.dumps(status | {"state": "interrupted"}))
    again = run_cell(config, print_table=False)
    assert again and again.until_ci and again.until_ci.samples == 8
    assert [s.index for s in read_samples(folder / "samples.jsonl")] == list(range(8))


@pytest.mark.slow
def test_a_width_that_is_never_reached_takes_all(tmp_path: Path) -> None:
    config = compose([*SHORT, "until_ci=1e-9", f"results={tmp_path}"])
    metrics = run_cell(config, print_table=False)
    assert metrics is not None
    assert metrics.until_ci and not metrics.until_ci.stopped and metrics.samples == 10
    assert stopped_early(metrics) is None


def test_processes_are_told_together() -> None:
    one = UntilCi(wanted=0.02, half_width=0.01, samples=8, of=20, stopped=True)
    other = UntilCi(wanted=0.02, half_width=0.03, samples=20, of=20, stopped=False)
    runs = [(list[Sample](), Metrics(until_ci=until_ci)) for until_ci in (one, other)]
    told = stopped_early(summarise_repeats(runs, 4))
    assert told == "stopped at 28 of 40 prompts, by until_ci=0.02; reached 0.0300"


def test_a_run_without_it_is_the_run_that_it_was() -> None:
    assert "until_ci" not in compose(SHORT).record()
    assert compose([*SHORT, "until_ci=0.02"]).record()["until_ci"] == 0.02


@pytest.mark.parametrize("value", ["0", "1", "-0.1"])
def test_widths_out_of_range_are_refused(value: str) -> None:
    with pytest.raises(SkipbenchError, match="until_ci"):
        compose([*SHORT, f"until_ci={value}"])


def test_groups_take_turns_and_conversations_stay_together() -> None:
    def prompt(name: str, task: str, after: str | None = None) -> Prompt:
        return Prompt(Row(name, name, {}, {"task": task}, after=after), [1], 0, 1)

    prompts = [prompt("a1", "a"), prompt("a1/2", "a", "a1"), prompt("a2", "a")]
    prompts += [prompt("b1", "b"), prompt("b2", "b")]
    assert [prompts[i].row.id for i in spread(prompts)] == ["a1", "a1/2", "b1", "a2", "b2"]
