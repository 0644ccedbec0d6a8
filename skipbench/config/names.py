"""Overrides from what a user calls a model, a file or a text."""

from skipbench.config.catalog import choices
from skipbench.config.explain import did_you_mean
from skipbench.config.model import check_path
from skipbench.errors import SkipbenchError


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
