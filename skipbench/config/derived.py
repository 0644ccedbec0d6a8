"""The overrides that choose a model, and settings of a model that follow from others."""

from msgspec.structs import replace

from skipbench.config.catalog import choices, quoted, shape_of
from skipbench.config.explain import did_you_mean
from skipbench.config.model import Model, PlantedModel, check_path
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


def derived(model: Model) -> Model:
    """The model with what follows from its settings: sizes and the skip set of a planted one."""
    if not isinstance(model, PlantedModel):
        return model
    architecture = shape_of(model.shape)
    skip = str(planted_set(architecture.layers, model.redundant, model.seed))
    return replace(model, architecture=architecture, sets={"self-sd": skip, "self-sd-c": skip})
