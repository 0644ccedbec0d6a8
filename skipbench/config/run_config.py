"""`RunConfig`: the settings of one cell, typed and frozen. Nothing else leaves this room."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from skipbench.config.build import instantiate
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


@dataclass(frozen=True)
class MethodConfig:
    """A decoding method and its settings."""

    node: Mapping[str, Any]
    """`_target_`, as records name it, and the keyword arguments of what it names."""

    @property
    def name(self) -> str:
        return str(self.node["name"])

    @property
    def target(self) -> str:
        """Dotted path of the class or function that makes the method."""
        path = str(self.node["_target_"])
        return MOVED.get(path, path)

    @property
    def skip(self) -> str | None:
        """The skip set in text form, or `stored`; `None` for a method that takes none."""
        return self.node.get("skip")

    @property
    def max_steps(self) -> int | None:
        """Most draft steps per round, of a method with a stop rule."""
        stop = self.node.get("stop")
        return None if stop is None else int(stop["max_steps"])

    def with_skip(self, skip: str) -> "MethodConfig":
        return MethodConfig({**self.node, "skip": skip})

    def reseeded(self, offset: int) -> "MethodConfig":
        """With `offset` added to the method's own seed, where it has one."""
        own = self.node.get("seed")
        return self if own is None else MethodConfig({**self.node, "seed": own + offset})

    def factory(self) -> Callable[..., Any]:
        """The method without its model; stop rules are built, and their values checked, at once."""
        part: Callable[..., Any] = instantiate(self.node, _partial_=True)
        return part

    def make_stop(self) -> Any:
        """A stop rule in its first state.

        Raises:
            SkipbenchError: the method has none, or a value that cannot be used.
        """
        return instantiate(self.node["stop"])


@dataclass(frozen=True)
class RunConfig:
    """One cell, model x method x dataset, with everything that it needs."""

    model: Model
    method: MethodConfig
    dataset: DatasetConfig
    decoding: Decoding
    engine: Engine
    search: Search
    profile: Profile
    seed: int
    limit: int | None
    results: Path
    dry_run: bool
    fresh: bool = False
    mixed: bool = False
    repeats: int = 1
    """Processes over which the speedup is measured; each has a record of its own."""
    until_ci: float | None = None
    """Relative half width of the speedup's interval at which a cell stops."""
    label: str | None = None
    """In a sweep: the overrides in which this cell differs from the others."""
    hardware: Slurm | Local | None = None
    search_dataset: DatasetConfig | None = None
    """In an experiment: where the cell's own search for a skip set draws its prompts; `None`: no
    search of its own.
    """

    def repetitions(self) -> list["RunConfig"]:
        """The cell once per process: the first as it is, the others with other seeds of sampling,
        of the order of the arms and of the method.

        An offline search is shared.

        Raises:
            SkipbenchError: `repeats` is below 1.
        """
        if self.repeats < 1:
            raise SkipbenchError(f"repeats={self.repeats}; wanted 1 or more")
        return [
            dataclasses.replace(
                self, repeats=1, seed=self.seed + number, method=self.method.reseeded(number)
            )
            for number in range(self.repeats)
        ]

    @property
    def names(self) -> dict[str, str]:
        return {"model": self.model.name, "method": self.method.name, "dataset": self.dataset.name}

    def calibration_rows(self) -> list[Any]:
        """The rows by which a sparsified model is calibrated, drawn with a seed of their own; none
        for a dense one.
        """
        if self.model.sparsity == "none":
            return []
        return self.dataset.rows(
            self.model.calibration.rows, seed_offset=2000, key="model.calibration.rows"
        )

    def record(self) -> dict[str, Any]:
        """The settings that a run's folder records, and that its name is the hash of."""
        plain = self.to_dict()
        stops = {} if self.until_ci is None else {"until_ci": self.until_ci}
        return (
            {key: plain[key] for key in IN_RECORD}
            | stops
            | {"model": self._model_record("settings", "gated")}
        )

    def search_record(self) -> dict[str, Any]:
        """The settings that the trace of a search depends on."""
        plain = self.to_dict()
        options = {k: v for k, v in plain["search"].items() if k not in ("iterations", "on", "own")}
        parts = {key: plain[key] for key in ("method", "dataset", "engine")}
        return {"model": self._model_record(), **parts, "search": options}

    def _model_record(self, *left_out: str) -> dict[str, Any]:
        """The model's settings; those of calibration only where weights are pruned, and those of
        deepening only where layers are added.
        """
        unused: tuple[str, ...] = (
            ("sparsity", "calibration") if self.model.sparsity == "none" else ()
        )
        unused += () if self.model.deepened else ("deepened", "deepened_seed")
        left_out += (*CHOOSE, *unused)
        return {k: v for k, v in self.to_dict()["model"].items() if k not in left_out}

    def to_dict(self) -> dict[str, Any]:
        """All settings as plain JSON values; `RunConfig.from_dict` reads them."""
        plain: dict[str, Any] = msgspec.to_builtins(self, enc_hook=_encode)
        plain |= {"method": dict(self.method.node), "dataset": dict(self.dataset.node)}
        plain["search_dataset"] = (
            None if self.search_dataset is None else dict(self.search_dataset.node)
        )
        return plain

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> "RunConfig":
        """Reads what `to_dict` made.

        Raises:
            SkipbenchError: a key that is not known.
        """
        known = {f.name for f in dataclasses.fields(cls)}
        if unknown := sorted(set(plain) - known):
            raise SkipbenchError(
                f"unknown key {unknown[0]!r}. Allowed here: {', '.join(sorted(known))}"
            )
        kinds: dict[str, Any] = {
            "model": PlantedModel if "redundant" in plain["model"] else Model,
            "decoding": Decoding,
            "engine": Engine,
            "search": Search,
            "profile": Profile,
            "hardware": Local if "workers" in (plain.get("hardware") or ()) else Slurm,
        }
        made = {
            key: msgspec.convert(plain[key], kind)
            for key, kind in kinds.items()
            if key != "hardware" or plain.get(key) is not None
        }
        for key in ("dataset", "search_dataset"):
            if plain.get(key) is not None:
                made[key] = DatasetConfig(plain[key])
        made |= {
            "method": MethodConfig(with_targets(plain["method"], FIRST)),
            "results": Path(plain["results"]),
        }
        return cls(**{**plain, **made})


def _encode(value: Any) -> Any:
    return str(value)
