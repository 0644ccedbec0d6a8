"""`RunConfig`: the settings of one cell, typed and frozen. Nothing else leaves this room."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from skipbench.config.build import instantiate
from skipbench.config.configurable import Positive, in_words, kinds_of, typed
from skipbench.config.dataset_config import DatasetConfig
from skipbench.config.hardware import Local, Slurm
from skipbench.config.model import Model, PlantedModel
from skipbench.config.schemas import Decoding, Engine, Profile, Search
from skipbench.config.signature import FIRST, MOVED, with_targets
from skipbench.errors import SkipbenchError

IN_RECORD = ("model", "method", "dataset", "decoding", "engine", "seed", "limit")
"""Keys on which samples depend: they are a run's record, and their hash its name."""
CHOOSE = ("source", "wheel", "strict")
"""Keys of a model that only decide on others: on its path, and on `engine.strict`."""
UNTIL_CI = "a share of the speedup above 0 and below 1, such as 0.02, or null"


class MethodConfig(msgspec.Struct, frozen=True):
    """A decoding method and its settings: all keys in `node`, typed those used here."""

    node: Mapping[str, Any]
    """`_target_`, as records name it, and the keyword arguments of what it names."""
    recorded_target: str = msgspec.field(name="_target_", default="")
    name: str = ""
    skip: str | None = None
    """The skip set in text form, or `stored`; `None` for a method that takes none."""
    seed: int | None = None

    @classmethod
    def of(cls, node: Mapping[str, Any]) -> "MethodConfig":
        """Raises SkipbenchError for a value of another type."""
        return typed({**node, "node": node}, cls, "method")

    @property
    def target(self) -> str:
        """Dotted path of the class or function that makes the method."""
        return MOVED.get(self.recorded_target, self.recorded_target)

    def with_skip(self, skip: str) -> "MethodConfig":
        return MethodConfig.of({**self.node, "skip": skip})

    def reseeded(self, offset: int) -> "MethodConfig":
        """With `offset` added to the method's own seed, where it has one."""
        own = self.seed
        return self if own is None else MethodConfig.of({**self.node, "seed": own + offset})

    def factory(self) -> Callable[..., Any]:
        """The method without its model; stop rules are built, and their values checked, at once."""
        part: Callable[..., Any] = instantiate(self.node, _partial_=True)
        return part

    def make_stop(self) -> Any:
        """A stop rule in its first state. Raises SkipbenchError for a value out of bounds."""
        return instantiate(self.node["stop"])


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
    mixed: bool = False
    repeats: Positive = 1
    until_ci: Annotated[Annotated[float, Meta(gt=0, lt=1)] | None, Meta(title=UNTIL_CI)] = None
    label: str | None = None
    hardware: Slurm | Local | None = None
    search_dataset: DatasetConfig | None = None
    """Of the prompts of the cell's own search, in an experiment; `None`: it has none."""

    def repetitions(self) -> list["RunConfig"]:
        """The cell once per process: the first as it is, the others with seeds of their own."""
        seeds = [(self.seed + n, self.method.reseeded(n)) for n in range(self.repeats)]
        return [dataclasses.replace(self, repeats=1, seed=s, method=m) for s, m in seeds]

    @property
    def names(self) -> dict[str, str]:
        return {"model": self.model.name, "method": self.method.name, "dataset": self.dataset.name}

    def calibration_rows(self) -> list[Any]:
        """Rows, drawn with a seed of their own, by which a sparsified model is calibrated."""
        if self.model.sparsity == "none":
            return []
        return self.dataset.rows(self.model.calibration.rows, seed_offset=2000)

    def record(self) -> dict[str, object]:
        """The settings that a run's folder records, and that its name is the hash of."""
        plain = self.to_dict() | {"model": self._model_record("settings", "gated")}
        keys = IN_RECORD if self.until_ci is None else (*IN_RECORD, "until_ci")
        return {key: plain[key] for key in keys}

    def search_record(self) -> dict[str, object]:
        """The settings that the trace of a search depends on."""
        plain = self.to_dict()
        options = {k: v for k, v in plain["search"].items() if k not in ("iterations", "on", "own")}
        parts = {key: plain[key] for key in ("method", "dataset", "engine")}
        return {"model": self._model_record(), **parts, "search": options}

    def _model_record(self, *left_out: str) -> Mapping[str, object]:
        """The model's settings, without those of pruning or deepening where neither is done."""
        left_out += CHOOSE
        if self.model.sparsity == "none":
            left_out += ("sparsity", "calibration")
        if not self.model.deepened:
            left_out += ("deepened", "deepened_seed")
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
                made[key] = MethodConfig.of(with_targets(value, FIRST))
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
