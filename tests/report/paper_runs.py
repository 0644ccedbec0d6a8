"""Runs of the papers' rows, measured by hand, and the cells of their tables."""

import random
from collections.abc import Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from msgspec import convert

from skipbench.report.published import papers
from skipbench.report.tables.model import Table
from skipbench.runs.measures import Metrics
from skipbench.runs.run import Origin, Run

PROVENANCE = {"engine": "fused", "device": "cpu", "torch": "2.8.0", "commit": "0123abc"}
PROVENANCE["date"] = "2025-01-02"


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
