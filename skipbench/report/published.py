"""The numbers that the papers print, as one long table a paper; `papers/<paper>.yaml` holds them in
the papers' own rows.

A file has `paper`, `title`, `arxiv`, `version` (which text was transcribed), `hardware` (by model,
or `default`), `settings` (of all its tables), `names` (what the paper calls skipbench's ids),
`left_out` (tables without numbers, and why), `notes`, and `tables`: `table2`, `figure4`, and
`section5.1` for numbers that only the text of a section prints.

A table has `title`, its own `hardware`, `settings` and `notes`, and `keys`, `columns` and `rows`: a
row is one value for each of `keys`, then one for each of `columns`. With `across: model`, columns
stand in groups, one for each model, as the paper prints them. `percent` lists columns that the
paper prints in percent. A table whose halves differ in columns has `parts`. A cell is a number,
`[number, spread]`, `null` (the paper prints a dash or nothing) or `lost` (the text at hand has lost
it). A note with `where`, `column`, `check` and `recomputed` names the one cell that does not follow
from other cells.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from skipbench.errors import SkipbenchError

FOLDER = Path(__file__).parent / "papers"
LOST = "lost"
_COLUMNS_BY_UNIT = {  # "1" is a plain ratio
    "tokens": "M tau max_new_tokens max_steps window",
    "tokens/s": "TPT tokens_per_s",
    "x": "speedup speedup_low speedup_high expected_speedup",
    "ms": "ms opt_step_ms ms_per_token",
    "s": "search_s pass_s",
    "1": "alpha matchness rouge1 rouge2 rougeL pass@1 pass@10 accuracy ratio share memory_saved "
    "alpha_gain speedup_gain correlation threshold target step beta1 beta2 temperature top_p "
    "tau_pruning max_score skipped_share",
    "steps": "beta steps patience search_steps bayes_steps random_steps",
    "rounds": "interval history",
    "count": "shots samples gpus training_steps skipped_layers skipped_attention skipped_mlp",
    "us": "us",
    "h": "search_h",
    "min": "search_min",
    "GB": "memory_gb",
    "points of 10": "score",
}
UNITS = {column: unit for unit, names in _COLUMNS_BY_UNIT.items() for column in names.split()}
# keys whose values are skipbench's ids and stand in `names`
NAMED = ("model", "method", "dataset", "subtask")
_SETTINGS = (
    "temperature top_p max_new_tokens max_length dtype batch sparsity variant stop max_steps "
    "threshold target interval skipped_layers window search_steps tau_pruning set_from "
    "train_tokens statistic phase part"
)
KEYS = {*NAMED, *_SETTINGS.split()}
_TABLE = {"title", "hardware", "settings", "notes"}
_PAPER = {*_TABLE, "paper", "arxiv", "version", "names", "left_out", "tables"}
_PART = {"settings", "keys", "across", "columns", "percent", "rows"}
_NOTE = {"text", "where", "column", "check", "recomputed"}
Row = dict[str, Any]


def papers() -> list[str]:
    """The papers whose numbers are at hand."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def paper_of(experiment: str) -> tuple[str, str] | None:
    """Paper and table of `swift-table2`; `None` for an experiment of no paper."""
    paper, _, table = experiment.rpartition("-")
    return (paper, table) if paper in papers() else None


def published(paper: str) -> list[Row]:
    """Every printed number of `paper`, one dict each, for `pandas.DataFrame(published(paper))`.

    A dict holds `paper`, `table`, `title`, `hardware` (None where the paper names none), the
    settings and keys of the row by skipbench's names (those in `NAMED` again as printed,
    `model_printed`), then `column`, `value` (None where the text at hand has lost it), `digits`
    (decimals as printed, two more for percent), `spread` (of a printed mean, else None), `unit` (of
    `UNITS`) and `note` (None or text). Cells in which the paper prints nothing are left out.

    Raises:
        SkipbenchError: no such paper, or a file breaks the form; it names the file and the table.
    """
    document = _document(paper, _Loader)
    return [
        row
        for name, table in document["tables"].items()
        for row in _table_rows(document, name, table)
    ]


def published_file(paper: str) -> dict[str, Any]:
    """`papers/<paper>.yaml` as it stands, its outer form checked; for version, notes and tables
    that are left out.

    Raises:
        SkipbenchError: as `published`.
    """
    return _document(paper, yaml.SafeLoader)


class _Number(float):
    """A number that knows how many decimals are printed: 1.40 is not 1.4."""

    digits = 0


class _Loader(yaml.SafeLoader):
    def number(self, node: yaml.ScalarNode) -> _Number:
        value = _Number(self.construct_yaml_float(node))
        value.digits = len(node.value.partition(".")[2])
        return value


_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.number)


def _document(paper: str, loader: type[yaml.SafeLoader]) -> Row:
    path = FOLDER / f"{paper}.yaml"
    if not path.is_file():
        raise SkipbenchError(
            f"no published numbers of paper {paper!r}; there are those of {', '.join(papers())}"
        )
    try:
        document: Any = yaml.load(path.read_text(encoding="utf-8"), loader)
    except yaml.YAMLError as error:
        raise SkipbenchError(f"{path.name} is no YAML: {error}") from error
    _demand(document, path.name, _PAPER, optional={"settings", "left_out", "notes"})
    for key in ("names", "tables"):
        if not isinstance(document[key], Mapping):
            raise SkipbenchError(
                f"{path.name}: {key} is a {type(document[key]).__name__}; wanted a mapping"
            )
    return dict(document)


def _table_rows(document: Row, name: str, table: Any) -> list[Row]:
    where = f"{document['paper']}.yaml, {name}"
    parts = table.get("parts") if isinstance(table, Mapping) else None
    whole = {"keys", "columns", "rows"}
    inner, needed = ({"parts"}, {"title", "parts"}) if parts else (_PART, {"title", *whole})
    _demand(table, where, _TABLE | inner, optional=(_TABLE | inner) - needed)
    rows: list[Row] = []
    for part in parts or [
        {key: value for key, value in table.items() if key in _PART - {"settings"}}
    ]:
        _demand(part, where, _PART, optional=_PART - whole)
        settings = {
            **document.get("settings", {}),
            **table.get("settings", {}),
            **part.get("settings", {}),
        }
        rows += [
            {"paper": document["paper"], "table": name, "title": table["title"], **r}
            for r in _part_rows(settings, part, where)
        ]
    if not rows:
        raise SkipbenchError(f"{where}: no rows; a table without numbers stands in left_out")
    for row in rows:
        _complete(row, document, table, where)
    cells = Counter(
        (*((key, row[key]) for key in sorted(KEYS & row.keys())), row["column"]) for row in rows
    )
    if twice := [cell for cell, count in cells.items() if count > 1]:
        raise SkipbenchError(f"{where}: two values for {twice[0]}; tell the rows apart by a key")
    for note in table.get("notes", []):
        _attach(note, rows, where)
    return rows


def _part_rows(settings: Row, part: Row, where: str) -> Iterator[Row]:
    across, percent = part.get("across"), part.get("percent", [])
    if isinstance(part["columns"], Mapping) != bool(across):
        kind = "a mapping" if isinstance(part["columns"], Mapping) else "a list"
        raise SkipbenchError(
            f"{where}: columns are {kind}, but across={across}; wanted a list for each value "
            "of across, or one list"
        )
    groups = part["columns"] if across else {None: part["columns"]}
    columns = [(group, column) for group, names in groups.items() for column in names]
    if unknown := {column for _, column in columns} - UNITS.keys():
        raise SkipbenchError(
            f"{where}: unknown columns {sorted(unknown)}; wanted some of {', '.join(UNITS)}"
        )
    if unknown := set(percent) - {column for _, column in columns}:
        raise SkipbenchError(
            f"{where}: percent names {sorted(unknown)}; wanted some of the columns"
        )
    if unknown := {*part["keys"], *settings, *([across] if across else [])} - KEYS:
        raise SkipbenchError(
            f"{where}: unknown keys {sorted(unknown)}; wanted some of {', '.join(sorted(KEYS))}"
        )
    for cells in part["rows"]:
        split = len(part["keys"])
        if (
            not isinstance(cells, list)
            or len(cells) != split + len(columns)
            or None in cells[:split]
        ):
            raise SkipbenchError(
                f"{where}: row {cells!r}; wanted {part['keys']}, then {len(columns)} values"
            )
        keys = {**settings, **dict(zip(part["keys"], cells[:split], strict=True))}
        keys = {
            key: float(value) if isinstance(value, float) else value for key, value in keys.items()
        }
        for (group, column), cell in zip(columns, cells[split:], strict=True):
            if cell is not None:
                value = _value(cell, column in percent, f"{where}: row {cells}")
                yield {**keys, **({across: group} if across else {}), "column": column, **value}


def _value(cell: Any, percent: bool, where: str) -> Row:
    if cell == LOST:
        return {
            "value": None,
            "digits": None,
            "spread": None,
            "note": "the transcribed text has lost this number",
        }
    pair = cell if isinstance(cell, list) and len(cell) == 2 else [cell]
    if any(isinstance(number, bool) or not isinstance(number, int | float) for number in pair):
        raise SkipbenchError(f"{where}: {cell!r} is no number, [number, spread], null or {LOST}")
    digits = getattr(pair[0], "digits", 0) + (2 if percent else 0)
    value, spread = (
        *(round(float(number) * 0.01, digits) if percent else float(number) for number in pair),
        None,
    )[:2]
    return {"value": value, "digits": digits, "spread": spread, "note": None}


def _complete(row: Row, document: Row, table: Row, where: str) -> None:
    """Adds the unit, the hardware and the printed names, which depend on the other keys."""
    for key in NAMED:
        if key in row:
            known = document["names"].get(key, {})
            if row[key] not in known:
                raise SkipbenchError(
                    f"{where}: {key} {row[key]!r} is not among names: {', '.join(map(str, known))}"
                )
            row[f"{key}_printed"] = known[row[key]]
    hardware = table.get("hardware", document["hardware"])
    row["hardware"] = (
        hardware.get(row.get("model"), hardware.get("default"))
        if isinstance(hardware, Mapping)
        else hardware
    )
    row["unit"] = UNITS[row["column"]]


def _attach(note: Any, rows: list[Row], where: str) -> None:
    checked = isinstance(note, Mapping) and "check" in note
    _demand(note, f"{where}, notes", _NOTE, optional=set() if checked else _NOTE - {"text"})
    if "where" not in note:
        return
    wanted = {**note["where"], **({"column": note["column"]} if "column" in note else {})}
    found = [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
    if not found or (checked and len(found) != 1):
        raise SkipbenchError(
            f"{where}: a note names {wanted}, which is {len(found)} cells; wanted one that is there"
        )
    for row in found:
        row["note"] = "; ".join(filter(None, (row["note"], note["text"])))


def _demand(found: Any, where: str, known: set[str], optional: set[str]) -> None:
    """`found` is a mapping with all of `known` but perhaps `optional`, and with nothing else."""
    keys = set(found) if isinstance(found, Mapping) else set()
    missing, unknown = sorted(known - optional - keys), sorted(map(str, keys - known))
    if missing or unknown or not isinstance(found, Mapping):
        raise SkipbenchError(
            f"{where}: missing {', '.join(missing) or 'nothing'}, unknown "
            f"{', '.join(unknown) or 'nothing'}; wanted {', '.join(sorted(known - optional))}, and "
            f"perhaps {', '.join(sorted(known & optional))}"
        )
