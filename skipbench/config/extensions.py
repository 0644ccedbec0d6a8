"""What `skipbench.contrib` adds to the core, by kind and name; without a folder of it, nothing of
that folder.
"""

import functools
import importlib
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from skipbench.errors import SkipbenchError

CONTRIB = Path(__file__).resolve().parents[1] / "contrib"
CONF = sorted(CONTRIB.glob("*/conf"))
"""Folders of its choices, beside those of the core's `conf`."""


@functools.cache
def registered(kind: str) -> Mapping[str, str]:
    """Names of a kind, each with the `module.attribute` that it stands for."""
    if find_spec("skipbench.contrib") is None:
        return {}
    table: dict[str, dict[str, str]] = importlib.import_module("skipbench.contrib").TABLE
    pairs = table.get(kind, {}).items()
    return {name: path for name, path in pairs if (CONTRIB / path.split(".")[2]).is_dir()}


def load(kind: str, name: str) -> Any:
    """What is registered under a name, whose module is imported. Raises SkipbenchError without."""
    if (path := registered(kind).get(name)) is None:
        raise SkipbenchError(f"{kind} {name} is a part of skipbench/contrib that is not here")
    module, _, attribute = path.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


@functools.cache
def optional(kind: str, name: str) -> Callable[..., Any]:
    """As `load`; where nothing is registered, a function whose result is `None`."""
    found: Callable[..., Any] = load(kind, name) if name in registered(kind) else lambda *_: None
    return found
