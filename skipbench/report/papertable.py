"""A paper's table with measured values beside its printed ones, as data; `formats.py` writes it.

A run is the dict of `table.py` with `id`, the name of its folder, with `keys`, what it stands for
in the names of `published()`, for example `{"model": "llama2-13b", "dataset": "cnndm", "method":
"swift", "temperature": 0.0}`, and `stands_for`, None or a text such as "mini-summary stands for
cnndm".
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from skipbench.report.compared import BOLD, same_drafts, winner
from skipbench.report.definitions import STAND_INS
from skipbench.report.measured import SCORES, Measured, measure, unmeasured
from skipbench.report.papercells import Cell, PaperTable, Part, Row
from skipbench.report.paperjoin import OVERALL, Half, Id, Run, halves, join, unit_of, value_of
from skipbench.report.papernotes import (
    definitions,
    deviations,
    lossless,
    paper_notes,
    provenance,
    run_notes,
)
from skipbench.report.published import published_file

__all__ = ["Cell", "PaperTable", "Part", "Row", "paper_table"]
# columns of which the papers print the best in bold
BEST = ("speedup", "tokens_per_s", "TPT", "expected_speedup")
Place = tuple[Id, Any, str]
# rows with the same of these are compared
_BLOCK = ("model", "dataset", "subtask", "temperature", "top_p")


def paper_table(paper: str, table: str, runs: Sequence[Run], scale: str) -> PaperTable:
    """The table of `paper` with what `runs` measured of it at `scale`: paper, embedded or laptop.

    Raises:
        SkipbenchError: no such paper, or no numbers of that table.
    """
    document = published_file(paper)
    parts = halves(document, table)
    left = join(parts, runs)
    made = tuple(_part(half, document["names"], scale) for half in parts)
    columns = list(dict.fromkeys(column for half in parts for _, column in half.columns))
    rows = [row for half in parts for row in half.rows]
    return PaperTable(
        paper=paper,
        table=table,
        scale=scale,
        heading=(
            f"{document['names'].get('method', {}).get(paper, paper)} {_spoken(table)}: "
            f"{rows[0]['title']}"
        ),
        source=f"{document['title']}{_arxiv(document)}; transcribed text: {document['version']}",
        parts=made,
        cautions=tuple(deviations(rows, runs)),
        notes=(
            *paper_notes(document, table),
            *_bold_rule(columns),
            *same_drafts(runs),
            *run_notes(runs, left, parts),
        ),
        definitions=tuple(definitions(columns)),
        lossless=lossless(runs),
        provenance=tuple(provenance(runs)),
    )


def _bold_rule(columns: Sequence[str]) -> list[str]:
    return [f"{BOLD}; of the paper's rows, the highest value."] if set(columns) & set(BEST) else []


def _arxiv(document: Mapping[str, Any]) -> str:
    return f", arXiv:{document['arxiv']}" if document["arxiv"] else ""


def _spoken(table: str) -> str:
    """`table2` as "Table 2"."""
    kind = next((k for k in ("table", "figure", "section", "appendix") if table.startswith(k)), "")
    return f"{kind.capitalize()} {table.removeprefix(kind)}".strip()


def _part(half: Half, names: Mapping[str, Any], scale: str) -> Part:
    keys = [
        k
        for k in dict.fromkeys([*half.keys, "model", "method"])
        if k in half.keys or _differs(half, k)
    ]
    grid = {(i, g, c): _cell(half, i, g, c, scale) for i in half.ids for g, c in half.columns}
    marked = _bold(half, grid)
    rows = [
        Row(
            tuple(_printed(names, key, value_of(i, key)) for key in keys),
            tuple(marked[i, g, c] for g, c in half.columns),
        )
        for i in half.ids
    ]
    columns = tuple(
        (_printed(names, half.across, g) if half.across else "", c) for g, c in half.columns
    )
    shown = {k: v for k, v in half.settings.items() if k not in keys}
    settings = "; ".join(f"{k} {_printed(names, k, v)}" for k, v in shown.items())
    return Part(tuple(keys), columns, tuple(rows), settings)


def _differs(half: Half, key: str) -> bool:
    return key != half.across and len({value_of(i, key) for i in half.ids}) > 1


def _printed(names: Mapping[str, Any], key: str | None, value: Any) -> str:
    return "" if value is None or key is None else str(names.get(key, {}).get(value, value))


def _cell(half: Half, identity: Id, group: Any, column: str, scale: str) -> Cell:
    row = half.printed.get((identity, group, column), {})
    value, interval, reason = _measured(half, identity, group, column, scale)
    across = {half.across: group} if half.across else {}
    return Cell(
        keys={**half.settings, **dict(identity), **across},
        column=column,
        unit=unit_of(column),
        measured=value,
        interval=interval,
        published=row.get("value"),
        spread=row.get("spread"),
        digits=_usual_digits(half, column) if row.get("digits") is None else row["digits"],
        reason=reason,
        note=row.get("note"),
        run=half.runs.get((identity, group), {}).get("id"),
    )


def _usual_digits(half: Half, column: str) -> int:
    """Decimals that the paper prints most often in a column."""
    printed = [
        row["digits"] for row in half.rows if row["column"] == column and row["digits"] is not None
    ]
    return Counter(printed).most_common(1)[0][0] if printed else 2


def _measured(half: Half, identity: Id, group: Any, column: str, scale: str) -> Measured:
    if reason := unmeasured(column):
        return None, None, reason
    if group == OVERALL and (identity, group) not in half.runs:
        return _mean(half, identity, column, scale)
    run = half.runs.get((identity, group))
    if run is None:
        model = value_of(identity, "model") or (
            group if half.across == "model" else half.settings.get("model")
        )
        if scale != "paper" and model not in STAND_INS:
            return None, None, f"not run at scale={scale}"
        return None, None, "not run yet"
    if not run.get("metrics"):
        return None, None, str(run.get("reason") or "not run yet")
    value, interval, reason = measure(
        run["metrics"], column, value_of(identity, "phase") or half.settings.get("phase")
    )
    # A run that waits for its scores says so; it is the better reason for a score that is not
    # there.
    return (
        value,
        interval,
        str(run["reason"]) if reason and column in SCORES and run.get("reason") else reason,
    )


def _mean(half: Half, identity: Id, column: str, scale: str) -> Measured:
    """The paper's overall values: the mean over its tasks, only where all of them were measured."""
    groups = [g for g in dict.fromkeys(g for g, _ in half.columns) if g != OVERALL]
    found = [_measured(half, identity, g, column, scale) for g in groups]
    values = [value for value, _, _ in found if value is not None]
    if len(values) == len(groups):
        return fmean(values), None, None
    reasons = list(dict.fromkeys(reason for _, _, reason in found if reason))
    missing = [str(g) for g, (value, _, _) in zip(groups, found, strict=True) if value is None]
    told = (
        reasons[0]
        if not values and len(reasons) == 1
        else f"the mean needs {', '.join(missing)} too"
    )
    return None, None, told


def _bold(half: Half, grid: Mapping[Place, Cell]) -> dict[Place, Cell]:
    """Marks in each block and column the measured winner and the highest printed value, if there is
    more than one.
    """
    blocks: dict[tuple[Any, ...], list[Place]] = {}
    for identity, group, column in grid:
        if column in BEST:
            block = (*(value_of(identity, key) for key in _BLOCK), group, column)
            blocks.setdefault(block, []).append((identity, group, column))
    marked = dict(grid)
    for places in blocks.values():
        cells = {place: grid[place] for place in places}
        best = winner(
            {
                p: (str(c.keys.get("method")), c.interval)
                for p, c in cells.items()
                if c.measured is not None
            }
        )
        published = _best({place: cell.published for place, cell in cells.items()})
        for place, cell in cells.items():
            marked[place] = replace(
                cell, best_measured=place == best, best_published=place in published
            )
    return marked


def _best(values: Mapping[Place, float | None]) -> set[Place]:
    """Where the highest of two values or more stands; it may be in several places."""
    known = {place: value for place, value in values.items() if value is not None}
    return (
        {place for place, value in known.items() if value == max(known.values())}
        if len(known) > 1
        else set()
    )
