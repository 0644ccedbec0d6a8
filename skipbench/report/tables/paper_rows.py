"""Joins runs with the printed numbers of a paper's table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from msgspec.structs import replace

from skipbench.report.columns import ALL, check_columns
from skipbench.report.compared import BASELINE
from skipbench.report.definitions import NAMED
from skipbench.report.published import Paper, Printed
from skipbench.runs.run import Run

Id = tuple[tuple[str, Any], ...]  # keys and values of a row
Group = Any  # a value of `across`; None without it
SELECTORS = ("phase", "part", "statistic")  # keys that choose a number of a run, not a run
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
    def ids(self) -> list[Id]:
        """The paper's rows, those of models with a measured run first."""
        rows = dict.fromkeys(row for row, _, _ in self.printed)
        models = {dict(row).get("model") for (row, _), run in self.runs.items() if run.metrics}
        return sorted(rows, key=lambda row: dict(row).get("model") not in models)

    def place(self, keys: Mapping[str, Any]) -> tuple[Id, Group]:
        """Row and group of columns of what has these keys."""
        names = dict.fromkeys([*self.keys, "model", "method"])
        row = tuple((k, keys[k]) for k in names if k in keys and k != self.across)
        return row, keys.get(self.across or "")

    def add(self, run: Run) -> bool:
        """Assigns a run to the rows with its keys. Returns False if there are none."""
        compared = {*self.keys, *self.varying, *NAMED, *SAMPLING}.difference(SELECTORS)
        own = {k: v for k, v in run.keys.items() if k in compared}
        lacking = (compared & self.varying) - own.keys()
        places = {
            self.place(n.keys)
            for n in self.numbers
            if own.items() >= {k: v for k, v in n.keys.items() if k in own}.items()
            and lacking.isdisjoint(n.keys)
        }
        for place in places:
            before = self.runs.get(place)
            if before is None or not before.metrics:
                self.runs[place] = run
        return bool(places)

    def add_vanilla(self) -> None:
        """A row of vanilla without a run of its own has the vanilla of one with the same keys."""
        rows = {self.place(number.keys)[0] for number in self.numbers if number.method == BASELINE}
        for (row, group), run in list(self.runs.items()):
            keys = dict(row) | ({self.across: group} if self.across else {})
            place = self.place(keys | {"method": BASELINE})
            there = self.runs.get(place)
            if place[0] in rows and run.metrics and not (there and there.metrics):
                spreads = {"method": run.spreads.get("vanilla", {})}
                self.runs[place] = replace(run, metrics=run.metrics.baseline, spreads=spreads)


def halves(paper: Paper, table: str) -> list[Half]:
    """The parts of `table`, joined where columns agree."""
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
    check_columns(chosen, [*names])
    if not chosen or ALL in chosen:
        return list(parts)
    for half in parts:
        groups = dict.fromkeys(group for group, _ in half.printed_columns)
        pairs = ((group, column) for group in groups for column in chosen)
        half.printed_columns = [pair for pair in pairs if pair in half.printed_columns]
    return [half for half in parts if half.printed_columns]


def named(run: Run) -> str:
    """The paper's keys of a run, as text: its own dtype, and no settings of the paper's runs."""
    keys = {k: v for k, v in own_dtype(run.keys, run).items() if k not in LENGTHS}
    return ", ".join(f"{key}={value}" for key, value in keys.items())


def own_dtype(keys: dict[str, Any], run: Run | None) -> dict[str, Any]:
    """Keys of a paper's row with the dtype in which `run` measured, where both have one."""
    dtype = run.origin.dtype if run and run.metrics else None
    return keys | {"dtype": dtype} if dtype and "dtype" in keys else keys
