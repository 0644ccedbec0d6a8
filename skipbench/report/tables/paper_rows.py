"""Joins runs with the published rows of a table: its halves, their rows, and the run per cell."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.report.measured import vanilla_arm
from skipbench.report.published import KEYS, NAMED, published
from skipbench.runs.run import Run

Id = tuple[tuple[str, Any], ...]
SELECTORS = ("phase", "part", "statistic")  # keys that choose a number of a run, not a run
SAMPLING = ("temperature", "top_p")
OVERALL = "overall"
_IGNORED: tuple[tuple[str, ...], ...] = ((), ("model",), ("method",), ("model", "method"))


@dataclass
class Half:
    """One part of a paper's table: published rows and runs by row and group of columns.

    `columns` are (group, column) in the paper's order; a group is a value of `across`, or None.
    `settings` hold what is the same in all rows.
    """

    rows: list[dict[str, Any]]
    keys: list[str]
    across: str | None
    columns: list[tuple[Any, str]]
    settings: dict[str, Any] = field(default_factory=dict)
    ids: list[Id] = field(default_factory=list)
    printed: dict[tuple[Id, Any, str], dict[str, Any]] = field(default_factory=dict)
    runs: dict[tuple[Id, Any], Run] = field(default_factory=dict)
    twice: list[str] = field(default_factory=list)
    arms_of: set[str] = field(default_factory=set)
    """Methods whose runs' vanilla arms stand in rows of vanilla."""


def halves(document: Mapping[str, Any], table: str) -> list[Half]:
    """The parts of `table` as a paper prints it, from its `published_file`; parts with the same
    columns are one.

    Raises:
        SkipbenchError: the paper has no numbers of that table; it names those that it has.
    """
    paper, tables = document["paper"], document["tables"]
    if table not in tables:
        raise SkipbenchError(
            f"no published numbers of {paper} {table!r}; there are {', '.join(tables)}"
        )
    rows = [row for row in published(paper) if row["table"] == table]
    made: list[Half] = []
    for part in tables[table].get("parts") or [tables[table]]:
        across = part.get("across")
        columns = [(g, c) for g, names in part["columns"].items() for c in names] if across else []
        columns = columns or [(None, c) for c in part["columns"]]
        settings = {**tables[table].get("settings", {}), **part.get("settings", {})}
        count = sum(c is not None for cells in part["rows"] for c in cells[len(part["keys"]) :])
        mine, rows = rows[:count], rows[count:]
        if made and (made[-1].across, made[-1].columns) == (across, columns):
            differing = [
                k for k in settings if any(settings[k] != row.get(k) for row in made[-1].rows)
            ]
            made[-1].keys = list(dict.fromkeys([*differing, *made[-1].keys, *part["keys"]]))
            made[-1].rows += mine
        else:
            made.append(Half(mine, list(part["keys"]), across, columns))
    for half in made:
        _place(half)
    return made


def join(parts: Sequence[Half], runs: Sequence[Run]) -> list[Run]:
    """Gives every run its cells in `parts`, new rows or groups where it has none.

    Returns the runs that fit nowhere.
    """
    left = [run for run in runs if not any([_take(half, run) for half in parts])]
    for half in parts:
        _add_vanilla(half)
        _sort(half)
    return left


def varying(half: Half) -> set[str]:
    """The keys in which the published rows differ."""
    keys = {key for row in half.rows for key in row if key in KEYS}
    return {key for key in keys if len({repr(row.get(key)) for row in half.rows}) > 1}


def value_of(row: Id, key: str) -> Any:
    """The value of `key` in a row's id, None where it has none."""
    return dict(row).get(key)


def _place(half: Half) -> None:
    shared = {k: v for k, v in half.rows[0].items() if k in KEYS and k not in varying(half)}
    half.settings = {k: v for k, v in shared.items() if k not in half.keys}
    for row in half.rows:
        identity = _id(half, row)
        if identity not in half.ids:
            half.ids.append(identity)
        half.printed[identity, row.get(half.across) if half.across else None, row["column"]] = row


def _id(half: Half, row: Mapping[str, Any]) -> Id:
    keys = dict.fromkeys([*half.keys, "model", "method"])
    return tuple((key, row[key]) for key in keys if key in row and key != half.across)


def _fits(
    half: Half, row: Mapping[str, Any], run: Run, ignored: Sequence[str], differing: set[str]
) -> bool:
    keys = ({*half.keys, *differing, *NAMED, *SAMPLING} & row.keys()) - {*SELECTORS, *ignored}
    given = run.keys
    return all(given[k] == row[k] if k in given else k not in differing for k in keys)


def _take(half: Half, run: Run) -> bool:
    differing = varying(half)
    for ignored in _IGNORED:
        fitting = [row for row in half.rows if _fits(half, row, run, ignored, differing)]
        for row in fitting:
            changed = {**row, **{key: run.keys[key] for key in ignored if key in run.keys}}
            _attach(half, changed, run)
        if fitting:
            return True
    return False


def _attach(half: Half, row: Mapping[str, Any], run: Run) -> None:
    identity, group = _id(half, row), row.get(half.across) if half.across else None
    if identity not in half.ids:
        half.ids.append(identity)
    if group is not None and group not in (g for g, _ in half.columns):
        names = dict.fromkeys(column for _, column in half.columns)
        half.columns += [(group, column) for column in names]
    before = half.runs.get((identity, group))
    if before is None or (not before.metrics and run.metrics):
        half.runs[identity, group] = run
    elif before is not run and run.metrics:
        text = ", ".join(f"{k}={v}" for k, v in run.keys.items())
        half.twice += [text] if text not in half.twice else []


def _add_vanilla(half: Half) -> None:
    """Rows of vanilla without a run of their own are the vanilla arm of another method's run with
    the same keys.
    """
    if half.across == "method" or "vanilla" not in (row.get("method") for row in half.rows):
        return
    for (identity, group), run in list(half.runs.items()):
        vanilla = tuple((k, "vanilla" if k == "method" else v) for k, v in identity)
        there = half.runs.get((vanilla, group))
        model = value_of(vanilla, "model")
        printed = any(vanilla == _id(half, {**row, "model": model}) for row in half.rows)
        missing = there is None or not there.metrics
        if run.metrics and missing and (printed or half.across == "model"):
            half.runs[vanilla, group] = replace(run, metrics=vanilla_arm(run.metrics))
            half.arms_of |= {str(run.keys["method"])} if "method" in run.keys else set()
            if vanilla not in half.ids:
                half.ids.append(vanilla)


def _sort(half: Half) -> None:
    """The paper's rows in its order, then the others by model, each in the paper's order of
    methods.
    """
    own = {_id(half, row) for row in half.rows}
    methods = list(dict.fromkeys(row.get("method") for row in half.rows))
    models = list(dict.fromkeys(value_of(i, "model") for i in half.ids))
    place = {i: at for at, i in enumerate(half.ids)}

    def order(identity: Id) -> tuple[int, ...]:
        if identity in own:
            return (0, place[identity])
        method = value_of(identity, "method")
        at = methods.index(method) if method in methods else len(methods)
        return (1, models.index(value_of(identity, "model")), at, place[identity])

    half.ids.sort(key=order)
