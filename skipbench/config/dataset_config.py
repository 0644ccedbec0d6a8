"""`DatasetConfig`: a dataset, its prompt form and its scorer, and the rows that it gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from skipbench.config.build import instantiate

FORM = ("max_new_tokens", "truncate", "keep", "reserve", "context", "chat", "thinking")
"""Keys of a dataset that decide how a row becomes token ids."""


@dataclass(frozen=True)
class DatasetConfig:
    """A dataset, its prompt form and its scorer."""

    node: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.node["name"])

    @property
    def scorer(self) -> str:
        return str(self.node["scorer"])

    @property
    def max_new_tokens(self) -> int:
        return int(self.node["max_new_tokens"])

    @property
    def context(self) -> int | None:
        return self.node.get("context")

    @property
    def revision(self) -> str | None:
        return self.node.get("revision")

    @property
    def encoding(self) -> dict[str, Any]:
        """Keyword arguments of `encode`: length, truncation and chat form."""
        return {key: self.node[key] for key in FORM}

    def with_max_new_tokens(self, count: int) -> "DatasetConfig":
        return DatasetConfig({**self.node, "max_new_tokens": count})

    def rows(self, limit: int | None, seed_offset: int = 0) -> list[Any]:
        """The rows: all of them, or the first `limit`. Raises SkipbenchError if unreadable.

        Args:
            limit: in the units of `size`: instances, conversations, or instances of each task.
            seed_offset: added to the seed, for rows that are not those of a run.
        """
        arguments = _row_arguments(self.node, seed_offset)
        if limit is not None and "size" in arguments:
            size = arguments["size"]
            arguments["size"] = limit if size is None else min(limit, size)
        # Rows that Hydra passes on would come out as configurations.
        parts = {task: instantiate(part) for task, part in arguments.pop("parts", {}).items()}
        rows: list[Any] = instantiate(arguments, _partial_=True)(
            **({"parts": parts} if parts else {})
        )
        return rows

    def for_search(self, limit: int | None) -> "DatasetConfig":
        """The dataset of a search for a skip set of a run with this `limit`: the training split, of
        shots as well; without one, the dataset with `run_limit`, the rows to avoid.
        """
        return DatasetConfig(_for_search(self.node, limit))

    @property
    def run_limit_matters(self) -> bool:
        """True if the rows of a search depend on those of the run: there is no training split."""
        return "run_limit" in self.for_search(None).node

    def search_rows(self, count: int) -> tuple[list[Any], int]:
        """The prompts of a search on what `for_search` returned, and how many the run decodes too.

        Raises SkipbenchError for a dataset that cannot be read.
        """
        if "parts" in self.node:
            parts = [DatasetConfig(part).search_rows(count) for part in self.node["parts"].values()]
            return [row for rows, _ in parts for row in rows], sum(shared for _, shared in parts)
        if "run_limit" not in self.node:
            return self.rows(count, seed_offset=1000), 0
        of_run = {row.prompt for row in self.rows(self.node["run_limit"])}
        # mini datasets generate their rows: no more than needed, all only if prompts come twice
        for size in (count + len(of_run), None):
            rows = [row for row in self.rows(size, seed_offset=1000) if row.after is None]
            # stable: rows of the run come last
            rows = sorted(rows, key=lambda row: row.prompt in of_run)[:count]
            if not (shared := sum(row.prompt in of_run for row in rows)):
                break
        return rows, shared


def _for_search(node: Mapping[str, Any], limit: int | None) -> dict[str, Any]:
    if "parts" in node:
        size = node["size"] if limit is None else min(limit, node["size"])
        parts = {task: _for_search(part, size) for task, part in node["parts"].items()}
        return {**node, "parts": parts}
    if "shots_split" in node:
        path, split = node["shots_path"], node["shots_split"]
        if path != node["path"] if path else not node["path"] and split != node["split"]:
            return {**node, "path": path, "split": split}
    once = {"samples_per_task": 1} if "samples_per_task" in node else {}
    return {**node, **once, "run_limit": limit}


def _row_arguments(node: Mapping[str, Any], seed_offset: int) -> dict[str, Any]:
    """Arguments of the dataset's function; `name` only for rows of the hub."""
    left_out = {*FORM, "scorer", "variants", "run_limit"} | (set() if "hub" in node else {"name"})
    arguments = {k: v for k, v in node.items() if k not in left_out}
    if parts := arguments.get("parts"):  # a stream draws nothing itself
        del arguments["seed"]
        arguments["parts"] = {
            task: _row_arguments(part, seed_offset) for task, part in parts.items()
        }
    else:
        arguments["seed"] += seed_offset
    if seed_offset and "shuffle" in arguments:
        arguments["shuffle"] = True  # in the order of the file the rows would be those of the run
    return arguments
