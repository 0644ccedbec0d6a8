"""Settings of ASD out of their bounds."""

import pytest

from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError


@pytest.mark.parametrize("word", ["keep_first=13", "threshold=2"])
def test_a_setting_out_of_bounds_is_named(word: str) -> None:
    method = compose(["method=asd", f"method.{word}"]).method
    with pytest.raises(SkipbenchError, match=word.partition("=")[0]):
        method.factory()(layers=12)
