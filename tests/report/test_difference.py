"""`diff`: two folders of results against each other, by hand."""

import io
from pathlib import Path

import pytest
from builders import CONFIG, folder_of
from msgspec.structs import replace
from rich.console import Console
from test_metrics import timed

from skipbench.cli.offline import latency_table
from skipbench.metrics.prices import Latencies, Point, Prices, Roofline
from skipbench.report.difference import differences
from skipbench.runs.provenance import Provenance
from skipbench.runs.record import Texts
from skipbench.runs.store import RunStore, append_turn


def stored(results: Path, seconds: list[float], failed: int) -> Path:
    """A folder of one run; `failed`: the prompt without an output."""
    folder = folder_of(results, CONFIG)
    store = RunStore(folder, CONFIG, Provenance(commit=results.name))
    for one in timed(seconds):
        kind = "failed" if one.index == failed else "identical"
        own = replace(one.arms["method"], lossless=kind)
        arms = {"vanilla": one.arms["vanilla"], folder.name: own}
        turn = replace(one, order=[*arms], arms=arms)
        append_turn(folder.parent, turn, Texts(one.index, one.id, "", {}, {folder.name: ""}))
    store.close()
    return results


def test_the_second_folder_is_over_the_first_on_the_prompts_of_both(tmp_path: Path) -> None:
    """Vanilla takes 5 s with its prefill, the first folder's method as long, the second's 2.5."""
    first = stored(tmp_path / "a", [4.0] * 8, failed=7)
    second = stored(tmp_path / "b", [1.4, 1.6] * 4, failed=6)
    lines, apart = differences(first, second)
    _, samples, own, other, ratio, low, high, star = lines[1].split()
    assert (samples, own, star, apart) == ("6", "1.000x", "*", 1)
    assert other == f"{ratio}x" and float(ratio) == pytest.approx(2.0, abs=0.01)
    assert 1.8 < float(low.strip("[,")) < float(ratio) < float(high.strip("]"))
    assert "origin: commit: a | b" in lines and not any("outputs have" in line for line in lines)


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
