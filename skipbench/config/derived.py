"""The overrides that choose a model, and settings of a model that follow from others."""

from dataclasses import replace
from pathlib import Path

from skipbench.config.catalog import choices, shape_of
from skipbench.config.explain import did_you_mean
from skipbench.config.model import Model, PlantedModel, Source, check_path, is_gguf
from skipbench.errors import SkipbenchError
from skipbench.skipset import planted_set


def model_words(model: str) -> list[str]:
    """The overrides that choose a model by its name in `conf/model`, its folder, its GGUF file or
    its id on the hub. Raises SkipbenchError for other text.
    """
    if model in choices("model"):
        return [f"model={model}"]
    try:
        check_path(model)
    except SkipbenchError as error:
        raise SkipbenchError(
            f"{model!r} is neither a folder, nor a .gguf file, nor a hub id like 'owner/name', nor "
            f"a known model.{did_you_mean(model, choices('model'))} `python -m skipbench list "
            "models` lists those"
        ) from error
    return ["model=path", f"model.path={quoted(model)}"]


def quoted(text: str) -> str:
    """A text as the value of an override, whatever is in it."""
    text = text.replace("\\", "\\\\").replace("'", "\\'")
    return "'" + text.replace("${", "\\${") + "'"


def derived(model: Model) -> Model:
    """The model with all that follows from its settings: sizes, path, name, known skip set.

    Raises SkipbenchError for `source=package` without a package.
    """
    if isinstance(model, PlantedModel):
        architecture = shape_of(model.shape)
        skip = str(planted_set(architecture.layers, model.redundant, model.seed))
        model = replace(model, architecture=architecture, sets={"self-sd": skip, "self-sd-c": skip})
    return _packaged(model)


def _packaged(model: Model) -> Model:
    """With path and name of the checkpoint in its package, if it is taken from there; by
    `source=auto` where the package was fetched and the hub's cache lacks the weights.
    """
    if (wheel := model.wheel) is None or is_gguf(model.path) or Path(model.path).is_dir():
        if model.source == Source.package:
            raise SkipbenchError(
                f"model.source=package, but {model.path!r} comes in no package; leave it out"
            )
        return model
    fetched = model.source == Source.auto and (wheel.folder / "config.json").is_file()
    if model.source == Source.package or (
        fetched and not _in_hub_cache(model.path, model.revision)
    ):
        name = f"{model.name}-{wheel.label}"
        return replace(model, path=str(wheel.folder), revision=None, name=name)
    return model


def _in_hub_cache(path: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache  # slow to import

    try:
        return isinstance(try_to_load_from_cache(path, "model.safetensors", revision=revision), str)
    except ValueError:  # no id of the hub; loading says so
        return False
