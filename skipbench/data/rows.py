"""`Row`, the one form in which a dataset reaches the benchmark, and the reading of local files into
it.
"""

import hashlib
import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skipbench.errors import SkipbenchError

_SUFFIXES = (".jsonl", ".parquet")


@dataclass(frozen=True)
class Row:
    """A prompt, what its scorer compares the completion with, and the groups whose results are
    reported apart.
    """

    id: str
    prompt: str
    reference: dict[str, Any]
    groups: dict[str, str]
    after: str | None = None
    """Id of an earlier row whose conversation this one goes on with: its prompt and the answer come
    before this prompt.
    """
    messages: tuple[dict[str, str], ...] = ()
    """Role and content of a whole conversation, for a chat template; `prompt` is then its plain
    text.
    """
    source: str = ""
    """SHA-256 (hex) of the dataset rows that it was made from, where they are someone else's."""


def read_file(
    path: Path, columns: Sequence[str] | Mapping[str, type], may_be_empty: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The named columns of a .jsonl or .parquet file, in file order.

    A sequence of names wants text everywhere; a mapping gives each column its type (`{"turns":
    list, "answer": int}`). Columns in `may_be_empty` may hold an empty text or list.

    Raises:
        SkipbenchError: no such file, a directory, another suffix, no rows, a row that cannot be
            read, or a value that is missing, null, empty or of another type.
    """
    path = Path(path)
    wanted = columns if isinstance(columns, Mapping) else dict.fromkeys(columns, str)
    _check_file(path, _SUFFIXES)
    source = _jsonl(path) if path.suffix == ".jsonl" else _parquet(path, wanted)
    rows = [_checked(found, wanted, place, may_be_empty) for place, found in source]
    if not rows:
        raise SkipbenchError(
            f"{path} has no rows; give a file with the columns {', '.join(wanted)}"
        )
    return rows


def _check_file(path: Path, suffixes: Sequence[str]) -> None:
    """Raises SkipbenchError unless the path is that of a file with one of the suffixes."""
    ends = " or ".join(suffixes)
    if path.is_dir():
        raise SkipbenchError(f"{path} is a directory; name one file in it that ends in {ends}")
    if not path.is_file():
        raise SkipbenchError(f"{path} does not exist; give the path of a file that ends in {ends}")
    if path.suffix not in suffixes:
        raise SkipbenchError(f"{path} has the suffix {path.suffix!r}; files may be {ends}")


def read_either(
    path: Path, columns: Mapping[str, type], other: str = ""
) -> list[tuple[str, dict[str, Any]]]:
    """Rows of a .jsonl or .parquet file that have one of several columns, with their place in it.

    Args:
        columns: type of each column; of a row the first one that it has is read.
        other: a suffix that the caller reads itself, for messages.

    Raises:
        SkipbenchError: as `read_file`, or a row with none of the columns.
    """
    _check_file(path, (*_SUFFIXES, *filter(None, [other])))
    source = _jsonl(path) if path.suffix == ".jsonl" else _parquet(path, columns, any)
    rows = []
    for place, found in source:
        name = next((c for c in columns if found.get(c) is not None), None)
        if name is None:
            raise SkipbenchError(
                f"{place} has none of {', '.join(columns)}; its columns are "
                f"{', '.join(map(repr, found)) or 'none'}"
            )
        rows.append((place, _checked(found, {name: columns[name]}, place, ())))
    return rows


def _jsonl(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    blank = 0
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                blank = blank or number
                continue
            if blank:
                raise SkipbenchError(
                    f"{path} line {blank} is blank, but rows follow it; remove the blank line"
                )
            yield f"{path} line {number}", _json_object(line, f"{path} line {number}")


def _json_object(line: bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(line.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise SkipbenchError(
            f"{place} is not UTF-8 (byte {error.start}: {error.reason}); convert it"
        ) from error
    # ValueError: bad JSON, and also an integer of too many digits
    except (ValueError, RecursionError) as error:
        raise SkipbenchError(
            f"{place} is not JSON ({error}); each line must be one JSON object"
        ) from error
    if not isinstance(found, dict):
        raise SkipbenchError(
            f"{place} holds a JSON {type(found).__name__}; each line must be one JSON object"
        )
    return found


def _parquet(
    path: Path,
    wanted: Mapping[str, type],
    needed: Callable[[Iterable[bool]], bool] = all,
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Rows with the columns that are there, of which `needed` says whether they are enough."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError as error:
        raise SkipbenchError(
            f"{path} needs pyarrow to be read; install pyarrow, or save the file as .jsonl"
        ) from error
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            there = [column for column in wanted if column in names]
            if not needed(column in names for column in wanted):
                lacking = next(column for column in wanted if column not in names)
                raise SkipbenchError(_lacks(str(path), lacking, names))
            number = 0
            for batch in file.iter_batches(columns=there):
                for found in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", found
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SkipbenchError(
            f"{path} cannot be read as parquet ({error}); fetch or write it again"
        ) from error


def _lacks(place: str, column: str, found: Sequence[str]) -> str:
    return (
        f"{place} lacks the column {column!r}; its columns are "
        f"{', '.join(map(repr, found)) or 'none'}"
    )


def _checked(
    found: dict[str, Any], wanted: Mapping[str, type], place: str, may_be_empty: Sequence[str]
) -> dict[str, Any]:
    for column, kind in wanted.items():
        if column not in found:
            raise SkipbenchError(_lacks(place, column, list(found)))
        value = found[column]
        # Not isinstance: JSON's true would pass for the integer 1.
        if type(value) is not kind:
            wrong = "null" if value is None else f"of type {type(value).__name__}"
        elif column not in may_be_empty and (
            value in ([], {}) or (isinstance(value, str) and not value.strip())
        ):
            wrong = "empty"
        else:
            continue
        raise SkipbenchError(
            f"{place}: column {column!r} is {wrong}, but must be a {kind.__name__} with content; "
            f"correct or remove the row (its columns are {', '.join(map(repr, found))})"
        )
    return {column: found[column] for column in wanted}


def prompts_hash(rows: Sequence[Row]) -> str:
    """SHA-256 (hex) of the ids and prompts in their order: two runs with one hash saw the same
    input.
    """
    return hashlib.sha256(json.dumps([[row.id, row.prompt] for row in rows]).encode()).hexdigest()


def rows_hash(rows: Sequence[Row]) -> str:
    """SHA-256 (hex) of what the rows were made from, whatever the wording of the prompts."""
    made_from = [[row.id, row.source or [row.prompt, row.reference], row.after] for row in rows]
    return hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()


def sample_rows(rows: Sequence[Row], limit: int | None, seed: int, shuffle: bool) -> list[Row]:
    """At most `limit` rows (None: all), drawn with `seed` if `shuffle`; a smaller limit is a prefix
    of a larger one.

    Raises:
        SkipbenchError: `limit` is below 1.
    """
    if limit is not None and limit < 1:
        raise SkipbenchError(
            f"{limit=} leaves no rows; give a limit of 1 or more, or none at all for every row"
        )
    chosen = list(rows)
    if shuffle:
        random.Random(seed).shuffle(chosen)
    return chosen[:limit]
