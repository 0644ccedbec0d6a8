"""Cells and tables: what is shown, what a missing value looks like, and that it fits the
terminal.
"""

import csv
import io
from typing import Any

import pytest
from msgspec import structs
from rich.console import Console, RenderableType

from skipbench.metrics.costs import Latency
from skipbench.metrics.summary import summarise
from skipbench.report.cell import cell_lines, markdown_cell, render_cell
from skipbench.report.columns import MISSING, main_cells
from skipbench.report.definitions import DEFINITIONS, LEGEND, caution
from skipbench.report.tables.formats import csv as write_csv
from skipbench.report.tables.html import html
from skipbench.report.tables.markdown import markdown
from skipbench.report.tables.model import Cell
from skipbench.report.tables.runs import run_table
from skipbench.runs.measures import Metrics, Score, Speedup
from skipbench.runs.record import Arm, Round, Sample, Seconds
from skipbench.runs.run import Origin, Run

HEADER = {
    "model": "llama3-8b",
    "method": "swift",
    "dataset": "cnndm",
    "engine": "fused",
    "dtype": "bfloat16",
    "device": "NVIDIA [H200]",
    "threads": "16",
}
PROVENANCE = Origin(
    engine="fused",
    device="cpu",
    commit="0123abc",
    date="2025-01-02",
    torch="2.8.0",
)


def sample(index: int, draft_s: float, steps: int = 4, **more: Any) -> Sample:
    accepted = steps - 1 if steps else 0
    rounds = [Round(steps, steps, accepted, accepted, accepted + 1)] * 10
    tokens = sum(r.emitted for r in rounds)
    base = Arm(
        [1] * (tokens + 1),
        [Round(0, 0, 0, 0, 1)] * tokens,
        Seconds(0.1, 0.0, 0.4, 0.0, 0.1),
        "length",
    )
    method = Arm([1] * (tokens + 1), rounds, Seconds(0.1, draft_s, 0.1, 0.02, 0.03), "length")
    given = {"lossless": "identical", "skip": "attn:1-3;mlp:2", **more}
    return Sample(index, str(index), "hash", 8, ["vanilla", "method"], base, method, **given)


def metrics(
    samples: list[Sample], latency: Latency | None = None, roofline: float | None = None
) -> Metrics:
    return summarise(samples, 6, latency, roofline, None)


def full() -> Metrics:
    score = {"vanilla": {"rouge2": 0.2}, "method": {"rouge2": 0.3}}
    more: dict[str, Any] = {"score": score, "groups": {"body": "unseen"}}
    samples = [sample(i, 0.1 + 0.01 * i, trace={"searching": [i < 9]}, **more) for i in range(19)]
    samples += [sample(19, 0.2, lossless="tie"), sample(20, 0.2, lossless="failed")]
    return metrics(samples, Latency(2e-4, 4e-4, 3e-4, 6), 0.005)


def partial() -> list[Any]:
    return [
        pytest.param(metrics([]), id="nothing"),
        pytest.param(metrics([sample(0, 0.1, lossless="failed")]), id="all failed"),
        pytest.param(metrics([sample(0, 0.1)]), id="one sample"),
        pytest.param(metrics([sample(0, 0.0, steps=0, skip="")]), id="no drafts"),
        pytest.param(
            metrics([sample(0, 0.1, steps=1), sample(1, 0.1, steps=1)]), id="nothing accepted"
        ),
        pytest.param(Metrics(), id="empty"),
        pytest.param(full(), id="full"),
    ]


def text(renderable: RenderableType, width: int) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(renderable)
    return out.getvalue()


@pytest.mark.parametrize("of", partial())
@pytest.mark.parametrize("width", [80, 120])
def test_rendering_never_shows_none_or_nan(of: Metrics, width: int) -> None:
    run = Run(model="m", method="x", dataset="d", metrics=of)
    for shown in (
        text(render_cell(of, HEADER), width),
        markdown_cell(of, HEADER),
        markdown(run_table("T", [run])),
    ):
        assert "None" not in shown
        assert "nan" not in shown.lower()
    assert max(map(len, text(render_cell(of, HEADER), width).splitlines())) <= width
    assert "None" not in csv_table([run])


def test_main_row() -> None:
    cells = main_cells(full())
    # 3 of 4 accepted and the bonus
    assert (cells["M"], cells["alpha"], cells["tau"]) == ("4.00", "0.750", "4.00")
    # 4 of 12 sub-layers skipped, so c = 2/3: 4 / (3 * (2/3) / 0.75 + 1) = 1.0909
    assert cells["E(Spd)"].startswith("1.09 / ")
    assert cells["lossless"] == "19/20"
    assert cells["tok/s"].startswith("80.0 -> ")  # 40 tokens in 0.5 s
    low, high = full().speedup.ci95 or ()
    assert cells["speedup"].endswith(f"x [{low:.2f}, {high:.2f}]")


def test_widest_numbers_fit_80_columns_in_one_row() -> None:
    of = structs.replace(
        full(),
        M=12.345,
        tau=12.345,
        tpt=1234.5,
        tokens_per_s=1801.2,
        tokens_per_s_vanilla=1234.5,
    )
    assert "12.3  0.750  12.3  1234" in text(render_cell(of, HEADER), 80)
    assert main_cells(of)["speedup"] in text(render_cell(of, HEADER), 80)


def test_details_of_a_cell() -> None:
    lines = dict(cell_lines(full(), HEADER))
    assert "samples 20" in lines["cell"]
    assert "device NVIDIA [H200]" in lines["cell"]
    assert lines["score"] == "rouge2 0.200 -> 0.300; body=unseen (19) rouge2 0.200 -> 0.300"
    assert lines["alpha"] == "macro 0.750; chain 0.750; cond 0.750"  # 3 accepted, then a rejection
    assert lines["skipped"] == "attention 3.00; mlp 1.00; ratio 0.33"
    assert lines["lossless"] == "1 tie; 1 failed"
    assert lines["roofline"].startswith("40%")  # 0.005 s against 0.5 s / 40 tokens
    assert lines["time"].startswith("prefill ")
    assert MISSING not in lines


def scored(vanilla: dict[str, float], method: dict[str, float], *kinds: str) -> str:
    both = {"vanilla": vanilla, "method": method}
    samples = [sample(i, 0.1, score=both, lossless=kind) for i, kind in enumerate(kinds)]
    return dict(cell_lines(metrics(samples), HEADER))["score"]


def test_bleu_is_shown_in_percent_and_shares_as_shares() -> None:
    one = {"rouge2": 0.1234, "sentence_bleu": 34.567}
    assert scored(one, one, "identical") == "rouge2 0.123 -> 0.123; sentence_bleu 34.6 -> 34.6"
    of = Metrics(samples=1, score=Score(vanilla={"bleu": 100.0}, method={"bleu": 100.0}))
    assert dict(cell_lines(of, HEADER))["score"] == "bleu 100.0 -> 100.0"


def test_scores_that_differ_on_identical_tokens_are_called_out() -> None:
    right, wrong = {"exact": 1.0}, {"exact": 0.0}
    assert "NOT EQUAL" in scored(right, wrong, "identical", "identical")
    assert "NOT EQUAL" not in scored(right, right, "identical")
    for kind in ("tie", "diverged", "sampled"):
        assert scored(right, wrong, "identical", kind) == "exact 1.000 -> 0.000"


def test_missing_values_give_their_reason() -> None:
    one = metrics([sample(0, 0.0, steps=0, skip="")])
    assert (
        main_cells(one)["alpha"] == main_cells(one)["TPT"] == main_cells(one)["E(Spd)"] == MISSING
    )
    assert "nothing was drafted" in dict(cell_lines(one, HEADER))[MISSING]
    assert "TPT: sub-layer latencies were not profiled" in dict(cell_lines(one, HEADER))[MISSING]
    drafted_nothing = metrics([sample(0, 0.0, steps=0, skip="")], Latency(2e-4, 4e-4, 3e-4, 6))
    assert main_cells(drafted_nothing)["TPT"] == "256"  # 1 / (6 * 0.6 ms + 0.3 ms)
    assert "TPT" not in dict(cell_lines(drafted_nothing, HEADER))[MISSING]
    assert "needs two samples" in dict(cell_lines(one, HEADER))[MISSING]
    assert "no sample finished" in text(render_cell(metrics([]), HEADER), 80)
    sampled = metrics([sample(0, 0.1, lossless="sampled")])
    assert "not greedy" in dict(cell_lines(sampled, HEADER))[MISSING]


def test_every_column_is_defined_once_and_printed() -> None:
    assert set(main_cells(Metrics())) <= set(DEFINITIONS)
    shown = markdown_cell(full(), HEADER)
    for name, sentence in DEFINITIONS.items():
        # n is a column of tables; nothing was measured of the memory and of rounds
        assert (f"- *{name}*: {sentence}" in shown) == (name not in ("n", "memory", "TPOT"))
    # in the terminal one line stands for all of them
    terminal = text(render_cell(full(), HEADER), 400)
    assert LEGEND in terminal and DEFINITIONS["M"] not in terminal


def run(method: str, dataset: str, of: Metrics | None, **more: Any) -> Run:
    given = {"model": "llama3-8b", "origin": PROVENANCE, **more}
    return Run(method=method, dataset=dataset, metrics=of, **given)


def cells(runs: list[Run]) -> list[dict[str, Cell]]:
    """The rows of the table, by the names of the columns."""
    (grid,) = run_table("T", runs).grids
    names = [column.name for column in grid.columns]
    return [dict(zip(names, row.cells, strict=True)) for row in grid.rows]


def csv_table(runs: list[Run]) -> str:
    return write_csv(run_table("T", runs))


def html_table(title: str, runs: list[Run]) -> str:
    return html(run_table(title, runs), styled=False)


def test_rows_are_grouped() -> None:
    slow, fast = metrics([sample(0, 0.3)]), metrics([sample(0, 0.1)])
    runs = [
        run("clasp", "a", slow),
        run("swift", "b", slow),
        run("swift", "a", fast),
        run("clasp", "b", None),
    ]
    rows = cells(runs)
    assert [(r["dataset"].text, r["method"].text) for r in rows] == [
        ("a", "clasp"),
        ("a", "swift"),
        ("b", "clasp"),
        ("b", "swift"),
    ]
    # Vanilla 0.5 s; slow 0.3 + 0.15 s, fast 0.1 + 0.15 s. One sample has no interval, so that none
    # is known to be the best.
    assert [r["speedup"].text for r in rows] == ["1.11x", "2.00x", MISSING, "1.11x"]


def timed(method: str, low: float | None, high: float | None = None, dataset: str = "a") -> Run:
    """A row by hand: the interval of its speedup, or one value without any."""
    ends = None if low is None or high is None else (low, high)
    middle = 1.5 if low is None else low if high is None else (low + high) / 2
    return run(method, dataset, Metrics(samples=4, speedup=Speedup(paired=middle, ci95=ends)))


@pytest.mark.parametrize(
    ("rows", "bold"),
    [
        pytest.param(
            [timed("vanilla", 0.97, 1.17), timed("swift", 0.8, 1.1)],
            [],
            id="vanilla is the fastest",
        ),
        pytest.param(
            [timed("vanilla", 1.2, 1.3), timed("swift", 1.05, 1.1)],
            [],
            id="vanilla beyond its interval",
        ),
        pytest.param(
            [timed("swift", 1.0, 1.4), timed("clasp", 1.3, 1.5)], [], id="intervals overlap"
        ),
        pytest.param(
            [timed("swift", 1.0, 1.2), timed("clasp", 1.2, 1.5)], [], id="intervals touch"
        ),
        pytest.param(
            [timed("swift", 1.0, 1.2), timed("clasp", 1.21, 1.5)], ["clasp"], id="clearly better"
        ),
        pytest.param(
            [timed("vanilla", 0.9, 1.1), timed("clasp", 1.2, 1.5)],
            ["clasp"],
            id="better than vanilla",
        ),
        pytest.param(
            [timed("vanilla", 0.9, 1.1), timed("clasp", 1.05, 1.5)],
            [],
            id="vanilla's noise reaches it",
        ),
        pytest.param(
            [timed("swift", 0.3, 0.4), timed("clasp", 0.7, 0.9)],
            [],
            id="the better of two slow ones",
        ),
        pytest.param([timed("swift", 1.4, 1.5)], [], id="nothing to be better than"),
        pytest.param(
            [timed("swift", None), timed("clasp", 1.8, 1.9)], [], id="a row that may be anything"
        ),
        pytest.param(
            [timed("a", 1.1, 1.2), timed("b", 2.0, 2.1), timed("b", 2.0, 2.1)],
            [],
            id="one run twice",
        ),
        pytest.param(
            [
                timed("x", 1.1, 1.2),
                timed("y", 1.3, 1.4),
                timed("x", 1.1, 1.2, "b"),
                timed("z", 1.3, 1.4, "b"),
            ],
            ["y", "z"],
            id="each dataset has its own",
        ),
    ],
)
def test_only_a_row_that_is_better_beyond_its_interval_is_bold(
    rows: list[Run], bold: list[str]
) -> None:
    assert [r["method"].text for r in cells(rows) if r["speedup"].bold] == bold
    assert (
        markdown(run_table("T", rows)).count(
            "- bold: a measured speedup whose 95 % interval lies above 1"
        )
        == 1
    )
    assert (
        html_table("T", rows).count("<li>bold: a measured speedup whose 95 % interval lies above 1")
        == 1
    )


def test_points_of_a_sweep_have_a_column() -> None:
    points = ("method.interval=2", "method.interval=<8>")
    runs = [run("clasp", "a", full(), label=label) for label in points] + [
        run("vanilla", "a", full())
    ]
    lines = [
        line.split("|")[4].strip()
        for line in markdown(run_table("Sweep", runs)).splitlines()
        if line.startswith("|")
    ]
    assert [lines[0], *lines[2:]] == ["point", *points, ""]
    shown = html_table("Sweep", runs)
    assert 'scope="col">point</th>' in shown and ">method.interval=&lt;8&gt;</th>" in shown
    assert ">point<" not in html_table("T", runs[2:]) and "| point" not in markdown(
        run_table("T", runs[2:])
    )


def test_a_row_without_metrics_shows_the_reason() -> None:
    shown = markdown(
        run_table(
            "Table 2",
            [run("del", "a", None, reason="needs 2 | more\nGiB"), run("swift", "a", full())],
        )
    )
    assert "needs 2 \\| more GiB" in shown
    lines = [line for line in shown.splitlines() if line.startswith("|")]
    assert len({len(line) for line in lines}) == 1


def test_table_ends_with_definitions_and_provenance() -> None:
    shown = markdown(run_table("Table 2", [run("swift", "a", full())], ["limit=20"]))
    assert shown.startswith("## Table 2\n")
    assert "- limit=20" in shown
    assert f"- *alpha*: {DEFINITIONS['alpha']}" in shown
    assert "engine: fused; device: cpu; commit: 0123abc; date: 2025-01-02; torch: 2.8.0" in shown
    assert "not replications" not in shown


def test_many_dates_are_shown_as_a_range() -> None:
    runs = [
        run("swift", str(i), None, origin=structs.replace(PROVENANCE, date=f"2025-01-0{i}"))
        for i in range(1, 6)
    ]
    assert "date: 2025-01-01 to 2025-01-05 (5 values)" in markdown(run_table("T", runs))


def test_embedded_model_is_named_as_what_it_is() -> None:
    assert "not replications" in markdown(
        run_table("T", [run("swift", "cnndm", full(), model="tiny")])
    )
    assert "not replications" in text(render_cell(full(), {**HEADER, "model": "tiny"}), 400)
    assert "not replications" in markdown_cell(full(), {**HEADER, "dataset": "mini-math"})
    assert caution(["llama3-8b"], ["cnndm"]) == []


def test_csv_has_every_number_unrounded() -> None:
    of = full()
    rows = list(
        csv.DictReader(
            io.StringIO(csv_table([run("swift", "a", of), run("del", "a", None, reason="no GPU")]))
        )
    )
    assert float(rows[0]["speedup.paired"]) == of.speedup.paired
    assert float(rows[0]["speedup.ci95.0"]) == of.speedup.ci95[0]
    assert rows[0]["peak_memory_bytes"] == rows[1]["M"] == ""
    assert (rows[1]["reason"], rows[1]["provenance.torch"]) == ("no GPU", "2.8.0")


def test_a_table_without_runs() -> None:
    assert "No runs." in markdown(run_table("T", []))
    assert csv_table([]).strip() == ""
