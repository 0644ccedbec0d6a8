"""The table of a profile, of numbers by hand."""

import io

from rich.console import Console

from skipbench.cli.offline import latency_table
from skipbench.metrics.prices import Latencies, Point, Prices, Roofline

POINTS = [
    Point(context, rows, 2e-4, 4e-4, 1e-3, rows * whole)
    for context, whole in ((16, 4e-3), (64, 8e-3))
    for rows in (1, 3)
]
RECORD = Prices(
    model=Latencies(2e-4, 3e-8, 4e-4, 1e-3, 5),
    points=POINTS,
    roofline=Roofline(name="cpu", source="measured", bandwidth=2e10, flops=3e12),
    bytes={"attention": 2_000_000, "mlp": 1_000_000, "head": 5_000_000, "row": 0, "number": 4},
)


def test_units_shares_and_ratios() -> None:
    Console(file=(out := io.StringIO()), width=200).print(latency_table(RECORD, "a profile"))
    words = [line.replace("\u2502", " ").split() for line in out.getvalue().splitlines()]
    rows = [line for line in words if line[:1] in (["16"], ["64"])]
    parts = ["200.0", "400.0", "1000.0"]  # microseconds
    assert rows == [
        ["16", "1", *parts, "4000.0", "1.00", "25%"],
        ["16", "3", *parts, "12000.0", "3.00", "8%"],
        ["64", "1", *parts, "8000.0", "1.00", "12%"],
        ["64", "3", *parts, "24000.0", "3.00", "4%"],
    ]
    assert "roofline (cpu, measured): 20.0 GB/s, 3000 GFLOP/s" in out.getvalue()
