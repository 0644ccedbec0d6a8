"""`Example`, the form of every dataset's prompts, and the reading of local files."""

import codecs
import functools
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

import msgspec

from skipbench.console import say
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import Provenance, hashed

Reference = dict[str, object]  # the right answer, by the names that a scorer reads
NOT_EMPTY = msgspec.Meta(min_length=1)
T = TypeVar("T")
LINES = (".jsonl", ".ndjson")
LOADERS = {".json": "json", ".gz": "json", ".csv": "csv", ".tsv": "csv", ".arrow": "arrow"}
"""Loaders of the library `datasets`, by suffix."""


@dataclass(frozen=True)
class Example:
    """A prompt with its reference."""

    id: str
    prompt: str
    reference: Reference = field(default_factory=dict)  # what the completion is compared with
    groups: dict[str, str] = field(default_factory=dict)  # labels by which results are reported
    after: str | None = None  # id of the turn before: its prompt and the answer precede this prompt
    messages: tuple[dict[str, Any], ...] = ()  # of a chat, for a template; `prompt` is its text
    template: dict[str, Any] = field(default_factory=dict)  # and what else that is given: `tools`
    source: str = ""  # SHA-256 (hex) of the dataset rows that it was made from; generated: empty
    question: str = ""  # id that turns of a conversation, or samples of a task, share; own: empty


def read_file(
    path: Path, columns: Mapping[str, type], may_be_empty: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The columns of a .jsonl or .parquet file, each with its type, in file order; those in
    `may_be_empty` may hold an empty text or list. Raises SkipbenchError for a file without rows,
    and as `placed_rows`.
    """
    kinds = {
        column: of if of is int or column in may_be_empty else Annotated[of, NOT_EMPTY]
        for column, of in columns.items()
    }
    wanted = ", ".join(f"{column} ({of.__name__})" for column, of in columns.items())
    found = placed_rows(path, TypedDict("Columns", kinds), wanted)  # type: ignore[operator]  # known now
    if rows := [row for _, row in found]:
        return rows
    raise SkipbenchError(f"{path} has no rows; wanted {wanted}")


def placed_rows(path: Path, kind: type[T], wanted: str) -> Iterator[tuple[str, T]]:
    """The rows of a .jsonl or .parquet file with their places in it, without empty lines: `kind` is
    a struct or a TypedDict whose fields are the columns to read, and `wanted` the same in words.
    Raises SkipbenchError where the file cannot be read, or a row has other values. Says so where it
    is a part of several.
    """
    suffix = path.suffix.lower()
    if not path.is_file() or suffix not in (*LINES, ".parquet"):
        raise SkipbenchError(
            f"{path} {_unfit(path)}; give a file that ends in .jsonl or .parquet, for "
            "dataset=prompts in .txt, too"
        )
    _tell_part(path)
    rows = _jsonl(path) if suffix in LINES else _parquet(path, [*get_type_hints(kind)])
    for place, row in rows:
        try:
            yield place, msgspec.convert(row, kind)
        except msgspec.ValidationError as error:
            raise SkipbenchError(
                f"{place}: {error}; wanted {wanted}, not empty; its columns are {', '.join(row)}"
            ) from error


def _unfit(path: Path) -> str:
    """Why a path is no file of rows, and what makes one of it."""
    made = ".to_parquet('FILE.parquet') of the library datasets writes it as one"
    if any((path / name).exists() for name in ("dataset_info.json", "dataset_dict.json")):
        return f"is a folder of save_to_disk: load_from_disk('{path}'){made}, of one split"
    if loader := LOADERS.get(path.suffix.lower()) if path.is_file() else None:
        return f"is no file of rows: load_dataset('{loader}', data_files='{path}')['train']{made}"
    kind = "is a folder" if path.is_dir() else "is no file of rows"
    return kind if path.exists() else "does not exist"


@functools.cache
def _tell_part(path: Path) -> None:
    part = re.search(r"(\d+)-of-0*(\d+)\.\w+$", path.name)
    if part and int(part[2]) > 1:
        say(f"{path} is one of {part[2]} parts of a dataset; rows of the others are left out")


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        lines = path.read_bytes().removeprefix(codecs.BOM_UTF8).split(b"\n")
    except OSError as error:
        raise SkipbenchError(f"{path} cannot be read: {error.strerror}") from error
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield f"{path} line {number}", msgspec.json.decode(line, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise SkipbenchError(
                    f"{path} line {number}: {error}; wanted one JSON object in UTF-8"
                ) from error


def _parquet(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    import pyarrow as pa  # slow to import, and not needed for .jsonl
    import pyarrow.parquet as pq

    try:
        names = pq.read_schema(path).names
        there = [column for column in columns if column in names]
        rows = pq.read_table(path, columns=there).to_pylist()
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SkipbenchError(f"{path} cannot be read as parquet: {error}") from error
    if not there:
        known = f"its columns are {', '.join(names)}"
        raise SkipbenchError(f"{path} has none of the columns {', '.join(columns)}; {known}")
    yield from ((f"{path} row {number}", row) for number, row in enumerate(rows, 1))


def prompts_hash(rows: Sequence[Example]) -> str:
    """SHA-256 (hex) of the ids and prompts in their order: equal for the same input."""
    return hashed([[row.id, row.prompt] for row in rows])


def rows_hash(rows: Sequence[Example]) -> str:
    """SHA-256 (hex) of the data that the rows were made from, whatever the prompts' wording."""
    return hashed([[row.id, row.source or [row.prompt, row.reference], row.after] for row in rows])


def other_rows(origin: Provenance, rows: Sequence[Example]) -> bool:
    """True if a run, by its provenance, was made with other rows, or prompts of another wording, as
    far as these go.
    """
    if (count := origin.prompts) is None or len(rows) < count:
        return False
    now = {"rows_sha256": rows_hash(rows[:count]), "prompts_sha256": prompts_hash(rows[:count])}
    return any(getattr(origin, name) not in (None, digest) for name, digest in now.items())


def sample_rows(
    rows: Sequence[Example], limit: int | None, seed: int, shuffle: bool
) -> list[Example]:
    """At most `limit` rows (None: all), drawn with `seed` if `shuffle`; a smaller limit is a prefix
    of a larger one.
    """
    chosen = list(rows)
    if shuffle:
        random.Random(seed).shuffle(chosen)
    return chosen[:limit]
