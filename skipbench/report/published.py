"""The numbers that the papers print: `papers/<paper>.yaml` holds them in the papers' own rows."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from skipbench.errors import SkipbenchError
from skipbench.report.definitions import NAMED, UNITS

FOLDER = Path(__file__).parent / "papers"
LOST, NOTE_LOST = "lost", "the transcribed text has lost this number"
Keys = dict[str, Any]
Hardware = str | dict[str, str | None] | None  # by model and `default`; None: not named


class Printed(msgspec.Struct, kw_only=True):
    """A number as a paper prints it."""

    keys: Keys  # settings and keys of its row, by skipbench's names
    column: str
    value: float | None = None  # None where the transcribed text has lost it
    digits: int | None = None  # decimals as printed, two more for percent
    spread: float | None = None
    note: str | None = None
    hardware: str | None = None

    @property
    def method(self) -> str:
        return str(self.keys.get("method"))

    def named(self, *keys: str) -> list[str]:
        """Its values of those keys that it has."""
        return [str(self.keys[key]) for key in keys if key in self.keys]


class Note(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A note on the numbers that `where` and `column` choose, else on the table; one of the paper
    on these `tables`, or on all.
    """

    text: str
    where: Keys = {}
    column: str | None = None
    tables: list[str] = []

    def is_on(self, number: Printed) -> bool:
        """True if it is on this number of its table."""
        column = self.column in (None, number.column)
        return bool(self.where) and column and self.where.items() <= number.keys.items()


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Rows of one value per key, then one cell per column: a number, `[number, spread]`, `null` (a
    dash or nothing is printed) or `lost` (the text has lost it). A number that ends in zeros is a
    text, `'1.40'`, which keeps its decimals. `percent` lists columns printed in percent; with
    `across: model`, columns stand in groups, one per model. `beside` names columns that are
    measured only, by the printed ones that they stand behind.
    """

    keys: list[str]
    columns: list[str] | dict[Any, list[str]]
    rows: list[Any]
    across: str | None = None
    percent: list[str] = []
    beside: dict[str, str] = {}
    settings: Keys = {}
    numbers: list[Printed] = []  # not in the file

    @property
    def grouped(self) -> list[tuple[Any, str]]:
        """Group, or None, and name of each printed column."""
        groups = self.columns if isinstance(self.columns, dict) else {None: self.columns}
        return [(group, name) for group, names in groups.items() for name in names]

    @property
    def shown(self) -> list[tuple[Any, str]]:
        """Group, or None, and name of each column of the table, those of `beside` too."""
        more = ((group, (name, self.beside.get(name))) for group, name in self.grouped)
        return [(group, name) for group, names in more for name in names if name]


class Contents(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A table; in its file, one without `parts` has the fields of its only part."""

    title: str
    parts: list[Part]
    settings: Keys = {}
    hardware: Hardware | msgspec.UnsetType = msgspec.UNSET
    samples: int | None = None  # of each cell, where other than those of its dataset elsewhere
    notes: list[Note] = []


class Paper(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A file. `version` says which text was transcribed, `settings` hold for all tables, `names`
    what the paper calls skipbench's ids, `left_out` the tables without numbers and why. Tables are
    `table2`, `figure4`, and `section5.1` for numbers that only the text of a section prints.
    """

    paper: str
    title: str
    arxiv: str | None
    version: str
    hardware: Hardware
    software: str | None  # versions, and the host's CPU; None: not named
    names: dict[str, dict[Any, str]]
    tables: dict[str, Contents]
    settings: Keys = {}
    left_out: dict[str, str] = {}
    notes: list[Note] = []

    def printed(self, key: str | None, value: Any) -> str:
        """The paper's name for the value of a key."""
        if key is None or value is None:
            return ""
        return str(self.names.get(key, {}).get(value, value))


def papers() -> list[str]:
    """The papers whose numbers are available."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def paper_of(experiment: str) -> tuple[str, str] | None:
    """Paper and table of `swift-table2`; `None` for an experiment of no paper."""
    paper, _, table = experiment.rpartition("-")
    return (paper, table) if paper in papers() else None


def numbers_of(name: str) -> list[Printed]:
    """The numbers of a table or figure such as `swift-table2`; none of another name."""
    paper, table = paper_of(name) or ("", "")
    contents = read_paper(paper).tables.get(table) if paper else None
    return [n for part in contents.parts for n in part.numbers] if contents else []


@functools.cache  # a table asks for every cell
def samples_of(name: str, dataset: str) -> int | None:
    """Samples that the paper of a table such as `swift-table2` decodes of a dataset, if it says."""
    paper, table = paper_of(name) or ("", "")
    tables = read_paper(paper).tables if paper else {}
    if table in tables and (own := tables[table].samples) is not None:
        return own
    every = (n for contents in tables.values() for part in contents.parts for n in part.numbers)
    of = [n for n in every if n.column == "samples" and n.keys.get("dataset") == dataset]
    return next((int(n.value) for n in of if n.value is not None), None)


def published(paper: str) -> list[Keys]:
    """Every printed number of `paper`, one dict each, for `pandas.DataFrame(published(paper))`.

    A dict holds `paper`, `table`, `title`, the settings and keys of the row by skipbench's names
    (those in `NAMED` again as printed, `model_printed`), `unit` (of `UNITS`) and the fields of
    `Printed`. Cells in which the paper prints nothing are left out.
    Raises SkipbenchError for an unknown paper.
    """
    of = read_paper(paper)
    return [
        {"paper": of.paper, "table": name, "title": table.title, **n.keys, "column": n.column}
        | {"value": n.value, "digits": n.digits, "spread": n.spread, "note": n.note}
        | {f"{k}_printed": of.printed(k, n.keys[k]) for k in NAMED if k in n.keys}
        | {"hardware": n.hardware, "unit": UNITS[n.column]}
        for name, table in of.tables.items()
        for part in table.parts
        for n in part.numbers
    ]


def read_paper(paper: str) -> Paper:
    """A paper's file with the numbers of all its tables. Raises SkipbenchError as `published`."""
    path = FOLDER / f"{paper}.yaml"
    if not path.is_file():
        raise SkipbenchError(
            f"no published numbers of paper {paper!r}; there are those of {', '.join(papers())}"
        )
    raw = msgspec.yaml.decode(path.read_bytes())
    for name, table in raw["tables"].items():
        if "parts" not in table:
            head = {k: v for k, v in table.items() if k in Contents.__struct_fields__}
            part = {k: v for k, v in table.items() if k not in head}
            raw["tables"][name] = head | {"parts": [part]}
    document = msgspec.convert(raw, Paper)
    for contents in document.tables.values():
        _add_numbers(document, contents)
    return document


def _add_numbers(paper: Paper, table: Contents) -> None:
    """Sets the `numbers` of each part, with hardware and notes."""
    hardware = paper.hardware if table.hardware is msgspec.UNSET else table.hardware
    devices = hardware if isinstance(hardware, dict) else {"default": hardware}
    for part in table.parts:
        part.numbers = list(_numbers(part, paper.settings | table.settings | part.settings))
        for number in part.numbers:
            number.hardware = devices.get(str(number.keys.get("model")), devices.get("default"))
            notes = [note.text for note in table.notes if note.is_on(number)]
            number.note = "; ".join(filter(None, [number.note, *notes])) or None


def _numbers(part: Part, settings: Keys) -> Iterator[Printed]:
    for row in part.rows:
        own = settings | dict(zip(part.keys, row, strict=False))
        for (group, column), cell in zip(part.grouped, row[len(part.keys) :], strict=True):
            keys = own | ({part.across: group} if part.across else {})
            if cell == LOST:
                yield Printed(keys=keys, column=column, note=NOTE_LOST)
            elif cell is not None:
                pair = cell if isinstance(cell, list) else [cell]
                percent = column in part.percent
                digits = len(str(pair[0]).partition(".")[2]) + 2 * percent
                known = [round(float(v) * 0.01, digits) if percent else float(v) for v in pair]
                value, spread = [*known, None][:2]
                yield Printed(keys=keys, column=column, value=value, digits=digits, spread=spread)
