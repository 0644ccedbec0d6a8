"""The check of memory before weights are read, for methods that draft in 8 bits."""

from pathlib import Path

import pytest

from skipbench.bench import memory
from skipbench.bench.load import preflight
from skipbench.bench.memory import GIB, MARGIN, needed_bytes
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.runs.cell import Cell


@pytest.mark.parametrize("method", ["int8", "auto"])
def test_a_copy_in_8_bits_counts_in_the_memory_check(
    method: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A byte per weight, the head's among them, before weights are read; not without drafts."""
    words = ["model=llama2-7b", "limit=1", f"results={tmp_path}"]
    config = compose([*words, f"method={method}", "dataset.max_new_tokens=64"])
    shape = config.model.architecture
    assert shape is not None
    exact = sum(needed_bytes(config.model, 64)) + MARGIN
    monkeypatch.setattr(memory, "free_bytes", lambda device: exact + shape.parameters - GIB)
    with pytest.raises(SkipbenchError, match=r"needs 19\.9 GiB"):
        preflight(Cell(config), held=True)
    monkeypatch.setattr(memory, "free_bytes", lambda device: exact + GIB)
    for words in (["method=auto", "method.explore=0"], ["method=swift"]):
        method_of = compose(words).method.factory()
        assert not method_of(layers=32).variant
