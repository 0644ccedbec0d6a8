"""skipbench: layer-skipping self-speculative decoding; a name is imported with its first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skipbench.api import compare as compare
    from skipbench.language_model import LanguageModel as LanguageModel
    from skipbench.language_model import load as load
    from skipbench.report.frame import frame as frame
    from skipbench.report.published import published as published

    __version__: str
    custom_generate: Any
    verify: Any

HOMES = {
    "LanguageModel": "skipbench.language_model",
    "compare": "skipbench.api",
    "frame": "skipbench.report.frame",
    "load": "skipbench.language_model",
    "published": "skipbench.report.published",
}
"""The module of each name; `frame` and `published` need no torch."""
__all__ = ["__version__", "custom_generate", "verify", *HOMES]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    from skipbench.config import extensions

    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("skipbench")
    if name in HOMES:
        return getattr(importlib.import_module(HOMES[name]), name)
    if name in extensions.registered("api"):
        return extensions.load("api", name)
    raise AttributeError(f"module 'skipbench' has no attribute {name!r}")
