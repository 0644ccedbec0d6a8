"""Overrides from what a user calls a model, and the settings of a model that follow from others:
sizes, path, name, and the known skip set.
"""

from dataclasses import replace
from pathlib import Path

from skipbench.config.catalog import choices, shape_of
from skipbench.config.explain import did_you_mean
from skipbench.config.model import Model, PlantedModel, Source, check_path, is_gguf
from skipbench.errors import SkipbenchError
from skipbench.skipset import deepened_set, planted_set

KNOWN = ("self-sd", "self-sd-c", "fixed")
"""Methods to which the known set of a deepened model is given as `skip=stored`."""


def model_words(model: str) -> list[str]:
    """The overrides that choose a model by its name in `conf/model`, its folder, its GGUF file or
    its id on the hub.

    Raises:
        SkipbenchError: it is none of these.
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
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def derived(model: Model) -> Model:
    """The model with all that follows from its settings.

    Raises:
        SkipbenchError: `source=package` for a model that comes in no package, or a planted model
            that is to be deepened.
    """
    if isinstance(model, PlantedModel):
        architecture = shape_of(model.shape)
        skip = str(planted_set(architecture.layers, model.redundant, model.seed))
        model = replace(model, architecture=architecture, sets={"self-sd": skip, "self-sd-c": skip})
    return _deepened(_packaged(model))


def _packaged(model: Model) -> Model:
    """With path and name of the checkpoint in its package, if it is taken from there.

    With `source=auto` it is, if the package was fetched and the hub's cache lacks the weights.
    """
    if model.wheel is None or is_gguf(model.path) or Path(model.path).is_dir():
        if model.source == Source.package:
            raise SkipbenchError(
                f"model.source=package, but {model.path!r} comes in no package; leave it out"
            )
        return model
    folder = model.wheel.folder
    if model.source == Source.auto:
        there = (folder / "config.json").is_file()
        from_hub = not there or _in_hub_cache(model.path, model.revision)
    else:
        from_hub = model.source == Source.hub
    if from_hub:
        return model
    return replace(model, path=str(folder), revision=None, name=f"{model.name}-{model.wheel.label}")


def _in_hub_cache(path: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache  # slow to import

    try:
        return isinstance(try_to_load_from_cache(path, "model.safetensors", revision=revision), str)
    except ValueError:  # no id of the hub; loading says so
        return False


def _deepened(model: Model) -> Model:
    """With the name of a deepened model, and its known skip set if the sizes are known."""
    share = model.deepened
    if not share:
        return model
    if isinstance(model, PlantedModel):
        raise SkipbenchError(
            f"model.deepened={share}: a planted model has its redundant sub-layers already; set "
            "model.redundant"
        )
    ending = "-deep" if share == 1 else f"-deep{share:g}"
    if not model.name.endswith(ending):
        model = replace(model, name=model.name + ending)
    if model.architecture is None:
        return model
    skip = str(deepened_set(model.architecture.layers, share, model.deepened_seed))
    return replace(model, sets={**dict.fromkeys(KNOWN, skip), **model.sets})
