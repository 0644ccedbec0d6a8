"""The sample of a dataset that a paper ran, and the examples (shots) shown before each prompt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar, get_origin, get_type_hints

import msgspec

from skipbench.config.dataset import HubDataset
from skipbench.data.rows import Example, read_file
from skipbench.data.source import fetch, from_hub
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import hashed

_ADVICE = (
    "Fetch it where there is a network with `python -m skipbench data {name}`, which fills the "
    "cache that later runs use, or give a local file with the columns {columns}: dataset.path=FILE"
)
F = TypeVar("F", bound=msgspec.Struct)


@dataclass(frozen=True)
class Drawn(Generic[F]):
    """A row of a sample."""

    name: str  # of the dataset
    index: int  # place in the dataset, from 0
    fields: F
    source: str  # hash of the fields and of the shots

    def row(
        self,
        prompt: str,
        reference: Mapping[str, object] | None = None,
        groups: dict[str, str] | None = None,
    ) -> Example:
        name = f"{self.name}-{self.index}"
        return Example(name, prompt, dict(reference or {}), groups or {}, source=self.source)

    def refused(self, reason: str) -> SkipbenchError:
        return SkipbenchError(f"{self.name} row {self.index}: {reason}")


class Where(HubDataset, frozen=True):
    """The keys of a file of `conf/dataset`: the rows of a dataset, and how a sample is drawn."""

    def draw(
        self, kind: type[F], may_be_empty: Sequence[str] = (), whole: bool = False
    ) -> tuple[list[Drawn[F]], list[F]]:
        """Draws the sample, or with `whole` all rows, and its shots; a smaller `size` is a prefix
        of a larger one. `kind` has the fields of a row, some of which `may_be_empty`. Raises
        SkipbenchError for too few rows, or rows that cannot be read.

        With `shuffle` rows are taken in the order of `datasets.Dataset.shuffle(seed)`, which is
        NumPy's PCG64 permutation, so that a complete local file gives the sample that the hub
        gives. Shots are drawn in the same way from `shots_split` or `shots_path`; a local file
        alone gives its first rows as shots. Rows that serve as shots are left out of the sample.
        """
        size, shots, path = self.size, self.shots, self.path
        kinds = {field: get_origin(hint) or hint for field, hint in get_type_hints(kind).items()}
        if unknown := kinds.keys() - self.columns:
            raise SkipbenchError(f"dataset.columns lacks {', '.join(sorted(unknown))}")
        columns = {self.columns[field]: of for field, of in kinds.items()}
        read = partial(self._read, columns, [self.columns[field] for field in may_be_empty])

        def fields_of(row: Mapping[str, Any]) -> F:
            try:  # local files are checked when they are read, of the hub's rows those drawn
                return msgspec.convert({field: row[self.columns[field]] for field in kinds}, kind)
            except msgspec.ValidationError as error:
                raise SkipbenchError(f"{self.name}: {error}; pin dataset.revision") from error

        rows = read(self.split, path)
        first = drawn = 0  # shots at the start of a local file, and at the start of the order
        examples: list[F] = []
        if shots and path is not None and self.shots_path is None:
            if len(rows) <= shots:
                given = f"{path} has {len(rows)} rows, and dataset.shots={shots}"
                raise SkipbenchError(f"{given}; give more rows, or dataset.shots_path=FILE")
            first, examples = shots, [fields_of(rows[i]) for i in range(shots)]
        elif shots:
            train = read(self.shots_split, self.shots_path)
            if len(train) < shots:
                raise SkipbenchError(f"dataset.shots={shots}, but there are only {len(train)} rows")
            examples = [fields_of(train[i]) for i in self._order(len(train))[:shots]]
            if path == self.shots_path and (path or self.split == self.shots_split):
                drawn = shots
        sample = []
        for place in self._order(len(rows) - first)[drawn:][: None if whole else size]:
            fields = fields_of(rows[first + place])
            source = hashed([msgspec.structs.asdict(part) for part in (fields, *examples)])
            sample.append(Drawn(self.name, first + place, fields, source))
        return sample, examples

    def _read(
        self, columns: Mapping[str, type], empty: Sequence[str], split: str, path: str | None
    ) -> Sequence[Mapping[str, Any]]:
        """The rows of a local file or of a split; `empty`: columns that may hold an empty text."""
        if path is not None:
            return read_file(Path(path), columns, empty)
        advice = _ADVICE.format(name=self.name, columns=", ".join(columns))
        if self.hub.startswith("https://"):
            return read_file(fetch(self.hub, self.revision, advice), columns, empty)
        return from_hub(self.hub, self.config, split, self.revision, list(columns), advice)

    def _order(self, count: int) -> list[int]:
        if not self.shuffle:
            return list(range(count))
        import numpy as np  # slow to import, and most commands do not need it

        return [int(i) for i in np.random.default_rng(self.seed).permutation(count)]
