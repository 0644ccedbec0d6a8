"""The fixture `assert_lossless` for tests of decoding methods, by the entry point `pytest11`."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def assert_lossless() -> Callable[..., Any]:
    """`skipbench.api.assert_lossless`; models are loaded once per session."""
    from skipbench import api

    loaded = dict[str, api.LanguageModel]()

    def check(model: str | api.LanguageModel, *rest: Any, **more: Any) -> Any:
        if isinstance(model, str):
            model = loaded.setdefault(model, loaded.get(model) or api.load(model, "vanilla"))
        return api.assert_lossless(model, *rest, **more)

    return check
