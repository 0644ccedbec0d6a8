"""The table and the figure of a profile, of numbers by hand."""

import io

import pytest
from rich.console import Console

from skipbench.metrics.prices import Parts, Point, Prices, Roofline
from skipbench.report.figures.latencies import latency_figure
from skipbench.report.latencies import latency_table

POINTS = [
    Point(context, rows, 2e-4, 4e-4, 1e-3, rows * whole)
    for context, whole in ((16, 4e-3), (64, 8e-3))
    for rows in (1, 3)
]
RECORD = Prices(
    model=Parts(2e-4, 3e-8, 4e-4, 1e-3, 5),
    points=POINTS,
    residuals={"whole": [0.02, -0.04]},
    overhead={"attention_s": 1e-5, "mlp_s": 2e-5, "head_s": 3e-5},
    roofline=Roofline(name="cpu", source="measured", bandwidth=2e10, flops=3e12),
    floor=[{"attention": 1e-4, "mlp": 2e-4, "head": 5e-4, "whole": p.whole_s / 4} for p in POINTS],
)


def test_units_shares_and_ratios() -> None:
    Console(file=(out := io.StringIO()), width=200).print(latency_table(RECORD, "a profile"))
    words = [line.replace("\u2502", " ").split() for line in out.getvalue().splitlines()]
    rows = [line for line in words if line[:1] in (["16"], ["64"])]
    parts = ["200.0", "400.0", "1000.0"]  # microseconds
    assert rows == [
        ["16", "1", *parts, "4000.0", "1.00", "25%"],
        ["16", "3", *parts, "12000.0", "3.00", "25%"],
        ["64", "1", *parts, "8000.0", "1.00", "25%"],
        ["64", "3", *parts, "24000.0", "3.00", "25%"],
    ]
    text = " ".join(out.getvalue().split())
    assert "attention 200.00 us + 30.00 ns a token of context; MLP 400.00 us" in text
    assert "largest residual (measured / fitted - 1): whole pass 4.0%" in text
    assert "20.0 GB/s, 3000 GFLOP/s" in text


def test_passes_of_a_context_are_over_that_of_one_row_there() -> None:
    _, right = latency_figure(RECORD.builtins()).axes
    for line in (line for line in right.get_lines() if line.get_linestyle() == "-"):
        assert list(line.get_ydata()) == pytest.approx([1.0, 3.0])
