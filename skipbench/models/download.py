"""Fetching a checkpoint into the hub's cache, for machines that have no network later."""

import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

from skipbench.config.architecture import Shape
from skipbench.config.model import is_gguf
from skipbench.errors import SkipbenchError
from skipbench.models.checks import check_shape, explain, indexed
from skipbench.models.outline import read_config

TIMEOUT_S = 5
# no pickled weights, which can run code
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


class Fetched(NamedTuple):
    """A checkpoint on this machine."""

    folder: Path
    commit: str | None  # None for a local folder
    weight_bytes: int


def hub_answers() -> bool:
    """True if the hub can be reached, and may be asked."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urllib.request.urlopen(constants.ENDPOINT, timeout=TIMEOUT_S):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500 and error.code != 403  # a proxy that lets nothing through
    except OSError:
        return False


def fetch(path: str, revision: str | None, shape: Shape | None) -> Fetched:
    """Fetches all that `load` needs of a checkpoint; a local folder is only checked. Raises
    SkipbenchError where it cannot be fetched, lacks weights, or has not the sizes of `shape`.
    """
    if is_gguf(path):
        read_config(path, revision, shape)
        return Fetched(Path(path), None, Path(path).stat().st_size)
    from huggingface_hub import snapshot_download
    from transformers import AutoTokenizer

    local = Path(path).is_dir()
    try:
        at = path if local else snapshot_download(path, revision=revision, allow_patterns=FILES)
        folder = Path(at)
        AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise SkipbenchError(explain(path, revision, error)) from error
    check_shape(path, read_config(str(folder), None), shape)
    index = folder / "model.safetensors.index.json"
    names = indexed(index) if index.is_file() else ["model.safetensors"]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise SkipbenchError(
            f"{path!r} lacks {len(missing)} of {len(names)} weight files, as {missing[0]}; "
            "run the command again"
        )
    size = sum((folder / name).stat().st_size for name in names)
    return Fetched(folder, None if local else folder.name, size)
