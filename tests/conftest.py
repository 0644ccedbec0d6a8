"""Loads tests/common.py where tests run. The process that hands them to others' workers needs no
torch, which takes it seconds to import.
"""

import os
from pathlib import Path
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    if not Path("/dev/nvidiactl").exists():  # read when Triton is imported, by whatever package
        os.environ["TRITON_INTERPRET"] = "1"
    if hasattr(config, "workerinput") or config.getoption("dist", "no") == "no":
        config.pluginmanager.import_plugin("common")


def __getattr__(name: str) -> Any:
    """What tests import from here stands in tests/common.py; pytest itself looks for hooks."""
    if name.startswith(("pytest", "_")):
        raise AttributeError(name)
    import common

    return getattr(common, name)
