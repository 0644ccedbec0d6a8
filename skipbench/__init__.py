"""skipbench: layer-skipping self-speculative decoding; torch is imported with its first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from skipbench.api import (
        LanguageModel,
        compare,
        frame,
        load,
        published,
    )

    __version__: str
    custom_generate: Any
    verify: Any

__all__ = [
    "LanguageModel",
    "__version__",
    "compare",
    "custom_generate",
    "frame",
    "load",
    "published",
    "verify",
]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("skipbench")
    if name in __all__:
        return getattr(importlib.import_module("skipbench.api"), name)
    raise AttributeError(f"module 'skipbench' has no attribute {name!r}")
