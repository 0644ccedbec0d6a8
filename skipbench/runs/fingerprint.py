"""Fingerprints of a run's checkpoints, of its method's source and of the package: they tell a
record from what the same settings would give now.
"""

import dataclasses
import functools
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from skipbench.config.model import ADAPTER_CONFIG, Model, PlantedModel, adapter_base, is_gguf
from skipbench.config.paths import PACKAGE
from skipbench.config.run_config import MethodConfig
from skipbench.errors import SkipbenchError
from skipbench.runs.method_source import MEASURING, hashed, imports_sha256, method_sha256
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

TEXT = ("*token*.json", "chat_template*", "additional_chat_templates/*")
VOCABULARY = ("vocab*", "merges*", "*.model", "tekken.json")
"""Files from which a tokenizer is loaded: `TEXT`, and without tokenizer.json these."""


def fingerprints(model: Model, method: MethodConfig) -> dict[str, str | None]:
    """Entries of the provenance; None where the files or the source are not on this machine, and no
    `draft_sha256` where the method names no checkpoint that is.
    """
    draft = _draft_sha256(method)
    return ({} if draft is None else {"draft_sha256": draft}) | {
        "weights_sha256": weights_sha256(model),
        "tokenizer_sha256": _files_sha256(model, *TEXT),
        "generation_sha256": _files_sha256(model, "generation_config.json"),
        "method_sha256": method_sha256(method),
        "imports_sha256": imports_sha256(method),
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
    """Compares the record in `folder` with the checkpoints and the code as they are now.

    A fingerprint that the record lacks, or that cannot be taken here, is not compared. A run that
    is done may be of an earlier version of the package, and of latencies that were measured again
    since: its command says so (`other_package`, `other_latency`). One that is not done does not go
    on with others.

    Raises:
        SkipbenchError: they have changed since the run was begun.
    """
    before = read_json(folder / "provenance.json", Provenance) or Provenance()
    now = fingerprints(model, method)
    names, done = _names(model, method), read_status(folder).done
    if done:
        del names["package_sha256"]
    changed = [
        text
        for key, text in names.items()
        if None not in (getattr(before, key), now.get(key)) and getattr(before, key) != now[key]
    ]
    if not done and other_latency(folder, before):
        changed.append(f"other latencies ({before.latency})")
    if changed:
        raise SkipbenchError(
            f"{folder} was made with {' and '.join(changed)}: changed since; fresh=true sets it "
            "aside and starts anew, results=FOLDER keeps both"
        )


def _names(model: Model, method: MethodConfig) -> dict[str, str]:
    """What a fingerprint is of, in words."""
    of, draft, name = f"(model.path={model.path})", method.node.get("model"), method.name
    return {
        "weights_sha256": f"other weights {of}",
        "tokenizer_sha256": f"another tokenizer or chat template {of}",
        "generation_sha256": f"another generation_config.json, which has EOS ids {of}",
        "draft_sha256": f"other weights of the draft model (method.model={draft})",
        "method_sha256": f"other code of method {name} ({method.target})",
        "imports_sha256": f"other code of skipbench that method {name} imports",
        "package_sha256": "other code of skipbench",
    }


def not_compared(provenance: Provenance, model: Model, method: MethodConfig) -> list[str]:
    """What a record of an earlier version has no fingerprint of, in words."""
    now = fingerprints(model, method)
    return [
        text
        for key, text in _names(model, method).items()
        if getattr(provenance, key) is None and now.get(key) is not None
    ]


def other_package(package: str | None) -> bool:
    """Whether a record's `package_sha256` says that another version of the package measured it."""
    return package not in (None, package_sha256())


def other_latency(folder: Path, provenance: Provenance) -> bool:
    """Whether a run's method decided by other latencies than their file holds now."""
    if provenance.latency_sha256 is None or provenance.latency is None:
        return False
    path = folder.parent.parent / "latency" / Path(provenance.latency).name
    try:
        kept = read_json(path, dict[str, Any])
    except SkipbenchError:  # it is measured again
        return False
    return kept is not None and hashed(kept.get("model")) != provenance.latency_sha256


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


def _files_sha256(model: Model, *patterns: str) -> str | None:
    """Hash of the files of a checkpoint that have such names; of a GGUF file, of its header."""
    folder = _folder(model.path, model.revision)
    if folder is None:
        return None
    try:
        if folder.is_file():
            return hashed(_head(str(folder), *_stamp(folder)))
        if patterns == TEXT and not (folder / "tokenizer.json").is_file():
            patterns += VOCABULARY
        files = sorted(p for name in patterns for p in folder.glob(name) if p.is_file())
        found = [[p.name, *_digest(str(p), *_stamp(p))] for p in files]
        base = adapter_base(model.path)
        if base is not None:  # has what the adapter's folder lacks
            found.append([_files_sha256(dataclasses.replace(model, path=base), *patterns)])
    except (OSError, ValueError, SkipbenchError):
        return None
    return hashed(found)


def _draft_sha256(method: MethodConfig) -> str | None:
    """Hash of the weights of every checkpoint that a method's settings name."""
    found: dict[str, str] = {}
    todo: list[Any] = [method.node]
    for node in todo:
        for key, value in node.items():
            if isinstance(value, Mapping):
                todo.append(value)
            elif isinstance(value, str) and value:
                own = weights_sha256(Model(name=key, path=value, revision=node.get("revision")))
                found |= {key: own} if own is not None else {}
    return hashed(found) if found else None


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
def _head(path: str, size: int, mtime_ns: int, inode: int) -> str:
    """Hash of the first `WHOLE` bytes, where a GGUF file has its tokenizer and its EOS id."""
    with open(path, "rb") as file:
        return hashlib.sha256(file.read(WHOLE)).hexdigest()


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
