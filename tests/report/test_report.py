"""Cells and tables: what is shown, what a missing value looks like, and that it fits the
terminal.
"""

import csv
import io
import re
from functools import partial
from statistics import geometric_mean
from typing import Any

import pytest
from msgspec import structs

from skipbench.metrics.acceptance import PassSeconds
from skipbench.metrics.prices import Latencies, Prices
from skipbench.metrics.summary import summarise
from skipbench.report.columns import ALL, COLUMNS, DEFINITIONS, Line
from skipbench.report.definitions import caution
from skipbench.report.tables.formats import for_terminal, markdown, write
from skipbench.report.tables.model import TableCell
from skipbench.report.tables.runs import row_table, run_table
from skipbench.report.values import MISSING, scores
from skipbench.runs.measures import Metrics, Percentiles, Score, Speedup
from skipbench.runs.record import VANILLA, Arm, Round, Seconds, Turn
from skipbench.runs.run import Origin, Run

PROVENANCE = Origin(engine="fused", dtype="float32", device="cpu", commit="0123abc")
PROVENANCE = structs.replace(PROVENANCE, date="2025-01-02", torch="2.8", cpu="Xeon")


Scores = tuple[dict[str, float], dict[str, float]]  # of vanilla and of the method


def turn(
    index: int, draft_s: float, steps: int = 4, scores: Scores = ({}, {}), **more: Any
) -> Turn:
    """A turn of vanilla and `method`; `more`: fields of its arm."""
    accepted = steps - 1 if steps else 0
    rounds = [Round(steps, steps, accepted, accepted, accepted + 1)] * 10
    tokens = [1] * (1 + sum(r.emitted for r in rounds))
    plain, took = [Round(0, 0, 0, 0, 1)] * (len(tokens) - 1), Seconds(0.1, 0.0, 0.4, 0.0, 0.1)
    given = {"lossless": "identical", "skip": "attn:1-3;mlp:2", "score": scores[1], **more}
    own = Arm(tokens, rounds, Seconds(0.1, draft_s, 0.1, 0.02, 0.03), "length", **given)
    arms = {VANILLA: Arm(tokens, plain, took, "length", score=scores[0]), "method": own}
    return Turn(index, str(index), "hash", 8, [*arms], arms, {"task": "code"})


PASS_S = partial(Prices(model=Latencies(2e-4, 0.0, 4e-4, 3e-4, 6)).pass_s, 1, 0)


def metrics(turns: list[Turn], pass_s: PassSeconds | None = None) -> Metrics:
    return summarise(turns, "method", 6, pass_s)


def full() -> Metrics:
    more: dict[str, Any] = {"scores": ({"rouge2": 0.2}, {"rouge2": 0.3})}
    turns = [turn(i, 0.1 + 0.01 * i, trace={"searching": [i < 9]}, **more) for i in range(19)]
    turns += [turn(19, 0.2, lossless="tie"), turn(20, 0.2, lossless="failed")]
    return metrics(turns, PASS_S)


PARTIAL = {
    "nothing": metrics([]),
    "all failed": metrics([turn(0, 0.1, lossless="failed")]),
    "one sample": metrics([turn(0, 0.1)]),
    "no drafts": metrics([turn(0, 0.0, steps=0, skip="")]),
    "nothing accepted": metrics([turn(0, 0.1, steps=1), turn(1, 0.1, steps=1)]),
    "empty": Metrics(),
    "full": full(),
}


@pytest.mark.parametrize("kind", PARTIAL)
def test_tables_never_show_none_or_nan(kind: str) -> None:
    run = Run(model="m", method="x", dataset="d", metrics=PARTIAL[kind])
    tables = [run_table(run), run_table(run, [ALL]), row_table([run])]
    files = write(tables[2], ["csv"]).values()
    for shown in (*map(markdown, tables), *map(for_terminal, tables), *files):
        assert "None" not in shown
        assert "nan" not in shown.lower()


def shown_of(of: Metrics) -> dict[str, str]:
    """The texts of a run by the headings of the columns."""
    line = Line(Run(model="m", method="x", dataset="d", metrics=of))
    return {column.heading: column.value(line).text for column in COLUMNS}


def test_main_row() -> None:
    cells = shown_of(full())
    # 3 of 4 accepted and the bonus
    assert (cells["M"], cells["alpha"], cells["tau"]) == ("4.00", "0.750", "4.00")
    # 4 of 12 sub-layers skipped, so c = 2/3: 4 / (3 * (2/3) / 0.75 + 1) = 1.0909
    assert cells["E(Spd)"].startswith("1.09 / ")
    assert cells["lossless"] == "19/20"
    assert cells["tok/s"].startswith("80.0 -> ")  # 40 tokens in 0.5 s
    low, high = full().speedup.headline[1] or ()
    assert cells["speedup"].endswith(f"x [{low:.2f}, {high:.2f}]")


def alone(of: Metrics, **more: Any) -> str:
    """The table of one run, as a terminal has it."""
    return for_terminal(run_table(run("swift", "cnndm", of, **more)))


def test_the_table_of_one_run_says_in_words_what_it_measured() -> None:
    speedup, shown = full().speedup.headline[0], alone(full())
    said = f"swift: {speedup:.2f} times as fast as vanilla; 19 of 20 outputs have the same tokens"
    assert f"- {said}" in shown and "- 1 tie; 1 failed" in shown
    assert "scores, vanilla -> method: rouge2 0.200 -> 0.300" in shown
    none = structs.replace(full(), speedup=Speedup())
    assert "times as fast" not in alone(none)
    (grid,) = run_table(run("swift", "cnndm", full())).grids
    assert [column.name for column in grid.columns] == [
        "method", "n", "speedup", "M", "alpha", "TPT", "tok/s", "lossless"
    ]  # fmt: skip


def scored(vanilla: dict[str, float], method: dict[str, float], *kinds: str) -> str:
    turns = [turn(i, 0.1, scores=(vanilla, method), lossless=kind) for i, kind in enumerate(kinds)]
    return scores(metrics(turns)).text


def test_bleu_is_shown_in_percent_and_shares_as_shares() -> None:
    one = {"rouge2": 0.1234, "sentence_bleu": 34.567}
    assert scored(one, one, "identical") == "rouge2 0.123 -> 0.123; sentence_bleu 34.6 -> 34.6"
    bleu = Metrics(samples=1, score=Score(means={"bleu": 100.0}))
    assert scores(structs.replace(bleu, vanilla=bleu)).text == "bleu 100.0 -> 100.0"
    assert scores(Metrics()).text == MISSING


def test_scores_that_differ_on_identical_tokens_are_called_out() -> None:
    right, wrong = {"exact": 1.0}, {"exact": 0.0}
    assert "NOT EQUAL" in scored(right, wrong, "identical", "identical")
    assert "NOT EQUAL" not in scored(right, right, "identical")
    for kind in ("tie", "diverged", "sampled"):
        assert scored(right, wrong, "identical", kind) == "exact 1.000 -> 0.000"


def test_missing_values_are_dashes() -> None:
    one = metrics([turn(0, 0.0, steps=0, skip="")])
    assert {shown_of(one)[name] for name in ("alpha", "TPT", "E(Spd)")} == {MISSING}
    drafted_nothing = metrics([turn(0, 0.0, steps=0, skip="")], PASS_S)
    assert shown_of(drafted_nothing)["TPT"] == "256"  # 1 / (6 * 0.6 ms + 0.3 ms)
    sampled = metrics([turn(0, 0.1, lossless="sampled")])
    assert shown_of(sampled)["lossless"] == MISSING and "1 sampled" in alone(sampled)


def run(method: str, dataset: str, of: Metrics | None, **more: Any) -> Run:
    given = {"model": "llama3-8b", "origin": PROVENANCE, **more}
    return Run(method=method, dataset=dataset, metrics=of, **given)


def cells(runs: list[Run]) -> list[dict[str, TableCell]]:
    """The rows of the table, by the names of the columns."""
    grid = row_table(runs, ["all"]).grids[0]
    names = [column.name for column in grid.columns]
    return [dict(zip(names, row.cells, strict=True)) for row in grid.rows]


def csv_rows(runs: list[Run], suffix: str = "csv", **more: Any) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(write(row_table(runs, **more)).get(suffix, ""))))


def test_rows_are_grouped() -> None:
    slow, fast = metrics([turn(0, 0.3)]), metrics([turn(0, 0.1)])
    given = [("clasp", "a", slow), ("swift", "b", slow), ("swift", "a", fast), ("clasp", "b", None)]
    runs = [run(*one) for one in given]
    rows = cells(runs)
    shown = [(r["dataset"].text, r["method"].text) for r in rows]
    assert shown == [(d, m) for d in "ab" for m in ("clasp", "swift")]
    # Vanilla 0.5 s; slow 0.3 + 0.15 s, fast 0.1 + 0.15 s. One sample has no interval, so that none
    # is known to be the best.
    assert [r["decode only"].text for r in rows] == ["1.11x", "2.00x", MISSING, "1.11x"]
    # with the prefill of 0.1 s: 0.6 s over 0.55 s and 0.35 s
    assert [r["speedup"].text for r in rows] == ["1.09x", "1.71x", MISSING, "1.09x"]
    by_dataset = row_table(runs).grids[1]
    heads = [(c.group, c.name) for c in by_dataset.columns[2:]]
    assert heads == [("dataset", "a"), ("dataset", "b")]
    assert [c.text for c in by_dataset.rows[0].cells[1:]] == ["clasp", "1.09x, n 1", MISSING]


NOISE = (0.97, 1.02, 1.0, 0.99, 1.03, 0.98, 1.01, 1.0)
PROMPTS = (0.5, 1.0, 4.0, 2.0, 0.7, 1.5, 5.0, 3.0)
"""How much faster than on others any copying method is on some prompts."""


def timed(method: str, speed: float, shift: int = 0, dataset: str = "a", n: int = 8) -> Run:
    """A run by hand; vanilla beside itself has nothing to gain from a prompt."""
    gains = [1.0] * n if method == "vanilla" else PROMPTS[:n]
    noise = [NOISE[(i + shift) % 8] for i in range(n)]
    ratios = {str(i): speed * g * e for i, (g, e) in enumerate(zip(gains, noise, strict=True))}
    speedup = Speedup(e2e=geometric_mean(ratios.values()), by_question=ratios)
    return run(method, dataset, Metrics(samples=n, speedup=speedup))


BOLD = {
    "one is faster on all prompts": ([timed("x", 3.0), timed("y", 2.0, 3)], ["x"]),
    "not told apart": ([timed("x", 3.0), timed("y", 2.99, 3)], ["x", "y"]),
    "not told apart from vanilla": ([timed("x", 1.0), timed("y", 0.4, 3)], []),
    "slower than vanilla": ([timed("x", 0.1), timed("y", 0.05, 3)], []),
    "of few prompts": ([timed("x", 3, n=4), timed("y", 2, 3, n=4)], []),
    "vanilla's own noise": ([timed("vanilla", 2.0, 1), timed("x", 3.0)], []),
    "one run twice": ([timed("x", 3.0), timed("x", 3.0)], ["x", "x"]),
    "each dataset": ([timed("x", 3.0), timed("y", 2.0, 3), timed("z", 2.0, 3, "b")], ["x", "z"]),
}


@pytest.mark.parametrize(("rows", "bold"), BOLD.values(), ids=BOLD)
def test_bold_are_those_that_are_not_told_apart_from_the_fastest(
    rows: list[Run], bold: list[str]
) -> None:
    """No two marginal intervals of these are apart: prompts differ tenfold."""
    assert [r["method"].text for r in cells(rows) if r["speedup"].bold] == bold
    shown = markdown(row_table(rows))
    assert ("- bold: not significantly slower than the fastest method" in shown) == ("**" in shown)


def test_a_row_says_how_far_behind_the_best_a_method_is() -> None:
    rows = {r["method"].text: r for r in cells([timed("x", 3.0), timed("y", 2.0, 3)])}
    assert rows["x"]["over best"].text == "1.00x"
    assert re.fullmatch(r"0\.67x \[0\.6\d, 0\.6\d\]", rows["y"]["over best"].text)
    # the second of eight from below, and 0.3 of the way to the first
    assert rows["x"]["worst tenth"].text == f"{3 * (0.7 * 0.7 * 1.03 + 0.3 * 0.5 * 0.97):.2f}x"
    other = run("y", "a", Metrics(speedup=Speedup(e2e=1.0, by_question={"another": 1.0})))
    shown = markdown(row_table([timed("x", 3.0), other]))
    assert "not compared by pairs: x, y: no question is in all." in shown


def test_no_number_stands_in_the_place_of_another() -> None:
    """All of them differ, so that each is known by its value."""
    slow, fast = (Percentiles(p50=x / 100, p90=2 * x / 100, p99=3 * x / 100) for x in (4, 1))
    speedup = Speedup(e2e=1.5, e2e_ci95=(1.4, 1.6), paired=2.0, ci95=(1.9, 2.1))
    waits = {"ttft_s": fast, "vanilla": Metrics(ttft_s=slow)}
    memory = {"peak_memory_bytes": 300 << 20, "variant_bytes": 129 << 20}
    of = Metrics(samples=8, speedup=speedup, **waits, **memory)
    (row,) = cells([run("swift", "a", of)])
    assert row["speedup"].text == "1.50x [1.40, 1.60]"
    assert row["decode only"].text == "2.00x [1.90, 2.10]"
    assert row["TTFT"].text == "40.0 / 80.0 / 120 -> 10.0 / 20.0 / 30.0"  # milliseconds
    assert row["low-bit copy"].text == "129 MiB"


def test_a_csv_has_the_columns_of_the_table_unrounded() -> None:
    runs = [timed("x", 3.0), timed("y", 2.0, 3), run("del", "a", None, reason="no GPU")]
    x, y, left_out = csv_rows(runs, over="x", columns=["all"])
    assert float(y["over best"]) == float(y["over x"]) and x["over x"] == left_out["speedup"] == ""
    # by question, where each gains the same; their noise differs only in its order
    assert float(y["over x"]) == pytest.approx(2 / 3)
    assert float(y["over best low"]) < float(y["over x low"]) < float(y["over x"])
    assert float(x["speedup"]) == runs[0].speedup and left_out["note"] == "no GPU"
    heads = {c.name for c in row_table(runs, ["all"], over="x").grids[0].columns}
    assert heads - {"TTFT", "ITL", "score"} <= {*x}
    assert [*csv_rows(runs, columns=["M", "tokens_per_s"])[0]] == [
        "method", "M", "tok/s", "tok/s vanilla"
    ]  # fmt: skip


def test_another_csv_has_every_number() -> None:
    of, left_out = full(), run("del", "a", None, reason="no GPU")
    rows = csv_rows([run("swift", "a", of), left_out], "all.csv")
    assert float(rows[0]["speedup.paired"]) == of.speedup.paired
    assert float(rows[0]["speedup.ci95.0"]) == of.speedup.ci95[0]
    assert float(rows[0]["vanilla.tokens_per_s"]) == of.baseline.tokens_per_s
    assert rows[1]["M"] == "" and not any("by_question" in name for name in rows[0])
    assert (rows[1]["reason"], rows[1]["provenance.torch"]) == ("no GPU", "2.8")


def test_a_table_names_points_reasons_definitions_and_origins() -> None:
    """The embedded model is named as what it is."""
    origins = [structs.replace(PROVENANCE, date=f"2025-01-0{i}") for i in range(1, 6)]
    runs = [run("swift", str(i), full(), origin=origin) for i, origin in enumerate(origins)]
    runs.append(run("clasp", "0", full(), label="method.interval=<8>", model="tiny"))
    runs.append(run("del", "a", None, reason="needs 2 | more\nGiB"))
    shown = markdown(row_table(runs, ["alpha", "note"], "Table 2", ["limit=20"]))
    assert shown.startswith("## Table 2\n") and "- limit=20" in shown
    assert f"- *alpha*: {DEFINITIONS['alpha']}" in shown and "| point " in shown
    assert "engine: fused; dtype: float32; device: cpu; cpu: Xeon; commit: 0123abc; date: " in shown
    assert "date: 2025-01-01 to 2025-01-05 (5 values)" in shown
    assert "method.interval=<8>" in shown and "needs 2 \\| more GiB" in shown
    assert "not replications" in shown and caution(["llama3-8b"], ["cnndm"]) == []
    assert "No runs." in markdown(row_table([]))
