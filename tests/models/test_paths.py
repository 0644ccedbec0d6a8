"""What `model.path` may name: what is no checkpoint is told before anything is read, with what to
do.
"""

from pathlib import Path

import pytest
import torch
from builders import tiny_copy

from skipbench.bench.load import load_model
from skipbench.config.compose import compose
from skipbench.config.model import check_path
from skipbench.errors import SkipbenchError
from skipbench.experiments.row import run_cell
from skipbench.models.load import load
from skipbench.models.outline import layer_count

TINY = Path(compose([]).model.path)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_copy(tmp_path / "model")


def test_an_empty_folder_and_one_of_something_else(tmp_path: Path) -> None:
    with pytest.raises(SkipbenchError, match=r"it is empty.*save_pretrained"):
        check_path(str(tmp_path))
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(SkipbenchError, match=r"it holds notes\.txt"):
        check_path(str(tmp_path))


def test_the_folder_above_checkpoints_names_them(folder: Path) -> None:
    (folder.parent / "model-q8.gguf").write_text("")
    for call in (load, layer_count, check_path):
        with pytest.raises(SkipbenchError, match=r"holds model, model-q8\.gguf; give one of them"):
            call(str(folder.parent))


@pytest.mark.parametrize("path", ["~/model", "gpt2", "/nope", "./nope", "a/b/c"])
def test_what_is_no_path_and_no_id(path: str) -> None:
    with pytest.raises(SkipbenchError, match="nor a hub id like 'owner/name'"):
        load(path)


def test_a_folder_without_a_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(SkipbenchError, match=r"no tokenizer: copy tokenizer\.json"):
        load(str(folder))


def test_a_gated_model_without_a_token_is_told_before_all_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    config = compose(["model=llama3.2-1b"])
    assert config.model.gated and config.model.device == "cuda"
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(SkipbenchError, match=r"is gated: accept its licence.*has no token"):
        load_model(config.model, config.engine)
    with pytest.raises(SkipbenchError, match=r"is gated: accept its licence"):  # not its skip set
        run_cell(compose(["model=llama3.2-1b", "method=self-sd", f"results={tmp_path}"]))
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "hf_x")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SkipbenchError, match="no CUDA device"):
        load_model(config.model, config.engine)
