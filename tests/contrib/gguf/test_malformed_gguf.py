"""Damaged GGUF files: read, or refused in one line."""

import pytest
from conftest import random_model
from malformed import Reader, faults
from test_gguf import written

from skipbench.models.outline import read_tokenizer


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    file = written(tmp_path_factory.mktemp("gguf") / "m.gguf", random_model("llama"))
    return {file.name: Reader(file, lambda: read_tokenizer(str(file)))}


@pytest.mark.filterwarnings("ignore")  # of a library that reads nonsense
@pytest.mark.parametrize("each", [4, pytest.param(3450, marks=pytest.mark.slow)])
def test_what_a_file_holds_is_read_or_refused(each: int, readers: dict[str, Reader]) -> None:
    for reader in readers.values():
        reader.read()
    assert not faults(readers, each)
