"""The numbers that the papers print: `papers/<paper>.yaml` holds them in the papers' own rows."""

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml

from skipbench.errors import SkipbenchError
from skipbench.report.definitions import KEYS, NAMED, UNITS
from skipbench.runs.reading import LOADER

FOLDER = Path(__file__).parent / "papers"
LOST, NOTE_LOST = "lost", "the transcribed text has lost this number"
Keys = dict[str, Any]
Hardware = str | dict[str, str | None] | None  # by model and `default`; None: not named


class Printed(msgspec.Struct, kw_only=True):
    """A number as a paper prints it."""

    keys: Keys  # settings and keys of its row, by skipbench's names
    column: str
    value: float | None = None  # None where the text at hand has lost it
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
    """A note on the numbers that `where` and `column` choose, else on the table or paper. With a
    `check` (tests/report/test_published_sums.py) it has a number's `recomputed` value.
    """

    text: str
    where: Keys = {}
    column: str | None = None
    check: str | None = None
    recomputed: Any = None

    def __post_init__(self) -> None:
        if self.check and None in (self.where or None, self.column, self.recomputed):
            raise ValueError("a note with a check needs where, column and recomputed")


class Part(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Rows of one value per key, then one cell per column: a number, `[number, spread]`, `null` (a
    dash or nothing is printed) or `lost` (the text at hand has lost it). `percent` lists columns
    printed in percent; with `across: model`, columns stand in groups, one per model. `beside` names
    columns that are measured only, by the printed ones that they stand behind.
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
    """The papers whose numbers are at hand."""
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
    Raises SkipbenchError, with file and table, for an unknown paper or a file that breaks the form.
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
    where = path.name
    try:
        raw: Any = yaml.load(path.read_text(encoding="utf-8"), _Loader)
        tables: Any = raw.get("tables") if isinstance(raw, dict) else None
        for name, table in tables.items() if isinstance(tables, dict) else ():
            where = f"{path.name}, {name}"
            if isinstance(table, dict) and not table.get("parts"):
                head = {k: v for k, v in table.items() if k in Contents.__struct_fields__}
                table = head | {"parts": [{k: v for k, v in table.items() if k not in head}]}
            tables[name] = msgspec.convert(table, Contents)
        where = path.name
        document = msgspec.convert(raw, Paper)
        for name, contents in document.tables.items():
            where = f"{path.name}, {name}"
            _add_numbers(document, contents)
    except yaml.YAMLError as error:
        raise SkipbenchError(f"{path.name} is no YAML: {error}") from error
    except ValueError as error:
        raise SkipbenchError(f"{where}: {error}") from error
    return document


class _Number(float):
    """A number with its decimals as printed: 1.40 is not 1.4."""

    digits = 0


class _Loader(LOADER):  # type: ignore[misc]  # chosen as the program runs
    def number(self, node: yaml.ScalarNode) -> _Number:
        value = _Number(self.construct_yaml_float(node))
        value.digits = len(node.value.partition(".")[2])
        return value


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.number)


def _add_numbers(paper: Paper, table: Contents) -> None:
    """Sets the `numbers` of each part, with hardware and notes. Raises ValueError for a bad one."""
    for part in table.parts:
        part.numbers = list(_numbers(part, paper.settings | table.settings | part.settings))
    numbers = [number for part in table.parts for number in part.numbers]
    if not numbers:
        raise ValueError("no rows; a table without numbers stands in left_out")
    hardware = paper.hardware if table.hardware is msgspec.UNSET else table.hardware
    devices = hardware if isinstance(hardware, dict) else {"default": hardware}
    for number in numbers:
        for key in NAMED:
            known, value = paper.names.get(key, {}), number.keys.get(key)
            if key in number.keys and value not in known:
                names = ", ".join(map(str, known))
                raise ValueError(f"{key} {value!r} is not among names: {names}")
        number.hardware = devices.get(str(number.keys.get("model")), devices.get("default"))
    counts = Counter((*sorted(n.keys.items()), n.column) for n in numbers)
    cell, count = counts.most_common(1)[0]
    if count > 1:
        raise ValueError(f"two values for {cell}; tell the rows apart by a key")
    for note in table.notes:
        wanted = note.where | ({"column": note.column} if note.column else {})
        noted = [n for n in numbers if wanted.items() <= (n.keys | {"column": n.column}).items()]
        if note.where and (not noted or (note.check and len(noted) != 1)):
            cells = f"{len(noted)} cells; wanted one that is there"
            raise ValueError(f"a note names {wanted}, which is {cells}")
        for number in noted if note.where else []:
            number.note = "; ".join(filter(None, (number.note, note.text)))


def _numbers(part: Part, settings: Keys) -> Iterator[Printed]:
    columns, split = part.grouped, len(part.keys)
    if isinstance(part.columns, dict) != bool(part.across):
        kind = "a mapping" if isinstance(part.columns, dict) else "a list"
        wanted = "wanted a list for each value of across, or one list"
        raise ValueError(f"columns are {kind}, but across={part.across}; {wanted}")
    names = list(dict.fromkeys(column for _, column in columns))
    keys = [*part.keys, *settings, *filter(None, [part.across])]
    for kind, given, known in (
        ("unknown columns", names, [*UNITS]),
        ("unknown keys", keys, sorted(KEYS)),
        ("percent names", part.percent, names),
    ):
        if unknown := sorted({*given}.difference(known)):
            raise ValueError(f"{kind} {unknown}; wanted some of {', '.join(known)}")
    for row in part.rows:
        sized = isinstance(row, list) and len(row) == split + len(columns)
        if not sized or None in row[:split]:
            raise ValueError(f"row {row!r}; wanted {part.keys}, then {len(columns)} values")
        own = settings | dict(zip(part.keys, row, strict=False))
        for (group, column), cell in zip(columns, row[split:], strict=True):
            of = own | ({part.across: group} if part.across else {})
            of = {k: float(v) if isinstance(v, float) else v for k, v in of.items()}
            pair = cell if isinstance(cell, list) and len(cell) == 2 else [cell]
            if cell == LOST:
                yield Printed(keys=of, column=column, note=NOTE_LOST)
            elif cell is not None and any(type(v) not in (int, float, _Number) for v in pair):
                wanted = f"number, [number, spread], null or {LOST}"
                raise ValueError(f"row {row}: {cell!r} is no {wanted}")
            elif cell is not None:
                percent = column in part.percent
                digits = getattr(pair[0], "digits", 0) + 2 * percent
                pair = [round(float(v) * 0.01, digits) if percent else float(v) for v in pair]
                value, spread = [*pair, None][:2]
                yield Printed(keys=of, column=column, value=value, digits=digits, spread=spread)
