"""The papers' tables: runs joined with the real published numbers, and the four formats."""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
from builders import SMALL
from conftest import nothing_lost
from msgspec import convert, structs

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.experiments.resolve import resolve_cell
from skipbench.experiments.row import run_cell
from skipbench.experiments.table_runs import run_entry
from skipbench.report.compared import same_drafts
from skipbench.report.definitions import UNITS
from skipbench.report.measured import VALUES, Measured, measure
from skipbench.report.published import Printed, papers, published, read_paper
from skipbench.report.tables.formats import WRITERS, escape, html, markdown, tabular
from skipbench.report.tables.formats import csv as write_csv
from skipbench.report.tables.model import Table, TableRow
from skipbench.report.tables.paper import Number, paper_table
from skipbench.report.tables.paper_notes import same_device
from skipbench.report.tables.paper_rows import halves
from skipbench.runs.measures import Metrics, Speedup
from skipbench.runs.run import Origin, Run

PROVENANCE = {"engine": "fused", "device": "cpu", "torch": "2.8.0", "commit": "0123abc"}
PROVENANCE["date"] = "2025-01-02"
TABLES = [(paper, table) for paper in papers() for table in read_paper(paper).tables]


def metrics(speedup: float, **more: Any) -> Metrics:
    """What a run of five samples at 20 tokens per second of vanilla could have measured."""
    draw, ends = random.Random(repr(speedup)), [speedup - 0.05, speedup + 0.05]
    estimate = {"speedup": speedup, "ci95": ends, "tokens_per_s": 20 * speedup}
    plain = {paper: {"speedup": 1.0, "tokens_per_s": 20.0} for paper in papers()}
    of = {
        "samples": 5, "M": 2.5, "alpha": 0.9, "alpha_macro": 0.9,
        "estimators": dict.fromkeys(papers(), estimate), "tau": 2.7, "tpt": 30.0,
        "tokens_per_s": 20 * speedup,
        "speedup": {
            "e2e": speedup, "e2e_ci95": ends, "paired": 8.0,
            "by_question": {str(n): speedup * draw.lognormvariate(0, 0.04) for n in range(8)},
        },
        "expected_speedup": {"paper": speedup + 0.1, "measured_cost": None},
        "skipped": {"attention": 3.0, "mlp": 2.0, "ratio": 0.4},
        "seconds": {"prefill": 9.0, "draft": 2.0, "verify": 1.0, "adapt": 0.5, "other": 0.5},
        "lossless": {"identical": 4, "ties": 1, "diverged": 0, "sampled": 0, "failed": 0},
        "score": {"means": {"rouge2": 0.11}},
        "vanilla": {
            "samples": 5, "M": 1.0, "tokens_per_s": 20.0, "speedup": {"e2e": 1.0},
            "estimators": plain, "score": {"means": {"rouge2": 0.1}},
        },
        "peak_memory_bytes": 2_000_000_000,
    }  # fmt: skip
    return convert(of | more, Metrics)


def run(of: Metrics | None, reason: str | None = None, **keys: Any) -> Run:
    origin = Origin(**{**PROVENANCE, **keys.pop("provenance", {})})
    names = {name: keys.get(name, "") for name in ("model", "method", "dataset")}
    return Run(**names, metrics=of, reason=reason, origin=origin, keys=keys)


def swift(
    method: str, dataset: str, of: Metrics | None, reason: str | None = None, **keys: Any
) -> Run:
    given = {"model": "llama2-13b", "method": method, "dataset": dataset, "temperature": 0.0}
    return run(of, reason, **given | keys)


def swift2(runs: Sequence[Run] = (), *more: Any) -> Table:
    """SWIFT's Table 2."""
    return paper_table("swift", "table2", [*runs], *more)


def each(t: Table) -> Iterator[SimpleNamespace]:
    """The records of a table, each with the kinds of rows in which it is `bold`: groups of rows are
    in the same order.
    """
    records = iter(t.records)
    for grid in t.grids:
        labels = sum(column.kind == "label" for column in grid.columns)
        starts = [i for i, row in enumerate(grid.rows) if row.first] + [len(grid.rows)]
        for first, last in pairwise(starts):
            for i in range(labels, len(grid.columns)):
                bold = [row.kind for row in grid.rows[first:last] if row.cells[i].bold]
                yield SimpleNamespace(**next(records), bold=tuple(bold))
    assert next(records, None) is None


def cell(t: Table, column: str, **keys: Any) -> SimpleNamespace:
    wanted = {"column": column, **keys}
    found = [c for c in each(t) if all(vars(c).get(k) == v for k, v in wanted.items())]
    assert len(found) == 1, f"{len(found)} cells"
    return found[0]


def labels(t: Table, row: TableRow) -> tuple[str, ...]:
    count = sum(column.kind == "label" for column in t.grids[0].columns)
    return tuple(cell.text for cell in row.cells[: count - 1])


SPEEDS = {"cnndm": 1.5, "gsm8k": 1.2, "tinystories": 1.8}
THREE = [swift("swift", dataset, metrics(speed)) for dataset, speed in SPEEDS.items()]
CNNDM = {"model": "llama2-13b", "method": "swift", "dataset": "cnndm"}


@pytest.mark.slow
@pytest.mark.parametrize(("paper", "table"), TABLES)
def test_every_number_stands_in_its_table_or_has_a_reason(paper: str, table: str) -> None:
    t = paper_table(paper, table, [])
    rows = [r for r in published(paper) if r["table"] == table]
    printed = sorted(r["value"] for r in rows if r["value"] is not None)
    assert sorted(c.published for c in each(t) if c.published is not None) == printed
    assert all(c.measured is None and c.reason for c in each(t))
    assert all(table.lower() in write(t).replace(" ", "").lower() for write in WRITERS.values())


def test_numbers_are_shown_as_printed() -> None:
    shown = markdown(paper_table("knapspec", "table2", []))
    assert "| 0.846 " in shown and "0.8460" not in shown  # 84.6 %; a neighbour has a decimal more
    assert "| 0.0750 [" in shown and "| **1.30x** " in shown


def test_what_is_measured_has_two_decimals_beside_a_printed_number_of_one() -> None:
    printed = Printed(keys={}, column="speedup", value=1.4, digits=1)
    number = Number({}, Measured(1.366, (1.314, 1.418)), printed, 1, None)
    assert number.texts == ("1.37x [1.31, 1.42]", "1.4x", "-0.03 (-2 %)")


def test_rows_and_columns_are_in_the_papers_order() -> None:
    t = swift2(THREE)
    names, columns = t.grids[0].columns[:3], t.grids[0].columns[3:]
    assert [c.name for c in names] == ["model", "method", ""]
    rows = [labels(t, r) for r in t.grids[0].rows if r.first][:4]
    assert rows == [("LLaMA-2-13B", m) for m in ("VANILLA", "PARALLEL", "LOOKAHEAD", "SWIFT")]
    shown = [(c.group, c.name) for c in columns[:3]]
    assert shown == [("CNN/DM", "M"), ("CNN/DM", "speedup"), ("GSM8K", "M")]


def test_columns_are_chosen_in_the_order_given() -> None:
    heads = [(c.group, c.name) for c in swift2(THREE, ["speedup", "M"]).grids[0].columns]
    assert heads[3:6] == [("CNN/DM", "speedup"), ("CNN/DM", "M"), ("GSM8K", "speedup")]
    only = swift2(THREE, ["M"])
    assert {c.name for c in only.grids[0].columns[3:]} == {"M"}
    assert {record["column"] for record in only.records} == {"M"}
    with pytest.raises(SkipbenchError, match=r"columns=speedpu\. Did you mean speedup\? Wanted"):
        swift2([], ["speedpu"])


def test_a_verdict_counts_the_published_speedups_inside_the_measured_intervals() -> None:
    of = {"model": "llama2-13b", "method": "swift"}
    values = {"cnndm": 1.37, "gsm8k": 1.00, "tinystories": 1.90}  # the paper: 1.37, 1.31, 1.53
    runs = [run(metrics(value), **of, dataset=name) for name, value in values.items()]
    counts = "1 measured lower; 1 measured higher; 33 not measured."
    said = f"1 of 3 published speedups inside the measured interval; {counts}"
    assert said in swift2(runs).source
    none = swift2().source
    assert none.endswith("None of the 36 published speedups is measured here.")
    assert "published speedups" not in paper_table("self-sd", "table7", []).source


def test_a_run_stands_beside_its_published_numbers() -> None:
    t = swift2(THREE)
    of = cell(t, "speedup", **CNNDM)
    assert (of.measured, of.published, of.digits) == (1.5, 1.37, 2)
    assert (of.measured_low, of.measured_high) == (1.45, 1.55)
    assert of.difference == pytest.approx(0.13)
    assert of.percent == pytest.approx(100 * 0.13 / 1.37)
    m = cell(t, "M", **CNNDM)
    assert (m.measured, m.published, m.percent) == (2.5, 4.34, None)
    shown = markdown(t)
    assert "**1.50x [1.45, 1.55]**" in shown and "+0.13 (+9 %) *" in shown and "**1.37x**" in shown
    assert of.published_inside is False and m.published_inside is None
    assert shown.count("lies outside the measured 95 % interval") == 1
    other = cell(t, "speedup", model="llama2-70b", method="swift", dataset="cnndm")
    assert (other.measured, other.reason) == (None, "not measured")


def test_vanilla_is_the_vanilla_arm_of_another_run() -> None:
    t = swift2(THREE)
    assert cell(t, "tokens_per_s", model="llama2-13b", method="vanilla").measured == 20
    where = {"model": "qwen3-8b", "dataset": "aime24"}
    known, lacks = metrics(1.2, vanilla={"tpt": 25.0}), "not measured"
    for of, shown in (known, (25.0, None)), (metrics(1.2), (None, lacks)):
        t = paper_table("knapspec", "table2", [run(of, method="knapspec", **where)])
        tpt = cell(t, "TPT", method="vanilla", **where)
        assert (tpt.measured, tpt.reason) == shown
    own = swift("vanilla", "cnndm", metrics(1.01))
    of = cell(swift2([*THREE, own]), "speedup", **CNNDM | {"method": "vanilla"})
    assert of.measured == 1.01


def test_overall_is_the_mean_only_of_all_tasks() -> None:
    where = {"model": "llama2-13b", "method": "swift", "dataset": "overall"}
    of = cell(swift2(THREE), "speedup", **where)
    assert of.measured == pytest.approx(1.5) and of.measured_low is None
    of = cell(paper_table("swift", "table2", THREE[:2]), "speedup", **where)
    assert (of.measured, of.reason) == (None, "not measured")
    none = cell(swift2(), "speedup", **where)
    assert none.reason == "not measured"


def test_the_best_measured_and_the_best_published_are_bold_by_model_and_task() -> None:
    large = swift("swift", "cnndm", metrics(1.1), model="llama2-70b")
    t = swift2([*THREE, swift("lookahead", "cnndm", metrics(1.7)), large])
    where = {"model": "llama2-13b", "dataset": "cnndm"}
    ahead, own = (cell(t, "speedup", method=m, **where) for m in ("lookahead", "swift"))
    assert (ahead.bold, own.bold) == (("measured",), ("paper",))
    of = cell(t, "speedup", **CNNDM | {"model": "llama2-70b"})
    assert of.bold == ("measured", "paper")
    assert not any(c.bold for c in each(t) if c.column == "M")
    # which alone has an interval
    assert not any("measured" in c.bold for c in each(t) if c.column != "speedup")
    for suffix, write in WRITERS.items():
        assert write(t).count("fewer than 5 questions; of the paper") == (suffix != "csv")


@pytest.mark.parametrize(
    ("swift_x", "vanilla_x", "bold"),
    [(1.02, 1.0, 0), (1.2, None, 1), (1.0, 1.2, 0), (0.8, None, 0), (1.2, 1.17, 0), (1.2, 1.0, 1)],
)
def test_noise_is_not_bold(swift_x: float, vanilla_x: float | None, bold: int) -> None:
    """Rows by hand, whose questions vary by 4 %; None is vanilla without a run of its own."""
    own = [] if vanilla_x is None else [swift("vanilla", "cnndm", metrics(vanilla_x))]
    t = swift2([swift("swift", "cnndm", metrics(swift_x)), *own])
    marked = [c for c in each(t) if "measured" in c.bold]
    assert [c.method for c in marked] == ["swift"] * bold
    ends = f"[{swift_x - 0.05:.2f}, {swift_x + 0.05:.2f}]"
    shown = {
        markdown: f"**{swift_x:.2f}x {ends}**",
        html: f"<b>{swift_x:.2f}x {ends}</b>",
        tabular: rf"\textbf{{{escape(f'{swift_x:.2f}x {ends}')}}}",
    }
    assert [text in write(t) for write, text in shown.items()] == [bool(bold)] * 3
    assert cell(t, "speedup", **CNNDM).bold[-1] == "paper"


def test_autoregressive_against_itself_is_not_bold() -> None:
    given = {"model": "llama2-13b", "dataset": "cnndm", "temperature": 0.2}
    t = paper_table("self-sd", "table1", [run(metrics(1.2), method="vanilla", **given)])
    assert not any("measured" in c.bold for c in each(t))


def test_reasons() -> None:
    runs = [
        swift("swift", "cnndm", None, "needs 140 GiB", model="llama2-70b"),
        swift("parallel", "cnndm", None, "gated model"),
        swift("swift", "gsm8k", structs.replace(metrics(1.2), speedup=Speedup(), estimators=None)),
    ]
    t = swift2(runs)
    assert cell(t, "M", **CNNDM | {"model": "llama2-70b"}).reason == "needs 140 GiB"
    assert cell(t, "M", **CNNDM | {"method": "parallel"}).reason == "gated model"
    lost = cell(t, "speedup", model="llama2-13b", method="swift", dataset="gsm8k")
    assert lost.reason == "not measured"
    for shown in (markdown(t), html(t), tabular(t), write_csv(t)):
        assert "needs 140 GiB" in shown and "gated model" in shown and "not measured" in shown


def test_a_run_that_waits_for_its_scores_says_so() -> None:
    waiting = "not scored yet: python -m skipbench score x"
    keys = {"model": "codellama-13b", "method": "swift", "temperature": 0}
    one = run(metrics(1.2), waiting, dataset="humaneval", **keys)
    t = paper_table("swift", "table3", [one])
    of = cell(t, "pass@1", model="codellama-13b", method="swift")
    assert (of.measured, of.reason) == (None, waiting)
    assert cell(t, "M", **keys).measured == 2.5


def test_published_numbers_stand_beside_the_paper_s_own_model_and_dataset_alone() -> None:
    """Another model, or a method of one's own, has a row of ours below the paper's."""
    own = swift("swift", "cnndm", metrics(1.2), model="llama3-8b")
    ours = swift("auto", "gsm8k", metrics(1.4))
    t = swift2([own, ours, swift("swift", "cnndm", None, "gated", model="tiny")])
    assert all(c.measured is None for c in each(replace(t, grids=t.grids[:-1])))
    shown, said = t.grids[-1], markdown(t)
    assert shown.settings == "Runs of no row of the paper's table."
    names = {tuple(cell.text for cell in row.cells[:3]) for row in shown.rows}
    assert names == {("cnndm", "llama3-8b", "swift"), ("gsm8k", "llama2-13b", "auto")}
    assert "belong to no row of this table: model=tiny, method=swift, dataset=cnndm" in said


def test_halves_with_the_same_columns_are_one_part_told_apart_by_a_key() -> None:
    t = paper_table("clasp", "table1", [])
    names = [c.name for c in t.grids[0].columns if c.kind == "label"]
    assert len(t.grids) == 1 and names == ["temperature", "model", "method", ""]
    keys = {"model": "llama3-8b", "method": "clasp", "subtask": "qa"}
    runs = [run(metrics(1.0 + x), dataset="specbench", temperature=x, **keys) for x in (0, 1)]
    t = paper_table("clasp", "table1", runs)
    for temperature in (0, 1):
        of = cell(t, "speedup", temperature=temperature, **keys)
        assert of.measured == 1.0 + temperature
        assert any("paper" in c.bold for c in each(t) if c.temperature == temperature)
    assert len(paper_table("knapspec", "table2", []).grids) == 2


def test_sweeps_are_joined_by_their_keys() -> None:
    given = {"model": "llama2-13b", "method": "self-sd", "dataset": "cnndm", "temperature": 0.0}
    runs = [
        run(metrics(1.1), **given, stop="fixed", max_steps=4),
        run(metrics(1.2), **given, stop="adaptive", max_steps=12),
    ]
    t = paper_table("self-sd", "table3", [*runs, run(metrics(9.0), **given)])
    paper = replace(t, grids=t.grids[:-1])
    assert cell(paper, "speedup", max_steps=4).measured == 1.1
    assert cell(paper, "speedup", stop="adaptive").measured == 1.2
    assert cell(paper, "speedup", max_steps=2).reason == "not measured"
    assert len(t.grids[-1].rows) == 1  # nothing says which K the last run had


def test_what_differs_from_the_papers_setting_is_said() -> None:
    h100 = {"device": "NVIDIA H100 80GB HBM3"}
    one = swift("swift", "cnndm", metrics(1.2), provenance=h100 | {"dtype": "bfloat16"})
    two = swift("swift", "gsm8k", metrics(1.3), provenance=h100 | {"commit": "4567def"})
    said = "\n".join(swift2([one, two]).cautions)
    assert "device: NVIDIA H100 80GB HBM3; the paper's: 4x NVIDIA RTX A6000 (40GB)." in said
    assert "dtype: bfloat16; the paper's: float16." in said
    assert "engine: fused; the paper's: its own code." in said
    assert re.search(r"software: PyTorch \S+; the paper's: PyTorch 2\.1\.0, CUDA 12\.1, ", said)
    assert "from 2 origins" in said
    other = {"engine": "fused, strict", "engine_asked": "cuda_graphs"}
    three = swift("swift", "tinystories", metrics(1.4), provenance=other)
    titles = [swift2(runs).title for runs in ([one], [one, three])]
    assert titles[1] == f"{titles[0]} (engine fused, strict in place of cuda_graphs)"
    keys = {"model": "llama3-8b", "method": "clasp", "dataset": "specbench", "subtask": "qa"}
    origin = {"device": "NVIDIA A800-SXM4-80GB", "dtype": "float16"}
    same = run(metrics(1.2), temperature=0, provenance=origin, **keys)
    said = "\n".join(paper_table("clasp", "table1", [same]).cautions)
    assert "device" not in said and "dtype" not in said


def test_devices() -> None:
    assert same_device("NVIDIA A100-SXM4-40GB", "1x NVIDIA A100-40GB")
    assert not same_device("NVIDIA A100-SXM4-80GB", "1x NVIDIA A100-40GB")
    assert not same_device("NVIDIA A100-SXM4-80GB", "2x NVIDIA A100-80GB")
    assert not same_device("cpu", "1x NVIDIA A100-40GB")
    assert not same_device("cpu", "not named")


def test_notes_of_the_paper_stand_below_their_tables() -> None:
    said = {n: "\n".join(paper_table("self-sd", n, []).remarks) for n in ("table6", "table7")}
    assert all("The text names no device" in text for text in said.values())
    assert ["name no temperature" in text for text in said.values()] == [True, False]
    assert "note" in write_csv(paper_table("swift", "table5", [])).splitlines()[0]
    shown = markdown(paper_table("swift", "table5", []))
    assert "The mean of the three speedups is 1.39." in shown


def test_every_column_has_a_unit_and_an_empty_record_fills_none() -> None:
    assert {*VALUES} <= {*UNITS}
    assert all(measure(Metrics(), column, "adapt").value is None for column in UNITS)
    assert measure(metrics(1.2), "training_steps").value is None  # what no run measures


def test_derived_values() -> None:
    assert measure(metrics(2.0), "ms_per_token") == (25.0, None, None)
    assert measure(metrics(2.0), "memory_gb") == (2.0, None, None)
    # 0.5 of 4 s; the prefill is no part
    assert measure(metrics(2.0), "share", "adapt") == (0.125, None, None)
    assert measure(metrics(2.0, alpha=None, tau=None), "tau").value is None
    # half of 25 ms is drafting, of which 3 attentions take 3 parts of 12, 4 MLPs 8, the head 1
    profiled = {"attention_s": 1e-3, "mlp_s": 2e-3, "head_s": 1e-3, "layers": 6}
    for part, parts in (("attention", 3), ("mlp", 8)):
        found = measure(metrics(2.0, profiled=profiled), "ms", "draft", part)[0]
        assert found == pytest.approx(12.5 * parts / 12)


def test_lossless_counts_the_samples_of_all_runs() -> None:
    assert swift2(THREE[:2]).provenance[0].startswith("lossless: 8 of 10 greedy")


def test_rows_that_drafted_the_same_tokens_are_named() -> None:
    given = {"model": "llama2-13b", "method": "self-sd", "dataset": "cnndm", "temperature": 0.0}
    drafts = {10: "a", 12: "b", 14: "b", 16: "b", 18: ""}
    runs = [
        structs.replace(run(metrics(1.1), **given, stop="adaptive", max_steps=k), drafted=draft)
        for k, draft in drafts.items()
    ]
    t = paper_table("self-sd", "table11", runs)
    steps = "max_steps=12 | max_steps=14 | max_steps=16."
    line = f"drafted the same tokens: only adaptation and timing tell them apart: {steps}"
    assert [note for note in t.remarks if "drafted the same" in note] == [line]
    assert line in markdown(t) and line in html(t)
    assert escape(line) in tabular(t)


def test_vanilla_is_no_row_of_the_same_tokens() -> None:
    runs = [structs.replace(swift("vanilla", d, metrics(1.1)), drafted="v") for d in SPEEDS]
    assert same_drafts(runs) == []
    others = [structs.replace(one, drafted="s") for one in THREE[:2]]
    (line,) = same_drafts([*runs, *others])
    assert line.endswith(": dataset=cnndm | dataset=gsm8k.")


def test_unknown_table() -> None:
    with pytest.raises(SkipbenchError, match=r"'table99'; there are table1, table2"):
        halves(read_paper("swift"), "table99")


def test_html_is_well_formed_and_loads_nothing() -> None:
    shown = html(swift2([*THREE, swift("parallel", "cnndm", None, "needs <b> & more")]))
    elements = [*ElementTree.fromstring(shown).iter()]
    assert "needs &lt;b&gt; &amp; more" in shown and "url(" not in shown
    assert {"script", "img", "link", "iframe"}.isdisjoint(e.tag for e in elements)
    assert {"src", "href"}.isdisjoint(name for e in elements for name in e.attrib)
    assert len({len(e) for body in elements if body.tag == "tbody" for e in body}) == 1


def test_latex_is_escaped() -> None:
    assert escape("50 % & pass@1_x #2 $3 {a} \\ ~ ^ < > | [1] \u2014 \u00b1") == (
        r"50 \% \& pass@1\_x \#2 \$3 \{a\} \textbackslash{} \textasciitilde{} "
        r"\textasciicircum{} \textless{} \textgreater{} "
        r"\textbar{} {[}1{]} -- $\pm$"
    )
    bad = r"\input{/etc/passwd}\immediate\write18{id}^^5cinput"
    _, _, shown = tabular(swift2([swift("parallel", "cnndm", None, bad)])).partition("\n")
    assert "passwd" in shown and not re.search(r"\\(input|immediate|write)|\^\^", shown)


@pytest.mark.slow
def test_a_real_run_in_the_papers_table(tmp_path: Path) -> None:
    words = ["method=swift", "dataset=mini-summary", "dataset.max_new_tokens=24"]
    config = compose([*SMALL, *words, "limit=2", f"results={tmp_path}"])
    assert nothing_lost(run_cell(config, print_table=False))
    entry = run_entry(resolve_cell(config))
    made = structs.replace(entry, keys=CNNDM | {"temperature": 0.0})
    t = swift2([made])
    m, speedup = (cell(t, column, **CNNDM) for column in ("M", "speedup"))
    own = entry.measured.estimators
    assert own and (m.measured, speedup.measured) == (entry.measured.M, own.swift.speedup)
    assert all(c.reason for c in each(t) if c.measured is None)
    assert "2 of 2 greedy samples" in markdown(t)


def test_what_was_measured_has_the_dtype_of_its_run() -> None:
    here = {"dtype": "bfloat16"}
    one = swift("swift", "cnndm", metrics(1.3), dtype="float16", provenance=here)
    made = swift2([one])
    measured = [r for r in made.records if r["measured"] is not None]
    assert measured and {r["dtype"] for r in measured} == {"bfloat16"}
    assert {r["dtype"] for r in made.records if r["measured"] is None} == {"float16"}
    assert {r["published_dtype"] for r in measured if r["published"]} == {"float16"}
    assert made.grids[0].settings.startswith("dtype bfloat16 (the paper's: float16)")
