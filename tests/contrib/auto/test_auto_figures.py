"""Figures of the folder of a run of `auto`."""

from pathlib import Path

import pytest
from msgspec import structs
from msgspec.structs import replace

from skipbench.config.compose import compose
from skipbench.contrib.auto import figures
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.report.figures.registry import draw_run
from skipbench.report.figures.runs import finished_run
from skipbench.runs.record import SOURCES

SMALL = ["limit=1", "engine.warmup=0", "dataset.max_new_tokens=32"]


def test_the_sources_of_a_run_add_up(tmp_path: Path) -> None:
    prices = "method.row_prices=[1,1.02,1.04,1.1,1.2,1.4]"
    config = compose(["method=auto", prices, *SMALL, f"results={tmp_path}"])
    run_cell(config, print_table=False)
    run = finished_run(resolve_cell(config).folder)
    rounds = [r for s in run.sound for r in s.method.rounds]
    axis = figures.accepted([run], []).axes[0]
    labels = axis.get_legend_handles_labels()[1]
    assert labels[0] == "bonus" and "layers" in labels and set(labels[1:]) <= {*SOURCES.values()}
    first = sum(1 + r.accepted for r in rounds[: figures.SPAN])
    drawn = sum(bars[0].get_height() for bars in axis.containers)
    assert drawn == pytest.approx(first / min(len(rounds), figures.SPAN))
    bins = figures.calibration_bins(run)
    assert [e for e, _ in bins] == sorted(e for e, _ in bins) and len(bins) == figures.BINS
    emitted = sum(1 + r.accepted for r in rounds) / len(rounds)
    assert min(n for _, n in bins) <= emitted <= max(n for _, n in bins)
    assert {"auto-sources", "auto-calibration"} <= set(draw_run(run))
    other = structs.replace(run, kept_samples=[replace(s, trace={}) for s in run.sound])
    assert "auto-sources" not in draw_run(other)
