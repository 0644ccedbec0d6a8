"""The fixture `assert_lossless` for tests of decoding methods, by the entry point `pytest11`."""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(scope="session")
def assert_lossless() -> Callable[..., Any]:
    """`skipbench.assert_lossless`; models are loaded once per session."""
    from skipbench.config.extensions import load as extension
    from skipbench.language_model import LanguageModel, load

    loaded = dict[str, LanguageModel]()

    def check(model: str | LanguageModel, *rest: Any, **more: Any) -> Any:
        if isinstance(model, str):
            model = loaded.setdefault(model, loaded.get(model) or load(model, "vanilla"))
        return extension("api", "assert_lossless")(model, *rest, **more)

    return check
