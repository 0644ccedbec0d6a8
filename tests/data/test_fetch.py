"""`data` and the fetching of checkpoints: what is there is checked, what is not is said."""

import json
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from builders import tiny_copy
from safetensors.torch import load_file, save_file

from skipbench.cli.main import dispatch
from skipbench.config.compose import compose
from skipbench.errors import SkipbenchError
from skipbench.models.outline import fetch


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """The embedded model in two weight files with an index, as large checkpoints come."""
    folder = tiny_copy(tmp_path / "model")
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, own in parts.items():
        save_file({name: weights[name] for name in own}, folder / file, metadata={"format": "pt"})
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_a_folder_is_checked(sharded: Path) -> None:
    found = fetch(str(sharded), None, None)
    assert found.commit is None and found.size_bytes == sum(
        p.stat().st_size for p in sharded.glob("*.safetensors")
    )
    (sharded / "model-2.safetensors").unlink()
    with pytest.raises(SkipbenchError, match=r"lacks 1 of 2 weight files, as model-2\.safetensors"):
        fetch(str(sharded), None, None)


def test_a_snapshot_of_the_hub(
    sharded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}
    commit = tmp_path / ("c" * 40)
    sharded.rename(commit)

    def download(repo_id: str, revision: str, allow_patterns: list[str]) -> str:
        asked.update(repo_id=repo_id, revision=revision, patterns=allow_patterns)
        return str(commit)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert fetch("owner/name", "abc", None).commit == "c" * 40
    assert (asked["repo_id"], asked["revision"]) == ("owner/name", "abc")
    assert not any(".bin" in pattern or pattern == "*" for pattern in asked["patterns"])
    shape = compose(["model=llama2-7b"]).model.architecture
    with pytest.raises(SkipbenchError, match="layers 32, not 12"):
        fetch("owner/name", "abc", shape)


def test_data_says_what_is_there_and_what_is_not(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    dispatch(["data", "tiny", "mini-math", "planted"])
    said = capsys.readouterr().out
    assert said.count("ok  ") == 3 and "300 prompts" in said and "nothing to fetch" in said
    with pytest.raises(SkipbenchError, match="not fetched: tinystories"):
        dispatch(["data", "tiny", "tinystories", f"dataset.path={tmp_path / 'none.jsonl'}"])
    said = capsys.readouterr().out
    assert "ok       tiny" in said and "missing  tinystories" in said
    assert "none.jsonl does not exist" in said
