"""`Row`, the form of every dataset's prompts, and the reading of local files."""

import itertools
import json
import random
import resource
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, AnyStr

from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import Provenance, hashed

_SUFFIXES = (".jsonl", ".parquet")
MOST_LINE = 16 << 20  # bytes of a row of text; a long book has some 4 MB
_BATCH_ROWS = 16  # of a parquet file in memory at once; a row may be a whole book
MOST_UNPACKED = 256 << 20
"""Bytes that a parquet file may take in memory; 8 times its size where that is more."""
_ROW_BYTES = 512  # at least, as a row of Python's objects
Reference = dict[str, object]  # the right answer, by the names that a scorer reads
_Row = dict[str, Any]
_Placed = Iterator[tuple[str, _Row]]  # rows, each with its place in a file


@dataclass(frozen=True)
class Row:
    """A prompt with its reference.

    Attributes:
        reference: the scorer compares the completion with it.
        groups: labels by which results are also reported.
        after: id of an earlier row of the same conversation: its prompt and the answer precede this
            prompt.
        messages: role and content of a whole conversation, for a chat template; `prompt` is then
            its plain text.
        question: id that the turns of a conversation share, and the samples of one task; empty for
            its own.
        source: SHA-256 (hex) of the dataset rows that it was made from; empty for generated rows.
    """

    id: str
    prompt: str
    reference: Reference = field(default_factory=dict)
    groups: dict[str, str] = field(default_factory=dict)
    after: str | None = None
    messages: tuple[dict[str, str], ...] = ()
    source: str = ""
    question: str = ""


def read_file(
    path: Path, columns: Mapping[str, type], may_be_empty: Sequence[str] = ()
) -> list[_Row]:
    """The columns of a .jsonl or .parquet file, each with its type, in file order; those in
    `may_be_empty` may hold an empty text or list. Raises SkipbenchError for no such file, a
    directory, another suffix, no rows, a row that cannot be read, or a value that is missing, null,
    empty or of another type.
    """
    if rows := [row for _, row in placed_rows(path, columns, may_be_empty)]:
        return rows
    raise SkipbenchError(f"{path} has no rows; give a file with the columns {', '.join(columns)}")


def placed_rows(
    path: Path, columns: Mapping[str, type], may_be_empty: Sequence[str] = (), either: bool = False
) -> _Placed:
    """The rows that `read_file` gives, with their places in the file.

    Args:
        either: read of a row the first of the columns that it has; a .txt is for the caller.
    """
    ends = " or ".join((*_SUFFIXES, ".txt") if either else _SUFFIXES)
    if path.is_dir():
        raise SkipbenchError(f"{path} is a directory; name one file in it that ends in {ends}")
    if not path.is_file():
        raise SkipbenchError(f"{path} does not exist; give the path of a file that ends in {ends}")
    if path.suffix not in _SUFFIXES:
        raise SkipbenchError(f"{path} has the suffix {path.suffix!r}; files may be {ends}")
    needed = 1 if either else len(columns)
    for place, row in _jsonl(path) if path.suffix == ".jsonl" else _parquet(path, columns, needed):
        first = next((c for c in columns if row.get(c) is not None), None)
        if either and first is None:
            raise SkipbenchError(
                f"{place} has none of {', '.join(columns)}; its columns are {_listed(row)}"
            )
        wanted = {first: columns[first]} if either and first else columns
        yield place, _checked(row, wanted, place, may_be_empty)


def numbered_lines(path: Path, file: IO[AnyStr]) -> Iterator[tuple[int, AnyStr]]:
    """The lines of a file. Raises SkipbenchError for one longer than `MOST_LINE`, whose tokens
    would take all memory.
    """
    for number in itertools.count(1):
        if len(line := file.readline(MOST_LINE + 1)) > MOST_LINE:
            raise SkipbenchError(
                f"{path} line {number} is longer than {MOST_LINE} bytes; cut it into prompts"
            )
        if not line:
            return
        yield number, line


def _jsonl(path: Path) -> _Placed:
    blank = 0
    with path.open("rb") as file:
        for number, line in numbered_lines(path, file):
            place = f"{path} line {number}"
            if not line.strip():
                blank = blank or number
                continue
            if blank:
                raise SkipbenchError(
                    f"{path} line {blank} is blank, but rows follow it; remove the blank line"
                )
            try:
                row = json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8"))
            except UnicodeDecodeError as error:
                raise SkipbenchError(
                    f"{place} is not UTF-8 (byte {error.start}: {error.reason}); convert it"
                ) from error
            # ValueError: bad JSON, and also an integer of too many digits
            except (ValueError, RecursionError) as error:
                raise SkipbenchError(
                    f"{place} is not JSON ({error}); each line must be one JSON object"
                ) from error
            if not isinstance(row, dict):
                raise SkipbenchError(
                    f"{place} holds a JSON {type(row).__name__}; each line must be one JSON object"
                )
            yield place, row


def _parquet(path: Path, wanted: Mapping[str, type], needed: int) -> _Placed:
    """Rows with those of the wanted columns that the file has: `needed` of them or more."""
    import pyarrow as pa  # slow to import, and not needed for .jsonl
    import pyarrow.parquet as pq

    most = max(MOST_UNPACKED, 8 * path.stat().st_size)
    try:
        with pq.ParquetFile(path, buffer_size=1 << 16, pre_buffer=False) as file:
            names = file.schema_arrow.names
            there = [column for column in wanted if column in names]
            if len(there) < needed:
                lacking = [column for column in wanted if column not in there]
                raise SkipbenchError(_lacks(str(path), lacking[0], names))
            places, ceiling = itertools.count(1), _data_bytes() + most
            if file.metadata.num_rows * _ROW_BYTES > most:
                raise MemoryError
            batches = file.iter_batches(_BATCH_ROWS, columns=there, use_threads=False)
            while True:
                with _data_limit(ceiling):  # a few bytes may unpack to any size
                    if (batch := next(batches, None)) is None:
                        return
                    rows = batch.to_pylist()
                yield from ((f"{path} row {next(places)}", row) for row in rows)
    except MemoryError as error:  # one of Arrow's exceptions, too
        raise SkipbenchError(
            f"{path} takes more than {most >> 20} MiB of memory to read; write it as .jsonl"
        ) from error
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise SkipbenchError(
            f"{path} cannot be read as parquet ({error}); fetch or write it again"
        ) from error


def _data_bytes() -> int:
    """Bytes of this process that count for `RLIMIT_DATA`, which Linux alone enforces."""
    statm = Path("/proc/self/statm")
    pages = int(statm.read_text().split()[5]) if statm.exists() else 0
    return pages * resource.getpagesize()


@contextmanager
def _data_limit(most_bytes: int) -> Iterator[None]:
    """Within it, what would make the process larger than this raises MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in before if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most_bytes, *limits]), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def _listed(columns: Iterable[str]) -> str:
    return ", ".join(map(repr, columns)) or "none"


def _lacks(place: str, column: str, columns: Iterable[str]) -> str:
    return f"{place} lacks the column {column!r}; its columns are {_listed(columns)}"


def _checked(
    row: _Row, wanted: Mapping[str, type], place: str, may_be_empty: Sequence[str]
) -> _Row:
    for column, kind in wanted.items():
        if column not in row:
            raise SkipbenchError(_lacks(place, column, row))
        value = row[column]
        empty = value in ([], {}) or (isinstance(value, str) and not value.strip())
        if value is None:
            wrong = "null"
        elif type(value) is not kind:  # not isinstance: JSON's true would pass for the integer 1
            wrong = f"of type {type(value).__name__}"
        elif empty and column not in may_be_empty:
            wrong = "empty"
        else:
            continue
        raise SkipbenchError(
            f"{place}: column {column!r} is {wrong}, but must be a {kind.__name__} with content; "
            f"correct or remove the row (its columns are {_listed(row)})"
        )
    return {column: row[column] for column in wanted}


def prompts_hash(rows: Sequence[Row]) -> str:
    """SHA-256 (hex) of the ids and prompts in their order: equal for the same input."""
    return hashed([[row.id, row.prompt] for row in rows])


def rows_hash(rows: Sequence[Row]) -> str:
    """SHA-256 (hex) of the data that the rows were made from, whatever the prompts' wording."""
    return hashed([[row.id, row.source or [row.prompt, row.reference], row.after] for row in rows])


def other_rows(origin: Provenance, rows: Sequence[Row]) -> bool:
    """True if a run, by its provenance, was made with other rows, or prompts of another wording."""
    now = {"rows_sha256": rows_hash(rows), "prompts_sha256": prompts_hash(rows)}
    return any(getattr(origin, name) not in (None, digest) for name, digest in now.items())


def check_size(size: int | None) -> None:
    """Raises SkipbenchError for a size below 1; None takes all rows."""
    if size is not None and size < 1:
        raise SkipbenchError(f"dataset.size={size} leaves no rows; give 1 or more, or null for all")


def sample_rows(rows: Sequence[Row], limit: int | None, seed: int, shuffle: bool) -> list[Row]:
    """At most `limit` rows (None: all), drawn with `seed` if `shuffle`; a smaller limit is a prefix
    of a larger one. Raises SkipbenchError for a limit below 1.
    """
    check_size(limit)
    chosen = list(rows)
    if shuffle:
        random.Random(seed).shuffle(chosen)
    return chosen[:limit]
