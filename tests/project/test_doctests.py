"""The worked examples in docstrings: every method has one, and what a new method uses."""

import doctest
import importlib
import pkgutil

import pytest

from skipbench import methods

METHODS = [
    module.name
    for module in pkgutil.walk_packages(methods.__path__, "skipbench.methods.")
    if not module.ispkg
]
OTHERS = ["decode.draft", "decode.method", "decode.stopping", "decode.tree", "decode.verify"]
OTHERS += ["config.configurable", "draft_plan"]


@pytest.mark.parametrize("name", [*METHODS, *(f"skipbench.{name}" for name in OTHERS)])
def test_examples(name: str) -> None:
    found = doctest.testmod(importlib.import_module(name), optionflags=doctest.ELLIPSIS)
    assert found.failed == 0 < found.attempted
