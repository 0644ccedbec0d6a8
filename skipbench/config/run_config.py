"""`RunConfig`: the settings of one cell, typed and frozen. Nothing else leaves this room."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self

import msgspec
from msgspec import Meta

from skipbench.config.build import instantiate
from skipbench.config.configurable import Positive, in_words, kinds_of, typed
from skipbench.config.hardware import Local, Slurm
from skipbench.config.model import Model, PlantedModel
from skipbench.config.schemas import Decoding, Engine, Profile, Search
from skipbench.errors import SkipbenchError

OF_ROW = ("model", "dataset", "decoding", "engine", "seed")
"""Keys on which turns depend, beside the method: a row's record, whose hash is in its name."""
CHOOSE = ("wheel", "strict")
"""Keys of a model that only decide on others: on its path, and on `engine.strict`."""
FORM = ("max_new_tokens", "truncate", "keep", "reserve", "context", "chat", "thinking")
"""Keys of a dataset that decide how a row becomes token ids."""


class Node(msgspec.Struct, frozen=True):
    """Base of what a `_target_` makes: all its keys in `node`, and typed those used here."""

    node: Mapping[str, Any]
    """`_target_`, and the keyword arguments of what it names."""

    KEY: ClassVar[str]
    """What messages call it."""

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> Self:
        """Raises SkipbenchError for a value of another type."""
        return typed({**node, "node": node}, cls, cls.KEY)

    def but(self, **changes: object) -> Self:
        """With other values of these keys."""
        return self.of({**self.node, **changes})


class MethodConfig(Node, frozen=True):
    """A decoding method and its settings."""

    KEY = "method"
    target: str = msgspec.field(name="_target_", default="")
    """Dotted path of the class that makes the method."""
    name: str = ""
    skip: str | None = None
    """The skip set in text form, or `stored`; `None` for a method that takes none."""

    @property
    def draft_options(self) -> str:
        """What drafts use besides the skip set."""
        return str(self.node.get("precision", "full")).removeprefix("full")

    def factory(self) -> Callable[..., Any]:
        """The method without its model; stop rules are built, and their values checked, at once."""
        part: Callable[..., Any] = instantiate(self.node, _partial_=True)
        return part

    def make_stop(self) -> Any:
        """A stop rule in its first state. Raises SkipbenchError for a value out of bounds."""
        return instantiate(self.node["stop"])


class DatasetConfig(Node, frozen=True):
    """A dataset, its prompt form and its scorer."""

    KEY = "dataset"
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

    @property
    def tasks(self) -> dict[str, "DatasetConfig"]:
        """The datasets of a stream, by name."""
        return {task: DatasetConfig.of(part) for task, part in self.parts.items()}

    @property
    def may_change(self) -> bool:
        """True for rows of a local file, or made by a function outside of skipbench; those of the
        hub are pinned by their revision.
        """
        if self.path is not None:
            return Path(self.path).is_file()
        return not ("hub" in self.node or str(self.node["_target_"]).startswith("skipbench."))

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

    def order(self, limit: int | None) -> int | str | None:
        """What of `limit` the order of rows depends on: a stream takes so many of each task, and
        questions of a benchmark of chats come by turns of their groups, unless all are taken.
        """
        if self.parts:
            return limit
        whole = limit is None and self.size is None
        return "whole" if whole and str(self.node["_target_"]).endswith("_bench") else None

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


@dataclass(frozen=True)
class RunConfig:
    """One cell, model x method x dataset; `schemas.Config` documents the keys."""

    model: Model
    method: MethodConfig
    dataset: DatasetConfig
    decoding: Decoding
    engine: Engine
    search: Search
    profile: Profile
    seed: int
    limit: Annotated[Positive | None, Meta(title="1 or more, or null for all")]
    results: Path
    dry_run: bool
    fresh: bool = False
    teacher_forced: bool = False
    label: str | None = None
    hardware: Slurm | Local | None = None
    search_dataset: DatasetConfig | None = None
    """Of the prompts of the cell's own search, in an experiment; `None`: it has none."""

    @property
    def names(self) -> dict[str, str]:
        return {"model": self.model.name, "method": self.method.name, "dataset": self.dataset.name}

    def calibration_rows(self) -> list[Any]:
        """Rows, drawn with a seed of their own, by which a sparsified model is calibrated."""
        if self.model.sparsity == "none":
            return []
        return self.dataset.rows(self.model.calibration.rows, seed_offset=2000)

    def row_record(self) -> dict[str, object]:
        """The settings that all arms of a row share: not their number of prompts, of which smaller
        ones are the first of larger ones.
        """
        plain = self.to_dict() | {"model": self._model_record("settings", "gated")}
        more: dict[str, object] = {"teacher_forced": True} if self.teacher_forced else {}
        order = self.dataset.order(self.limit)
        more |= {"order": order} if order is not None else {}
        return {key: plain[key] for key in OF_ROW} | more

    def record(self) -> dict[str, object]:
        """The settings of a run: of its row, and its method."""
        return {**self.row_record(), "method": self.to_dict()["method"]}

    def search_record(self) -> dict[str, object]:
        """The settings that the trace of a search depends on; its drafts are chains."""
        plain = self.to_dict()
        options = {k: v for k, v in plain["search"].items() if k not in ("iterations", "on", "own")}
        parts = {key: plain[key] for key in ("method", "dataset", "engine")}
        if "tree" in plain["method"]:
            parts["method"] = {**plain["method"], "tree": []}
        return {"model": self._model_record(), **parts, "search": options}

    def _model_record(self, *left_out: str) -> Mapping[str, object]:
        """The model's settings, without those of pruning where none is done."""
        left_out += CHOOSE
        if self.model.sparsity == "none":
            left_out += ("sparsity", "calibration")
        return {k: v for k, v in self.to_dict()["model"].items() if k not in left_out}

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain JSON values; `RunConfig.from_dict` reads them."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=str)
        for key in ("method", "dataset", "search_dataset"):
            plain[key] = plain[key] and plain[key]["node"]
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "RunConfig":
        """Reads what `to_dict` made. Raises SkipbenchError for an unknown key or a wrong value."""
        kinds = kinds_of(cls)
        if unknown := sorted(set(plain) - set(kinds)):
            known = ", ".join(sorted(kinds))
            raise SkipbenchError(f"unknown key {unknown[0]!r}. Allowed here: {known}")
        model = PlantedModel if "redundant" in plain["model"] else Model
        place = Local if "workers" in (plain.get("hardware") or ()) else Slurm
        kinds = {**kinds, "model": model, "hardware": place}
        made: dict[str, Any] = {}
        for key, value in plain.items():
            if key == "method":
                made[key] = MethodConfig.of(value)
            elif key in ("dataset", "search_dataset"):
                made[key] = None if value is None else DatasetConfig.of(value)
            elif key != "hardware" or value is not None:
                made[key] = _typed(value, kinds[key], key)
        return cls(**made)


def _typed(value: Any, kind: Any, key: str) -> Any:
    """The setting `key` as its type. Raises SkipbenchError for a value out of its bounds."""
    try:
        return msgspec.convert(value, kind, dec_hook=lambda kind, value: kind(value))
    except msgspec.ValidationError as error:
        for name in re.findall(r"\.(\w+)", str(error).partition("`$")[2]):
            value, kind, key = value[name], kinds_of(kind)[name], f"{key}.{name}"
        raise SkipbenchError(f"{key}={value}; wanted {in_words(kind) or error}") from error
