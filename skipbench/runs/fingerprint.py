"""Fingerprints of a run's weights, of its method's source and of the package: they tell a record
from what the same settings would give now.
"""

import dataclasses
import functools
import hashlib
import json
import os
from pathlib import Path

from skipbench.config.model import ADAPTER_CONFIG, Model, PlantedModel, adapter_base, is_gguf
from skipbench.config.paths import PACKAGE
from skipbench.config.run_config import MethodConfig
from skipbench.errors import SkipbenchError
from skipbench.runs.method_source import hashed, method_sha256
from skipbench.runs.provenance import Provenance
from skipbench.runs.reading import read_json
from skipbench.runs.state import read_status

FORMS = ("quantization", "sparsity")
"""Settings that make other weights of one checkpoint."""
WHOLE = 64 * 2**20
"""Weight files up to this many bytes are hashed in full, larger ones by samples."""
BLOCK, BLOCKS = 4096, 512
"""Bytes per sampled block, and blocks per file: a few megabytes of a checkpoint of any size."""
ADAPTERS = (ADAPTER_CONFIG, "adapter_model.safetensors", "adapter_model.bin")
"""What a run reads of an adapter folder; its base model is hashed beside it."""


MEASURING = (
    "skipset.py",
    "lm",
    "models",
    "decode",
    "profile/clock.py",
    "bench",
    "methods/vanilla.py",
)
"""Files of the package on which a run's tokens and seconds depend, beside its method."""


def fingerprints(model: Model, method: MethodConfig) -> dict[str, str | None]:
    """Entries of the provenance; None where the weights or the source are not on this machine."""
    return {
        "weights_sha256": weights_sha256(model),
        "method_sha256": method_sha256(method),
        "package_sha256": package_sha256(),
    }


@functools.cache
def package_sha256() -> str:
    """Hash of the sources of the package that measure, not of those of reports and commands."""
    files = [
        path
        for name in MEASURING
        for path in ([PACKAGE / name] if name.endswith(".py") else (PACKAGE / name).rglob("*.*"))
        if path.suffix in (".py", ".c")
    ]
    return hashed(
        {
            path.relative_to(PACKAGE).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
            for path in files
        }
    )


def refuse_other(folder: Path, model: Model, method: MethodConfig) -> None:
    """Compares the record in `folder` with the weights and the code as they are now.

    A fingerprint that the record lacks, or that cannot be taken here, is not compared. A run that
    is done may be of an earlier version of the package: tables say so (`other_package`). One that
    is not done does not go on with another.

    Raises:
        SkipbenchError: they have changed since the run was begun.
    """
    before = read_json(folder / "provenance.json", Provenance) or Provenance()
    now = fingerprints(model, method)
    names = {
        "weights_sha256": f"other weights (model.path={model.path})",
        "method_sha256": f"other code of method {method.name} ({method.target})",
    }
    if not read_status(folder).done:
        names["package_sha256"] = "other code of skipbench"
    changed = [
        text
        for key, text in names.items()
        if None not in (getattr(before, key), now[key]) and getattr(before, key) != now[key]
    ]
    if changed:
        raise SkipbenchError(
            f"{folder} was made with {' and '.join(changed)}: changed since; fresh=true sets it "
            "aside and starts anew, results=FOLDER keeps both"
        )


def other_package(package: str | None) -> bool:
    """Whether a record's `package_sha256` says that another version of the package measured it."""
    return package not in (None, package_sha256())


def weights_sha256(model: Model) -> str | None:
    """Hash of the checkpoint's config.json and weights, independent of its place and of file times.

    A planted model has no files: its shape and its seed are hashed. Of files above `WHOLE` bytes,
    the size, the safetensors header and evenly spaced blocks are hashed, so that a change between
    the blocks goes unseen.

    Returns:
        None if the checkpoint is not on this machine.
    """
    if isinstance(model, PlantedModel):
        assert model.architecture is not None
        return hashed([dataclasses.asdict(model.architecture), model.redundant, model.seed])
    folder = _folder(model.path, model.revision)
    try:
        base = adapter_base(model.path)
        if folder is not None and base is not None:
            files = [p for name in ADAPTERS if (p := folder / name).is_file()]
            own = [[p.name, *_digest(str(p), *_stamp(p))] for p in files]
            below = weights_sha256(dataclasses.replace(model, path=base))
            return None if below is None else hashed([own, below])
        files = _weight_files(folder) if folder is not None else []
        if folder is None or not files:
            return None
        names = files if is_gguf(model.path) else [folder / "config.json", *files]
        found = hashed(
            [[path.name, *_digest(str(path), *_stamp(path))] for path in names if path.is_file()]
        )
    # loading the checkpoint tells what is wrong
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SkipbenchError):
        return None
    if model.deepened:  # its layers are made of those in the files
        return hashed([found, model.deepened, model.deepened_seed])
    return found


def _folder(path: str, revision: str | None) -> Path | None:
    """The checkpoint's folder or GGUF file: `path` itself, or its snapshot in the hub's cache."""
    if Path(path).is_dir() or is_gguf(path):
        return Path(path)
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        cached = try_to_load_from_cache(path, "config.json", revision=revision)
    except HFValidationError:
        return None
    return Path(cached).parent if isinstance(cached, str) else None


def _weight_files(folder: Path) -> list[Path]:
    """The files that are loaded, in the order of preference of transformers."""
    if folder.is_file():
        return [folder]
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return [folder / name]
        index = folder / f"{name}.index.json"
        if index.is_file():
            return [
                folder / shard
                for shard in sorted(set(json.loads(index.read_text())["weight_map"].values()))
            ]
    return []


def _stamp(path: Path) -> tuple[int, int, int]:
    info = path.stat()
    return info.st_size, info.st_mtime_ns, info.st_ino


@functools.cache
def _digest(path: str, size: int, mtime_ns: int, inode: int) -> tuple[int, str]:
    """Size and hash of a file; `mtime_ns` and `inode` only tell that the file was replaced."""
    with open(path, "rb") as file:
        if size <= WHOLE:
            return size, hashlib.file_digest(file, "sha256").hexdigest()
        sha = hashlib.sha256()
        if path.endswith(".safetensors"):
            sha.update(file.read(min(WHOLE, int.from_bytes(file.read(8), "little"))))
        for at in (*range(0, size - BLOCK, size // BLOCKS), size - BLOCK):
            sha.update(os.pread(file.fileno(), BLOCK, at))
    return size, sha.hexdigest()
