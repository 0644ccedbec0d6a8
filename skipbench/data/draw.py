"""The sample of a dataset that a paper ran, and the examples (shots) shown before each of its
prompts.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from skipbench.data.source import read_rows
from skipbench.errors import SkipbenchError


class Where(TypedDict):
    """What every dataset of a paper is read and drawn by; the keys of its file in
    `conf/dataset`.
    """

    name: str
    hub: str
    config: str | None
    split: str
    revision: str
    columns: dict[str, str]
    path: str | None
    size: int | None
    seed: int
    shuffle: bool
    shots: int
    shots_split: str
    shots_path: str | None


@dataclass(frozen=True)
class Drawn:
    """A row of a sample: its place in the dataset from 0, its fields, and the hash of these and of
    the shots.
    """

    index: int
    fields: dict[str, Any]
    source: str


def draw(
    kinds: Mapping[str, type], where: Where, may_be_empty: Sequence[str] = ()
) -> tuple[list[Drawn], list[dict[str, Any]]]:
    """The sample, and its shots. A smaller `size` is a prefix of a larger one.

    With `shuffle` rows are taken in the order of `datasets.Dataset.shuffle(seed)`, which is NumPy's
    PCG64 permutation, so that a complete local file gives the sample that the hub gives. Shots are
    drawn alike from `shots_split` or `shots_path`; a local file alone gives its first rows as
    shots. Rows that serve as shots are left out of the sample.

    Args:
        kinds: type of each field; `where["columns"]` names the column that holds it.

    Raises:
        SkipbenchError: a size below 1, a negative number of shots, too few rows, or rows that
            cannot be read.
    """
    size, shots, path = where["size"], where["shots"], where["path"]
    if size is not None and size < 1:
        raise SkipbenchError(f"dataset.size={size} leaves no rows; give 1 or more, or null for all")
    if shots < 0:
        raise SkipbenchError(f"dataset.shots={shots}; give 0 or more")
    unknown = set(kinds) - set(where["columns"])
    if unknown:
        raise SkipbenchError(
            f"dataset.columns lacks {', '.join(sorted(unknown))}; give the name of that column"
        )
    rows = _read(kinds, where, where["split"], path, may_be_empty)
    # rows that serve as shots: at the start of a local file, and at the start of the order
    first = drawn = 0
    examples: list[dict[str, Any]] = []
    if shots and path is not None and where["shots_path"] is None:
        if len(rows) <= shots:
            raise SkipbenchError(
                f"{path} has {len(rows)} rows, and dataset.shots={shots} of them would be "
                "examples; give more rows, fewer shots, or the examples in a file of their own: "
                "dataset.shots_path=FILE"
            )
        first = shots
        examples = [_fields(rows[i], kinds, where) for i in range(shots)]
    elif shots:
        train = _read(kinds, where, where["shots_split"], where["shots_path"], may_be_empty)
        if len(train) < shots:
            raise SkipbenchError(
                f"dataset.shots={shots}, but there are only {len(train)} rows to draw them from"
            )
        examples = [_fields(train[i], kinds, where) for i in order(len(train), where)[:shots]]
        if path == where["shots_path"] and (path or where["split"] == where["shots_split"]):
            drawn = shots
    sample = []
    for place in order(len(rows) - first, where)[drawn:][:size]:
        fields = _fields(rows[first + place], kinds, where)
        sample.append(Drawn(first + place, fields, _digest([fields, *examples])))
    return sample, examples


def order(rows: int, where: Where) -> list[int]:
    """The places 0 .. rows - 1 as they are to be taken."""
    if not where["shuffle"]:
        return list(range(rows))
    import numpy as np  # most commands never come here, and it is slow to import

    return [int(i) for i in np.random.default_rng(where["seed"]).permutation(rows)]


def _read(
    kinds: Mapping[str, type],
    where: Where,
    split: str,
    path: str | None,
    may_be_empty: Sequence[str],
) -> Sequence[dict[str, Any]]:
    columns = {where["columns"][field]: kind for field, kind in kinds.items()}
    empty = [where["columns"][field] for field in may_be_empty]
    return read_rows(
        where["hub"], where["config"], split, where["revision"], path, columns, empty, where["name"]
    )


def _fields(row: dict[str, Any], kinds: Mapping[str, type], where: Where) -> dict[str, Any]:
    fields = {field: row[where["columns"][field]] for field in kinds}
    for field, kind in kinds.items():
        # A local file was checked as a whole when it was read; of the hub's rows only those drawn
        # are looked at.
        if not isinstance(fields[field], kind):
            column = where["columns"][field]
            raise SkipbenchError(
                f"{where['name']}: column {column!r} holds a {type(fields[field]).__name__}, but "
                f"must be a {kind.__name__}; the dataset has changed: pin dataset.revision"
            )
    return fields


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()
