"""Checkpoints and datasets of cells: whether they are here, and what the hub says of them."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from skipbench.config.model import Model, PlantedModel
from skipbench.config.run_config import DatasetConfig, RunConfig
from skipbench.data.source import offline
from skipbench.errors import SkipbenchError
from skipbench.models.checks import FILES, missing_weights
from skipbench.runs.fingerprint import checkpoint_place


@dataclass(frozen=True)
class Input:
    """A checkpoint, or a dataset with the splits of it that are read."""

    sources: Sequence[Model | DatasetConfig]
    where: str  # hub id, address or file; empty for what is made here, or comes with a package
    lacking: str | None  # why it cannot be read without a network; None where it can

    @property
    def source(self) -> Model | DatasetConfig:
        return self.sources[0]

    @property
    def name(self) -> str:
        return self.source.name

    @property
    def kind(self) -> str:
        return "model" if isinstance(self.source, Model) else "dataset"

    @property
    def token_missing(self) -> bool:
        """True if the hub gives it to those alone who show a token, and this machine has none."""
        from huggingface_hub import get_token

        return isinstance(self.source, Model) and self.source.gated and get_token() is None


class HubFacts(NamedTuple):
    """What the hub says; None where it does not."""

    licence: str | None = None
    size_bytes: int | None = None
    gated: bool = False


def inputs_of(configs: Sequence[RunConfig]) -> list[Input]:
    """Every model and dataset of the cells, once, also those of their searches."""
    sources_of = dict[tuple[object, ...], dict[str, Model | DatasetConfig]]()
    for config in configs:
        model = config.model
        sources_of.setdefault((model.name, model.path, model.revision), {}).setdefault("", model)
        for dataset in filter(None, (config.dataset, config.search_dataset)):
            for one in dataset.tasks.values() or [dataset]:
                key = "dataset", one.name, one.node.get("hub"), one.node.get("config"), one.path
                sources_of.setdefault(key, {}).setdefault(one.split, one)
    inputs = [_input([*sources.values()]) for sources in sources_of.values()]
    return sorted(inputs, key=lambda one: one.kind != "model")


def _input(sources: Sequence[Model | DatasetConfig]) -> Input:
    first = sources[0]
    if isinstance(first, PlantedModel):
        return Input(sources, "", None)
    if isinstance(first, Model):
        return Input(sources, first.path, _lacking_weights(first))
    where = first.path or str(first.node.get("hub") or "")
    lacking = _unreadable(sources) if where else None  # others are generated, or of a package
    return Input(sources, where, lacking)


def _lacking_weights(model: Model) -> str | None:
    place = checkpoint_place(model.path, model.revision)
    if place is None:
        return "not in the cache"
    missing = missing_weights(place) if place.is_dir() else []
    return f"{len(missing)} of its weight files are missing" if missing else None


def _unreadable(sources: Sequence[Model | DatasetConfig]) -> str | None:
    with offline():
        for one in sources:
            try:
                if isinstance(one, DatasetConfig):
                    one.rows(1)
            except SkipbenchError as error:
                return str(error)
    return None


def hub_facts(one: Input) -> HubFacts:
    """Licence and size by the hub of files that are fetched; empty where it does not answer."""
    if one.where.count("/") != 1 or Path(one.where).exists():
        return HubFacts()
    from huggingface_hub import HfApi

    ask = HfApi().model_info if one.kind == "model" else HfApi().dataset_info
    try:
        info = ask(one.where, revision=one.source.revision, files_metadata=True)
    except Exception:  # whatever the network does, the others are still asked for
        return HubFacts()
    tags = [tag.partition(":")[2] for tag in info.tags or () if tag.startswith("license:")]
    patterns = FILES if one.kind == "model" else ["*"]
    sizes = [
        file.size or 0
        for file in info.siblings or ()
        if any(fnmatch.fnmatch(file.rfilename, pattern) for pattern in patterns)
    ]
    return HubFacts(", ".join(tags) or None, sum(sizes) or None, bool(info.gated))


def not_ready(configs: Sequence[RunConfig], without_network: bool) -> list[str]:
    """The inputs that are not here and that jobs cannot fetch, either."""
    return [
        one.name + (" (gated, and no token here)" if one.token_missing else "")
        for one in inputs_of(configs)
        if one.lacking is not None and (without_network or one.token_missing)
    ]
