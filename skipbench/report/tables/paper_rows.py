"""Joins runs with the printed numbers of a paper's table."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from skipbench.errors import SkipbenchError
from skipbench.report.compared import BASELINE
from skipbench.report.definitions import NAMED
from skipbench.report.measured import vanilla_arm
from skipbench.report.published import Paper, Printed
from skipbench.report.tables.runs import ALL, check_keys
from skipbench.runs.run import Run

Id = tuple[tuple[str, Any], ...]  # keys and values of a row
Group = Any  # a value of `across`; None without it
SELECTORS = ("phase", "part", "statistic")  # keys that choose a number of a run, not a run
STANDS_FOR = " stands for "
SAMPLING = ("temperature", "top_p")
LENGTHS = ("max_new_tokens", "max_length", "batch")


@dataclass
class Half:
    """One part of a paper's table: printed numbers, and runs by row and group of columns."""

    numbers: list[Printed]
    keys: list[str]
    across: str | None
    printed_columns: list[tuple[Group, str]]
    paper: str
    runs: dict[tuple[Id, Group], Run] = field(default_factory=dict)
    twice: dict[str, None] = field(default_factory=dict)  # not shown: another has the same keys
    arms_of: set[str] = field(default_factory=set)  # methods whose vanilla arm is shown

    @cached_property
    def varying(self) -> set[str]:
        """The keys in which the printed numbers differ."""
        keys = {key for number in self.numbers for key in number.keys}
        return {k for k in keys if len({repr(n.keys.get(k)) for n in self.numbers}) > 1}

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The other keys, without those of `keys`."""
        left_out = self.varying.union(self.keys)
        return {k: v for k, v in self.numbers[0].keys.items() if k not in left_out}

    @cached_property
    def printed(self) -> dict[tuple[Id, Group, str], Printed]:
        return {(*self.place(n.keys), n.column): n for n in self.numbers}

    @property
    def blocks(self) -> list[tuple[list[Id], list[tuple[Group, str]]]]:
        """Rows with their columns, models with a measured run first; rows of ours alone last."""
        groups, names = (dict.fromkeys(each) for each in zip(*self.printed_columns, strict=True))
        own = {row for row, _, _ in self.printed} | {row for row, g in self.runs if g in groups}
        found: list[tuple[list[Id], list[tuple[Group, str]]]] = []
        for rows in ([r for r in self.ids if r in own], [r for r in self.ids if r not in own]):
            new = dict.fromkeys(g for r, g in self.runs if r in rows and g not in groups)
            columns = [(group, name) for group in new for name in names]
            if rows:
                found.append((rows, columns if found else [*self.printed_columns, *columns]))
        models = {dict(row).get("model") for (row, _), run in self.runs.items() if run.metrics}

        def waits(row: Id) -> bool:
            return dict(row).get("model") not in models

        ordered = [(sorted(rows, key=waits), columns) for rows, columns in found]
        return sorted(ordered, key=lambda block: waits(block[0][0]))

    @property
    def ids(self) -> list[Id]:
        """The paper's rows in its order, then the others by model and the paper's methods."""
        own = list(dict.fromkeys(row for row, _, _ in self.printed))
        others = list(dict.fromkeys(row for row, _ in self.runs if row not in own))
        methods = list(dict.fromkeys(n.keys.get("method") for n in self.numbers))
        models = [dict(row).get("model") for row in (*own, *others)]

        def order(row: Id) -> tuple[int, int]:
            model, method = (dict(row).get(key) for key in ("model", "method"))
            return models.index(model), [*methods, method].index(method)

        return [*own, *sorted(others, key=order)]

    def place(self, keys: Mapping[str, Any]) -> tuple[Id, Group]:
        """Row and group of columns of what has these keys."""
        names = dict.fromkeys([*self.keys, "model", "method"])
        row = tuple((k, keys[k]) for k in names if k in keys and k != self.across)
        return row, keys.get(self.across or "")

    def add(self, run: Run) -> bool:
        """Assigns a run to the rows it can fill: those of its keys, else new ones of its model or
        method. Returns False if there are none.
        """
        compared = {*self.keys, *self.varying, *NAMED, *SAMPLING}.difference(SELECTORS)
        for free in ((), ("model",), ("method",), ("model", "method")):
            own = {k: run.keys[k] for k in free if k in run.keys}
            own |= _stand_in(run)
            keys = compared.difference(free)
            fixed, lacking = keys & run.keys.keys(), (keys & self.varying) - run.keys.keys()
            places = [
                self.place(n.keys | own)
                for n in self.numbers
                if all(run.keys[k] == n.keys[k] for k in fixed & n.keys.keys())
                and lacking.isdisjoint(n.keys)
            ]
            for place in places:
                before = self.runs.get(place)
                if before is None or (not before.metrics and run.metrics):
                    self.runs[place] = run
                elif before is not run and run.metrics:
                    self.twice[named(run)] = None
            if places:
                return True
        return False

    def add_vanilla(self) -> None:
        """What is vanilla's without a run gets the vanilla arm of a run with the same keys."""
        numbers = [n for n in self.numbers if n.method == BASELINE]
        for (row, group), run in list(self.runs.items()):
            keys = dict(row) | ({self.across: group} if self.across else {}) | {"method": BASELINE}
            place, model = self.place(keys), {"model": keys.get("model")}
            there = self.runs.get(place)
            if not run.metrics or (there and there.metrics):
                continue
            printed = [self.place(n.keys | model) for n in numbers]
            rows = place in printed if self.across == "method" else place[0] in dict(printed)
            if numbers and (self.across == "model" or rows):
                spreads = {"method": run.spreads.get("vanilla", {})}
                arm = replace(run, metrics=vanilla_arm(run.metrics), spreads=spreads)
                self.runs[place] = arm
                self.arms_of |= {str(run.keys["method"])} if "method" in run.keys else set()


def halves(paper: Paper, table: str) -> list[Half]:
    """The parts of `table`, joined where columns agree. Raises SkipbenchError for no such table."""
    if table not in paper.tables:
        raise SkipbenchError(
            f"no published numbers of {paper.paper} {table!r}; there are {', '.join(paper.tables)}"
        )
    made: list[Half] = []
    contents = paper.tables[table]
    for part in contents.parts:
        last = made[-1] if made else None
        if last and (last.across, last.printed_columns) == (part.across, part.shown):
            settings = (contents.settings | part.settings).items()
            differing = [k for k, v in settings if any(v != n.keys.get(k) for n in last.numbers)]
            last.keys = list(dict.fromkeys([*differing, *last.keys, *part.keys]))
            last.numbers += part.numbers
        else:
            columns = part.shown
            made.append(Half([*part.numbers], [*part.keys], part.across, columns, paper.paper))
    return made


def with_columns(parts: Sequence[Half], chosen: Sequence[str]) -> list[Half]:
    """The parts with these columns only, in this order. Raises SkipbenchError for others."""
    names = dict.fromkeys(column for half in parts for _, column in half.printed_columns)
    check_keys(chosen, [*names])
    if not chosen or ALL in chosen:
        return list(parts)
    for half in parts:
        groups = dict.fromkeys(group for group, _ in half.printed_columns)
        pairs = ((group, column) for group in groups for column in chosen)
        half.printed_columns = [pair for pair in pairs if pair in half.printed_columns]
    return [half for half in parts if half.printed_columns]


def once(runs: Sequence[Run]) -> list[Run]:
    """The runs; one that stands for several datasets is there once, and names them all."""
    kept: list[Run] = []
    for run in runs:
        for place, first in enumerate(kept):
            same = run.id and first.id == run.id and _setting(first) == _setting(run)
            if same and run.stands_for and first.stands_for and first.metrics == run.metrics:
                texts = [first.stands_for, run.stands_for]
                kept[place] = replace(first, stands_for="; ".join(stand_ins(texts)))
                break
        else:
            kept.append(run)
    return kept


def _setting(run: Run) -> dict[str, Any]:
    return {k: v for k, v in run.keys.items() if k not in ("dataset", "subtask")}


def stand_ins(texts: Iterable[str]) -> list[str]:
    """`A stands for B` and `A stands for C` as `A stands for B, C`."""
    found: dict[str, dict[str, None]] = {}
    for text in "; ".join(texts).split("; "):
        other, _, names = text.partition(STANDS_FOR)
        found.setdefault(other, {}).update(dict.fromkeys(names.split(", ")))
    return [f"{other}{STANDS_FOR}{', '.join(names)}" for other, names in sorted(found.items())]


def named(run: Run) -> str:
    """The paper's keys of a run, as text: its own dtype, and no settings of the paper's runs."""
    keys = {k: v for k, v in own_dtype(run.keys, run).items() if k not in LENGTHS}
    return ", ".join(f"{key}={value}" for key, value in (keys | _stand_in(run)).items())


def own_dtype(keys: dict[str, Any], run: Run | None) -> dict[str, Any]:
    """Keys of a paper's row with the dtype in which `run` measured, where both have one."""
    dtype = run.origin.dtype if run and run.metrics else None
    return keys | {"dtype": dtype} if dtype and "dtype" in keys else keys


def _stand_in(run: Run) -> dict[str, Any]:
    """The key of a run's dataset where that stands for one of the paper's, or for a part of it."""
    key = "subtask" if "subtask" in run.keys else "dataset"
    return {key: run.dataset} if run.stands_for else {}
