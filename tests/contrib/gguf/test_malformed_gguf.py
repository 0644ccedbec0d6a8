"""Damaged GGUF files: read, or refused in one line."""

import pytest
from conftest import random_model
from malformed import KINDS, Reader, faults, read_in_place_of
from test_gguf import written

from skipbench.models.tokenizer import read_tokenizer


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


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_is_not_waited_for(kind: str, readers: dict[str, Reader]) -> None:
    read_in_place_of(kind, readers)
