"""`DatasetConfig`: a dataset, its prompt form and its scorer, and the rows that it gives."""

from collections.abc import Mapping
from typing import Any

import msgspec

from skipbench.config.build import instantiate
from skipbench.config.configurable import typed

FORM = ("max_new_tokens", "truncate", "keep", "reserve", "context", "chat", "thinking")
"""Keys of a dataset that decide how a row becomes token ids."""


class DatasetConfig(msgspec.Struct, frozen=True):
    """A dataset, its prompt form and its scorer: all keys in `node`, typed those used here."""

    node: Mapping[str, Any]
    name: str = ""
    scorer: str = "none"
    max_new_tokens: int = 0
    context: int | None = None
    revision: str | None = None
    size: int | None = None
    path: str | None = None
    split: str = ""
    shots_path: str | None = None
    shots_split: str | None = None
    parts: dict[str, dict[str, object]] = {}
    run_limit: int | None = None
    seed: int = 0
    samples_per_task: int | None = None

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "DatasetConfig":
        """Raises SkipbenchError for a value of another type."""
        return typed({**node, "node": node}, cls, "dataset")

    def but(self, **changes: object) -> "DatasetConfig":
        """The dataset with other values of these keys."""
        return DatasetConfig.of({**self.node, **changes})

    @property
    def tasks(self) -> dict[str, "DatasetConfig"]:
        """The datasets of a stream, by name."""
        return {task: DatasetConfig.of(part) for task, part in self.parts.items()}

    @property
    def encoding(self) -> Mapping[str, Any]:
        """Keyword arguments of `encode`: length, truncation and chat form."""
        return {key: self.node[key] for key in FORM}

    def rows(self, limit: int | None, seed_offset: int = 0) -> list[Any]:
        """The rows: all of them, or the first `limit`. Raises SkipbenchError if unreadable.

        Args:
            limit: in the units of `size`: instances, conversations, or instances of each task.
            seed_offset: added to the seed, for rows that are not those of a run.
        """
        arguments = self._arguments(seed_offset)
        if limit is not None and "size" in arguments:
            arguments |= {"size": limit if self.size is None else min(limit, self.size)}
        # Rows that Hydra passes on would come out as configurations.
        tasks = {task: instantiate(of._arguments(seed_offset)) for task, of in self.tasks.items()}
        make = instantiate(arguments, _partial_=True)
        rows: list[Any] = make(parts=tasks) if tasks else make()
        return rows

    def _arguments(self, seed_offset: int) -> dict[str, object]:
        """Arguments of the dataset's function but `parts`; `name` only for rows of the hub."""
        left_out = {*FORM, "scorer", "variants", "run_limit", "parts"}
        left_out |= set() if "hub" in self.node else {"name"}
        left_out |= {"seed"} if self.parts else set()  # a stream draws nothing itself
        # in the order of the file the rows would be those of the run
        drawn = {"seed": self.seed + seed_offset} | ({"shuffle": True} if seed_offset else {})
        return {k: drawn.get(k, v) for k, v in self.node.items() if k not in left_out}

    def for_search(self, limit: int | None) -> "DatasetConfig":
        """The dataset of a search for a skip set of a run with this `limit`: the training split, of
        shots as well; without one, the dataset with `run_limit`, the rows to avoid.
        """
        if self.parts:
            size = self.size if limit is None else min(limit, self.size or 0)
            return self.but(parts={t: of.for_search(size).node for t, of in self.tasks.items()})
        if self.shots_split is not None:
            path, split = self.shots_path, self.shots_split
            if path != self.path if path else not self.path and split != self.split:
                return self.but(path=path, split=split)
        once = {} if self.samples_per_task is None else {"samples_per_task": 1}
        return self.but(**once, run_limit=limit)

    @property
    def run_limit_matters(self) -> bool:
        """True if the rows of a search depend on those of the run: there is no training split."""
        return "run_limit" in self.for_search(None).node

    def search_rows(self, count: int) -> tuple[list[Any], int]:
        """The prompts of a search on what `for_search` returned, and how many the run decodes too.

        Raises SkipbenchError for a dataset that cannot be read.
        """
        if self.parts:
            parts = [task.search_rows(count) for task in self.tasks.values()]
            return [row for rows, _ in parts for row in rows], sum(shared for _, shared in parts)
        if "run_limit" not in self.node:
            return self.rows(count, seed_offset=1000), 0
        of_run = {row.prompt for row in self.rows(self.run_limit)}
        # mini datasets generate their rows: no more than needed, all only if prompts come twice
        for size in (count + len(of_run), None):
            rows = [row for row in self.rows(size, seed_offset=1000) if row.after is None]
            # stable: rows of the run come last
            rows = sorted(rows, key=lambda row: row.prompt in of_run)[:count]
            if not (shared := sum(row.prompt in of_run for row in rows)):
                break
        return rows, shared
