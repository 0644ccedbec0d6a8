"""What follows from other numbers of the same paper is recomputed, with the rounding of both sides.

The cells that disagree must be exactly those that a note of the file names with its `check`:
discrepancies of the papers are recorded, and an error of transcription shows.
"""

import functools
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import pytest

from skipbench.config.catalog import known_models
from skipbench.draft_plan import DraftPlan
from skipbench.metrics.formulas import expected_speedup
from skipbench.report.definitions import KEYS
from skipbench.report.published import papers, published, read_paper

# a printed cell, and its recomputed value: middle, least, largest
Row = dict[str, Any]
Cell = tuple[Row, float, float, float]
rows_of = functools.cache(published)


def pick(rows: list[Row], **wanted: Any) -> list[Row]:
    known = (row for row in rows if row["value"] is not None)
    return [row for row in known if all(row.get(k) == v for k, v in wanted.items())]


def one(rows: list[Row], **wanted: Any) -> Row:
    (row,) = pick(rows, **wanted)
    return row


def beside(rows: list[Row], row: Row) -> dict[str, Row]:
    """The numbers of the same row of the same table, by column."""
    own = (r for r in rows if r["table"] == row["table"])
    return {r["column"]: r for r in own if all(r.get(k) == row.get(k) for k in KEYS)}


def between(row: Row, share: float = 1.0) -> tuple[float, float]:
    """What rounds to the printed number; with a `share`, that part of it around the middle."""
    half = 0.5 * share * 10 ** -row["digits"]
    return row["value"] - half, row["value"] + half


def span(function: Callable[..., float], *cells: Row) -> tuple[float, float, float]:
    """`function` of the printed values, and its least and largest over their rounding; it is
    monotone in each.
    """
    corners = [function(*corner) for corner in product(*map(between, cells))]
    return function(*(cell["value"] for cell in cells)), min(corners), max(corners)


def mean(*values: float) -> float:
    return sum(values) / len(values)


def expected(M: Row, alpha: Row, ratio: float) -> tuple[float, float, float]:
    return span(lambda m, a: expected_speedup(m, min(a, 1.0), 1 - ratio), M, alpha)


def eq6(rows: list[Row]) -> Iterator[Cell]:
    """SWIFT Table 4: E(Spd) from M, alpha and the skip ratio of the model."""
    for row in pick(rows, table="table4", column="expected_speedup", method="swift"):
        if row["dataset"] != "overall":
            ratio = one(rows, table="sectionB.2", model=row["model"], column="ratio")["value"]
            cells = beside(rows, row)
            yield row, *expected(cells["M"], cells["alpha"], ratio)


def bound(rows: list[Row]) -> Iterator[Cell]:
    """SWIFT calls Eq. 6 the ideal: a measured speedup is at most that of M, alpha and the ratio of
    the same row.
    """
    for row in pick(rows, column="speedup"):
        cells = beside(rows, row)
        if cells.keys() >= {"M", "alpha"}:
            listed = pick(rows, table="sectionB.2", model=row["model"], column="ratio")
            ratio = cells.get("ratio") or listed[0]
            middle, _, most = expected(cells["M"], cells["alpha"], ratio["value"])
            yield row, middle, 0.0, most


def overall(rows: list[Row]) -> Iterator[Cell]:
    """The column Overall is the mean of the tasks' speedups."""
    for row in rows:
        axis = "subtask" if "subtask" in row else "dataset"
        if row.get(axis) == "overall" and row["column"] != "tokens_per_s":
            same = {key: row[key] for key in ("table", "model", "method", "temperature", "column")}
            tasks = [r for r in pick(rows, **same) if r is not row]
            assert len(tasks) == {"dataset": 3, "subtask": 6}[axis]
            yield row, *span(mean, *tasks)


def throughput(rows: list[Row]) -> Iterator[Cell]:
    """SWIFT Table 2: the overall speedup is the ratio of the decoding speeds."""
    for row in pick(rows, table="table2", dataset="overall", column="speedup"):
        speed = beside(rows, row)["tokens_per_s"]
        here = {"table": "table2", "model": row["model"], "column": "tokens_per_s"}
        vanilla = one(rows, **here, method="vanilla")
        ratio = span(lambda a, b: a / b, speed, vanilla) if speed is not vanilla else (1.0,) * 3
        yield row, *ratio


def parts(rows: list[Row]) -> Iterator[Cell]:
    """Self-SD Table 5: attention and MLP of a token are those of drafting and of verifying."""
    for part in ("attention", "mlp"):
        here = {"table": "table5", "method": "self-sd", "part": part}
        cells = [one(rows, **here, phase=phase) for phase in ("draft", "verify")]
        yield one(rows, **here, phase="latency"), *span(lambda a, b: a + b, *cells)


# what a text says of a table, and the table's cells
SUMMARIES: dict[str, list[tuple[dict[str, Any], dict[str, Any]]]] = {
    "swift": [
        ({"table": "section5.2", "column": "M"}, {"table": "table2"}),
        ({"table": "section5.2", "part": "all"}, {"table": "table4"}),
        ({"table": "section5.2", "part": "llama2"}, {"table": "table4"}),
        ({"table": "sectionC.1"}, {"table": "table4"}),
        ({"table": "sectionC.2"}, {"table": "table5"}),
        ({"table": "sectionC.3"}, {"table": "table7"}),
    ],
    "self-sd": [({"table": "section4.2"}, {"table": "table1"})],
    "knapspec": [({"table": "abstract"}, {"table": "table2"})],
}


def summary(rows: list[Row]) -> Iterator[Cell]:
    """Least, largest and mean that the text names."""
    for said, source in SUMMARIES[rows[0]["paper"]]:
        for row in pick(rows, **said):
            cells = pick(rows, **source, column=row["column"], method=row["method"])
            statistic = {"min": min, "max": max, "mean": mean}[row["statistic"]]
            found = statistic(*(cell["value"] for cell in cells))
            yield row, found, found, found


def gains(rows: list[Row]) -> Iterator[Cell]:
    """SWIFT: what the text calls gains of Table 8, and the range of Tables 6 and 7 that Figure 9
    shows.
    """
    for row in pick(rows, table="sectionD.1"):
        here = {"table": "table8", "method": "swift"}
        here["column"] = row["column"].removesuffix("_gain")
        with_and_without = [one(rows, **here, variant=v) for v in ("full", row["variant"])]
        yield row, *span(lambda a, b: a - b, *with_and_without)
    swift = {"method": "swift", "column": "speedup"}
    speedups = pick(rows, table="table6", dataset="overall", **swift)
    speedups += pick(rows, table="table7", **swift)
    for row in pick(rows, table="figure9"):
        found = {"min": min, "max": max}[row["statistic"]](speedups, key=lambda r: r["value"])
        yield row, *span(lambda a: a - 1, found)


def at(table: str, **keys: Any) -> dict[str, Any]:
    return {"table": table, **keys}


LLAMA = {"model": "llama2-13b", "dataset": "cnndm", "method": "self-sd", "temperature": 0.0}
CLASP = {"temperature": 0, "method": "clasp"}
TASKS = ("cnndm", "gsm8k", "tinystories")
TWICE = [  # of SWIFT: the tables that both have the row
    *product([("table2", "table4")], ("llama2-13b", "llama2-13b-chat", "llama2-70b"), TASKS),
    *product([("table2", "table5"), ("table4", "table5")], ("llama2-70b",), TASKS),
]
Places = list[tuple[dict[str, Any], list[dict[str, Any]]]]
OWN = at("table12", method="swift")
SPEC = at("table1", **CLASP)
EIGHT = {"model": "llama3-8b"}
CNNDM = at("table1", **LLAMA)
LOW = [at("table12", dtype="bfloat16"), at("table13", sparsity="dense")]
ADAPTIVE = at("table3", stop="adaptive")
SAME: dict[str, Places] = {  # one measurement, printed more than once
    "swift": [
        *(
            (at(a, method="swift", model=m, dataset=d), [at(b, method="swift", model=m, dataset=d)])
            for (a, b), m, d in TWICE
        ),
        (OWN, [at("table8", variant="full", method="swift"), at("table9", window=32)]),
        (OWN, [at("table10", method="swift"), at("figure11", method="swift")]),
    ],
    "clasp": [
        (SPEC | {"model": "llama3-70b", "subtask": "mt-bench"}, [at("figure4a")]),
        *(
            (SPEC | EIGHT | {"subtask": s}, [at("figure5", **EIGHT, subtask=s)])
            for s in ("mt-bench", "math_reasoning", "qa")
        ),
    ],
    "knapspec": [
        (at("table2", model="llama3.1-8b", dataset="pg19", method="knapspec"), [at("figure4")])
    ],
    "self-sd": [
        (CNNDM, LOW),
        (ADAPTIVE, [CNNDM, at("table4", stop="adaptive"), at("table6", target=0.9)]),
        (ADAPTIVE, [at("table8", method="self-sd"), at("table9", search_steps=1000)]),
        (ADAPTIVE, [at("table11", max_steps=12)]),
        (ADAPTIVE | {"column": "alpha"}, LOW),
        *(
            (at("table2", top_p=0.95, method=m), [at("table15", model="codellama-13b", method=m)])
            for m in ("vanilla", "self-sd")
        ),
        *(
            (CNNDM | {"model": m, "dataset": d}, [at("table16", model=m, dataset=d)])
            for m, d in product(("llama2-13b", "llama2-13b-chat", "llama2-70b"), ("cnndm", "xsum"))
        ),
        *(
            (CNNDM | {"dataset": d, "method": m}, [at("table17", dataset=d, method=m)])
            for d, m in product(("cnndm", "xsum"), ("vanilla", "self-sd"))
        ),
    ],
}


def same(rows: list[Row]) -> Iterator[Cell]:
    """A measurement that stands in several tables has the same value in each, as far as they print
    its columns.
    """
    for first, others in SAME[rows[0]["paper"]]:
        for other in others:
            both = product(pick(rows, **first), pick(rows, **other))
            pairs = [(a, b) for a, b in both if a["column"] == b["column"]]
            assert pairs, (first, other)
            for a, b in pairs:
                yield b, a["value"], *between(a, share=0.99)


def best(rows: list[Row]) -> Iterator[Cell]:
    """The method of the paper is the best of its column, as the paper prints in bold or says."""
    paper = rows[0]["paper"]
    printed = {"clasp": ("table1", ("speedup",)), "knapspec": ("table2", ("TPT", "speedup"))}
    table, columns = printed[paper]
    keys = ("table", "model", "dataset", "subtask", "temperature", "column")
    for column in columns:
        for row in pick(rows, table=table, method=paper, column=column):
            most = max(r["value"] for r in pick(rows, **{key: row.get(key) for key in keys}))
            yield row, most, most, most


def sets(rows: list[Row]) -> Iterator[Cell]:
    """Self-SD: counts and shares of the sets that its code publishes."""
    for row in [*pick(rows, table="appendixC", variant="searched"), *pick(rows, table="appendixI")]:
        model = known_models()[row["model"]]
        if "self-sd" in model.sets and model.architecture is not None:
            plan = DraftPlan.parse(model.sets["self-sd"], model.architecture.layers)
            found = {"skipped_share": plan.ratio, "skipped_attention": len(plan.attention)}
            value = (found | {"skipped_mlp": len(plan.mlp)})[row["column"]]
            yield row, value, value, value


CHECKS = {
    "swift": (eq6, bound, overall, throughput, summary, gains, same),
    "clasp": (overall, best, same),
    "knapspec": (summary, best, same),
    "self-sd": (parts, summary, same, sets),
}
CELLS = {"eq6": 9, "bound": 43, "overall": 30, "throughput": 12, "parts": 2, "sets": 3}
"""How many a check must find in SWIFT or Self-SD."""


Check = Callable[[list[Row]], Iterator[Cell]]


@pytest.mark.parametrize(
    ("paper", "check"), [(p, c) for p, checks in CHECKS.items() for c in checks]
)
def test_exactly_the_noted_cells_disagree(paper: str, check: Check) -> None:
    rows = rows_of(paper)
    cells = list(check(rows))
    assert len(cells) == CELLS.get(check.__name__, len(cells)) or paper == "clasp"
    disagree = {}
    for row, middle, least, most in cells:
        low, high = between(row)
        if high < least - 1e-9 or low > most + 1e-9:
            disagree[rows.index(row)] = middle
    noted = {}
    for table, contents in read_paper(paper).tables.items():
        for note in contents.notes:
            if note.check == check.__name__:
                cell = one(rows, table=table, **note.where, column=note.column)
                noted[rows.index(cell)] = note.recomputed
    wrong = [rows[i] for i in disagree.keys() ^ noted.keys()]
    assert disagree == pytest.approx(noted, abs=0.0051), wrong


def test_every_check_of_a_note_is_made() -> None:
    for paper in papers():
        checks = {None, *(check.__name__ for check in CHECKS[paper])}
        for contents in read_paper(paper).tables.values():
            assert {note.check for note in contents.notes} <= checks


def test_vanilla_is_one() -> None:
    for paper in papers():
        for column in ("M", "tau", "speedup", "expected_speedup"):
            rows = pick(rows_of(paper), method="vanilla", column=column)
            assert {row["value"] for row in rows} <= {1.0}
