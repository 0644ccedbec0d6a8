"""Checkpoints and datasets of cells, and whether they are here."""

from collections.abc import Sequence
from dataclasses import dataclass

from skipbench.config.dataset import DatasetConfig
from skipbench.config.model import Model, PlantedModel
from skipbench.config.run_config import RunConfig
from skipbench.data.source import offline
from skipbench.errors import SkipbenchError
from skipbench.models.checks import missing_weights
from skipbench.runs.fingerprint import checkpoint_place


@dataclass(frozen=True)
class Input:
    """A checkpoint, or a dataset with the splits of it that are read."""

    sources: Sequence[Model | DatasetConfig]
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


def inputs_of(configs: Sequence[RunConfig]) -> list[Input]:
    """Every model and dataset of the cells, once, also those of their searches."""
    sources_of = dict[tuple[object, ...], dict[str, Model | DatasetConfig]]()
    for config in configs:
        model = config.model
        sources_of.setdefault((model.name, model.path, model.revision), {}).setdefault("", model)
        for dataset in filter(None, (config.dataset, config.search_dataset)):
            for one in dataset.streamed.values() or [dataset]:
                place = (one.node.get(key) for key in ("hub", "config", "path"))
                key = "dataset", one.name, *place
                sources_of.setdefault(key, {}).setdefault(one.node.get("split", ""), one)
    inputs = [_input([*sources.values()]) for sources in sources_of.values()]
    return sorted(inputs, key=lambda one: one.kind != "model")


def _input(sources: Sequence[Model | DatasetConfig]) -> Input:
    first = sources[0]
    if isinstance(first, PlantedModel):
        return Input(sources, None)
    if isinstance(first, Model):
        return Input(sources, _lacking_weights(first))
    elsewhere = first.node.get("path") or first.node.get("hub")
    return Input(sources, _unreadable(sources) if elsewhere else None)  # else of a package, or made


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


def not_ready(configs: Sequence[RunConfig], without_network: bool) -> list[str]:
    """The inputs that are not here and that jobs cannot fetch, either."""
    return [
        one.name + (" (gated, and no token here)" if one.token_missing else "")
        for one in inputs_of(configs)
        if one.lacking is not None and (without_network or one.token_missing)
    ]
