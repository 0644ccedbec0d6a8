"""Cells of the papers' tables that hold times: each prints a value from the records."""

from pathlib import Path

import pytest
from builders import traced
from msgspec.structs import replace

from skipbench.config.compose import compose
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.experiments.table_runs import search_costs
from skipbench.report.measured import measure
from skipbench.runs.measures import Metrics, PhaseSeconds, Profiled, Skipped
from skipbench.runs.record import Round
from skipbench.runs.run import Run, read_run

SMALL = ["limit=2", "dataset.max_new_tokens=48", "engine.warmup=0"]
PARTS = Profiled(attention_s=1.0, mlp_s=3.0, head_s=2.0, layers=10)
METRICS = Metrics(
    tokens_per_s=20.0,
    vanilla=Metrics(tokens_per_s=10.0, profiled=PARTS),
    seconds=PhaseSeconds(prefill=9.0, draft=2.0, verify=1.0, adapt=0.5, other=0.5),
    skipped=Skipped(attention=5.0, mlp=0.0, ratio=0.25),
    profiled=PARTS,
)


def test_times_per_token_are_the_phases_and_split_as_profiled() -> None:
    """50 ms per token, half of them drafts: of these 5 of 10 attention blocks are left out."""

    def of(*column: str, metrics: Metrics = METRICS) -> float | None:
        return measure(metrics, *column)[0]

    assert (of("ms", "draft", "all"), of("ms", "verify", "all")) == pytest.approx((25.0, 12.5))
    attention = [of("ms", phase, "attention") for phase in ("draft", "verify", "latency")]
    assert attention == pytest.approx([25 * 5 / 37, 12.5 * 10 / 42, 25 * 5 / 37 + 12.5 * 10 / 42])
    assert of("ms", "latency", "all") == pytest.approx(50.0)
    assert of("us", "threshold update", "all") == pytest.approx(6250.0)
    vanilla = METRICS.baseline
    assert of("ms", "latency", "all", metrics=vanilla) == pytest.approx(100.0)
    assert of("ms", "latency", "mlp", metrics=vanilla) == pytest.approx(100 * 30 / 42)
    before = replace(METRICS, profiled=None)
    assert measure(before, "ms", "draft", "mlp")[0] is None


def test_a_search_while_decoding_is_counted_and_timed(tmp_path: Path) -> None:
    steps = ["method.steps=9", "method.beta=4", "method.window=8", "method.max_score=1"]
    config = compose(["method=swift", f"results={tmp_path}", *SMALL, *steps])
    run_cell(config, print_table=False)
    cell = resolve_cell(config)
    run = read_run(cell.folder)
    metrics = replace(run.measured, optimisation=search_costs(config, run))
    adapt_s, tried = run.measured.seconds.adapt, run.arms[-1].trace["step"][-1]
    assert adapt_s and 4 <= tried <= 9
    assert measure(metrics, "bayes_steps")[0] == tried // 4
    assert measure(metrics, "random_steps")[0] == tried - tried // 4
    assert measure(metrics, "search_s")[0] == pytest.approx(adapt_s)
    assert measure(metrics, "opt_step_ms")[0] == pytest.approx(1e3 * adapt_s / tried)
    assert measure(metrics, "ms", "draft", "attention")[0] is not None  # the run was profiled
    assert search_costs(compose(["method=uniform", *SMALL]), run) is None


def test_a_programme_and_a_verification_take_their_share() -> None:
    own = traced(0, [Round(2, 2, 1, 1, 2)] * 3, {"optimised": [0, 2]})
    costs = search_costs(compose(["method=clasp"]), Run(id="method", kept=[own, own]))
    assert costs and (costs.programmes, costs.steps) == (4, 4)
    timed = replace(METRICS, rounds=6, optimisation=replace(costs, seconds=0.5))
    assert measure(timed, "pass_s", "adapt")[0] == pytest.approx(0.5 / 4)
    assert measure(timed, "pass_s", "verify")[0] == pytest.approx(1.0 / 6)
    assert measure(METRICS, "pass_s", "adapt")[0] is None
