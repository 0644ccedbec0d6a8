"""`diff` of two folders by hand, and forest plots: which runs they hold, what they take."""

import io
from pathlib import Path

import pytest
from builders import CONFIG, folder_of
from conftest import ROOT
from matplotlib.figure import Figure
from msgspec import structs
from msgspec.structs import replace
from rich.console import Console
from test_metrics import timed

from skipbench.cli.main import dispatch
from skipbench.cli.offline import latency_table
from skipbench.errors import SkipbenchError
from skipbench.metrics.interval import paired_ratio_interval
from skipbench.metrics.prices import Latencies, Point, Prices, Roofline
from skipbench.report.difference import differences
from skipbench.report.figures.forest import forest, rows_of
from skipbench.runs.measures import Metrics, Speedup
from skipbench.runs.provenance import Provenance
from skipbench.runs.record import Texts
from skipbench.runs.run import Origin, Run
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


VANILLA = (0.99, 1.01, 1.0, 1.02, 0.98, 1.0)
FAST = (1.2, 1.31, 1.24, 1.26, 1.25, 1.24)
CLOSE = tuple(r * 0.99 + 0.02 * (i % 2) for i, r in enumerate(FAST))
SLOW = tuple(0.5 * r for r in FAST)


def run(method: str, *ratios: float, dataset: str = "d", **more: object) -> Run:
    mean, ends = paired_ratio_interval(ratios)
    by_question = {str(i): ratio for i, ratio in enumerate(ratios)}
    speedup = Speedup(e2e=mean, e2e_ci95=ends, by_question=by_question)
    metrics = Metrics(samples=len(ratios), speedup=speedup)
    known = {"id": f"m_{method}_{dataset}", "model": "m", "dataset": dataset, "method": method}
    return Run(**{**known, "metrics": metrics, **more})  # type: ignore[arg-type] # fields of Run


def titles(drawn: Figure) -> list[str]:
    return [axis.get_title(loc="left") for axis in drawn.axes]


def filled(drawn: Figure) -> list[str]:
    """The arms of the first panel that are to be taken."""
    axis = drawn.axes[0]
    points = [line for line in axis.get_lines() if line.get_marker() == "o"]
    names = [text.get_text() for text in axis.get_yticklabels()]
    assert [point.get_ydata()[0] for point in points] == [*range(len(names))]
    faces = [point.get_markerfacecolor() for point in points]
    return [name for name, face in zip(names, faces, strict=True) if face != "white"]


def test_the_best_and_those_as_good_are_taken() -> None:
    runs = [run("vanilla", *VANILLA), run("c", *SLOW), run("b", *CLOSE), run("a", *FAST)]
    drawn = forest(rows_of([*runs, run("a", *FAST[:4], dataset="e")]))
    first, few = titles(drawn)
    assert first == "m on d:\ntake a, 1.25x [1.19, 1.31] of vanilla; not significantly slower: b"
    assert few == "m on e:\nno recommendation with fewer than 5 questions that all have"
    axis = drawn.axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["a", "b", "vanilla", "c"]
    assert filled(drawn) == ["a", "b"]
    (band,) = axis.patches
    assert (band.get_x(), band.get_x() + band.get_width()) == pytest.approx(
        runs[0].measured.speedup.headline[1]
    )
    lines = [line.get_xdata() for line in axis.get_lines() if len(line.get_xdata()) == 2]
    assert tuple(runs[3].measured.speedup.headline[1] or ()) in [tuple(line) for line in lines]
    assert axis.texts[0].get_text() == "1.25x [1.19, 1.31]  n 6"
    noise = forest(rows_of([run("vanilla", *VANILLA), run("c", *SLOW)]))
    assert filled(noise) == ["vanilla"] and "nothing is faster beyond the noise" in titles(noise)[0]


def test_a_run_stands_once_and_other_machines_and_engines_have_panels_of_their_own() -> None:
    same = run("a", *FAST)
    other = structs.replace(same, id="m_a_7", keys={"subtask": "rag"})
    (row,) = rows_of([same, structs.replace(same, keys={"subtask": "qa"}), other]).values()
    assert [one.id for one in row] == ["m_a_d", "m_a_7"]
    drawn = forest({"m on d": row})
    assert [text.get_text() for text in drawn.axes[0].get_yticklabels()] == ["a d", "a 7"]
    origins = [Origin(cpu=cpu, device="cpu", dtype=d) for cpu, d in ("Ab", "Bb", "Bf")]
    runs = [structs.replace(same, id=f"row{n}/a", origin=of) for n, of in enumerate(origins)]
    assert [*rows_of(runs)] == ["m on d, b, A", "m on d, b, B", "m on d, f, B"]
    engines = [("fused", 0), ("reference", 0), ("reference", 1)]
    runs = [
        structs.replace(same, id=f"row{n}/a", origin=Origin(engine=e), keys={"temperature": warm})
        for n, (e, warm) in enumerate(engines)
    ]
    assert [*rows_of(runs)] == [
        "m on d, greedy, fused",
        "m on d, greedy, reference",
        "m on d, temperature 1, reference",
    ]


def test_the_command_draws_a_table_by_its_name_or_file(tmp_path: Path) -> None:
    table = (ROOT / "results/laptop/tables/real.json").read_bytes()
    place = tmp_path / "tables" / "compare-mine.json"
    place.parent.mkdir()
    place.write_bytes(table)
    dispatch(["figure", "compare-mine", f"results={tmp_path}"])
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()}
    assert {*drawn} == {f"compare-mine.{suffix}" for suffix in ("png", "svg", "pdf")}
    dispatch(["figure", str(place)])
    assert {path.name: path.read_bytes() for path in (tmp_path / "figures").iterdir()} == drawn
    place.write_text('{"experiment": "a", "scale": "", "runs": []}')
    with pytest.raises(SkipbenchError, match="no run of it has a speedup"):
        dispatch(["figure", "compare-mine", f"results={tmp_path}"])
