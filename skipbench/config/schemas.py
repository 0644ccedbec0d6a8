"""Every group of `conf/` with the Struct of its keys, which Hydra gets as plain nodes."""

from pathlib import Path
from typing import Any

import msgspec
from hydra.core.config_store import ConfigStore

from skipbench.config import dataset as datasets
from skipbench.config.catalog import groups, target_of
from skipbench.config.configurable import GIVEN_BY_CODE, Decoding, Settings
from skipbench.config.extensions import load, registered
from skipbench.config.hardware import Local, Slurm
from skipbench.config.model import HubModel, Model, PlantedModel
from skipbench.config.run_config import Config, Engine, Search
from skipbench.config.signature import schema_of
from skipbench.errors import SkipbenchError

SCHEMAS: dict[tuple[str | None, str], type[Settings]] = {
    (None, "_config"): Config,
    ("model", "_model"): Model,
    ("model", "_hub"): HubModel,
    ("model", "_planted"): PlantedModel,
    ("search", "_search"): Search,
    ("dataset", "_mini"): datasets.MiniDataset,
    ("dataset", "_hub"): datasets.HubDataset,
    ("dataset", "_tinystories"): datasets.TinyStories,
    ("dataset", "_longtext"): datasets.LongText,
    ("dataset", "_speedbench"): datasets.SpeedBench,
    ("dataset", "_specbench"): datasets.SpecBench,
    ("dataset", "_stream"): datasets.Stream,
    ("dataset", "_humaneval"): datasets.HumanEval,
    ("dataset", "_sampled"): datasets.Sampled,
    ("dataset", "_own"): datasets.OwnPrompts,
    ("decoding", "_decoding"): Decoding,
    ("engine", "_engine"): Engine,
    ("hardware", "_slurm"): Slurm,
    ("hardware", "_local"): Local,
    **{("model", name): load("model", name) for name in registered("model")},
}
FROM_SIGNATURE = ("method", "stop")
"""Groups whose files name a `_target_`; the schema `_<file>` follows from its signature."""


def known_settings() -> set[str]:
    """The first parts of keys of a cell."""
    return {*node_of(Config), *groups()}


def node_of(schema: type[Settings]) -> dict[str, Any]:
    """The keys of a schema with their defaults, `???` where a value must be given."""
    plain = msgspec.to_builtins(schema(), enc_hook=str)
    return {key: value for key, value in plain.items() if key not in GIVEN_BY_CODE}


def register(*folders: Path) -> None:
    """Stores the schemas for Hydra, also of each method and stop rule of config folders; a leading
    underscore marks a schema, which is not a choice. Raises SkipbenchError, with file and line, for
    a target that cannot be read.
    """
    store = ConfigStore.instance()
    for (group, name), schema in SCHEMAS.items():
        store.store(group=group, name=name, node=node_of(schema))
    for group in FROM_SIGNATURE:
        for path in sorted(p for folder in folders for p in (folder / group).glob("*.yaml")):
            if (target := target_of(path)) is not None:
                try:
                    store.store(group=group, name=f"_{path.stem}", node=node_of(schema_of(target)))
                except SkipbenchError as error:
                    before = path.read_text(encoding="utf-8").partition("_target_:")[0]
                    line = before.count("\n") + 1
                    raise SkipbenchError(f"{path}, line {line}: {error}") from error
