"""Strict mode with our own attention: the proof at load finds rows that share a call of torch's."""

import pytest
from test_strict import tiny

from skipbench.bench.load import load_model
from skipbench.config.compose import compose
from skipbench.contrib.cpu import elementwise
from skipbench.errors import SkipbenchError
from skipbench.lm.rows import TokenRows


def test_attention_of_all_rows_at_once_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """The planted fault: a strict engine whose rows share one call of torch's attention."""
    tiny()

    # the engine then takes the rows for any others, of which it attends none itself
    monkeypatch.setattr(elementwise, "most_attended", lambda like: 1)
    monkeypatch.setattr(TokenRows, "verified", lambda self: self)
    config = compose(["model.dtype=bfloat16", "engine.strict=true"])
    with pytest.raises(
        SkipbenchError,
        match=r"cannot be kept on cpu in bfloat16: .* differ from the same rows one by one",
    ):
        load_model(config.model, config.engine)
