"""Fingerprints of checkpoints, method and package: with others, a record would be another."""

import ast
import contextlib
import functools
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from skipbench.config.model import Model, PlantedModel, is_gguf
from skipbench.config.run_config import RunConfig
from skipbench.config.signature import settings
from skipbench.errors import SkipbenchError
from skipbench.runs.provenance import Provenance, hashed, leaves
from skipbench.runs.reading import MALFORMED, read_json, readable
from skipbench.runs.source import method_sha256, package_sha256

FORMS = ("quantization", "sparsity")  # settings that make other weights of one checkpoint
WHOLE = 64 * 2**20  # weight files up to this many bytes are hashed in full, larger ones by samples
BLOCK, BLOCKS = 4096, 512  # bytes per sample, samples per file
TEXT = ("*token*.json", "chat_template*", "additional_chat_templates/*")
VOCABULARY = ("vocab*", "merges*", "*.model", "tekken.json")  # read without tokenizer.json, too
MEANINGS = {
    "weights_sha256": "other weights (model.path={model.path})",
    "tokenizer_sha256": "another tokenizer or chat template (model.path={model.path})",
    "generation_sha256": (
        "another generation_config.json, which has EOS ids (model.path={model.path})"
    ),
    "method_sha256": "other code of method {method.name} ({method.target})",
    "package_sha256": "other code of skipbench",
}  # what it means that an entry of the provenance is another
ANEW = "fresh=true measures it anew"


def fingerprints(config: RunConfig) -> dict[str, Any]:
    """Entries of the provenance; None where the files or the source are not on this machine."""
    model, method = config.model, config.method
    return {
        "weights_sha256": weights_sha256(model),
        "tokenizer_sha256": _files_sha256(model, *TEXT),
        "generation_sha256": _files_sha256(model, "generation_config.json"),
        "method_sha256": method_sha256(method),
        "package_sha256": package_sha256(config.engine.name),
        "files": dict(_marked("method", method.node)),
    }


def _marked(key: str, node: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Key and hash of each file or checkpoint in settings that are a `File` by their type."""
    for name, setting in settings(node["_target_"]).items() if "_target_" in node else ():
        value = node.get(name)
        if isinstance(value, Mapping):
            yield from _marked(f"{key}.{name}", value)
        elif value and _is_file(setting.annotation):
            place, digest = Path(value), weights_sha256(Model(name, value, node.get("revision")))
            if digest is None and place.is_file():
                digest = _digest(value, *_stamp(place))
            if digest is not None:
                yield f"{key}.{name}", digest


def _is_file(annotation: ast.expr | None) -> bool:
    names = ast.walk(annotation) if annotation else ()
    return any(isinstance(name, ast.Name) and name.id == "File" for name in names)


def compare_identity(folder: Path, config: RunConfig, done: bool) -> list[str]:
    """Compares the record in `folder` with the files and the code as they are now, as far as they
    can be hashed here. Returns what is another that a run which is `done` may have. Raises
    SkipbenchError where something else has changed, or a file cannot be read.
    """
    if (before := read_json(folder / "provenance.json", Provenance)) is None:
        return []
    now = fingerprints(config)
    texts = {key: t.format(model=config.model, method=config.method) for key, t in MEANINGS.items()}
    changed = [t for key, t in texts.items() if now[key] not in (None, getattr(before, key))]
    values = dict(leaves({"method": config.method.node}))
    changed += [
        f"other content of {key}={values[key]}"
        for key, digest in now["files"].items()
        if digest != before.files.get(key)
    ]
    notes = list[str]()
    if done and (package := texts["package_sha256"]) in changed:
        changed.remove(package)
        notes.append(f"measured by another version of skipbench's code; {ANEW}")
    if _other_latency(folder, before):
        if done:
            notes.append(f"decided by other latencies; {ANEW}")
        else:
            changed.append(f"other latencies ({before.latency})")
    if changed:
        raise SkipbenchError(
            f"{folder} was made with {' and '.join(changed)}: changed since; fresh=true sets it "
            "aside and starts anew, results=FOLDER keeps both"
        )
    return notes


def other_package(package: str | None, engine: str) -> bool:
    """True if a record's `package_sha256` is of another version of the package."""
    return package not in (None, package_sha256(engine))


def _other_latency(folder: Path, provenance: Provenance) -> bool:
    """True if a run's method used other latencies than their file has now."""
    if provenance.latency_sha256 is None or provenance.latency is None:
        return False
    path = folder.parents[2] / "latency" / Path(provenance.latency).name
    try:
        kept = read_json(path, dict[str, Any])
    except SkipbenchError:  # it is measured again
        return False
    return kept is not None and hashed(kept.get("model")) != provenance.latency_sha256


def weights_sha256(model: Model) -> str | None:
    """Hash of the checkpoint's config.json and weights, independent of its place and of file times;
    None if it is not on this machine. Of files above `WHOLE` bytes, the size, the safetensors
    header and evenly spaced blocks are hashed, so that a change between the blocks goes unseen.
    """
    if isinstance(model, PlantedModel):
        assert model.architecture is not None
        return hashed([msgspec.structs.asdict(model.architecture), model.redundant, model.seed])
    folder = checkpoint_place(model.path, model.revision)
    if folder is None:
        return None
    try:
        if not (files := _weight_files(folder)):
            return None
        return hashed(_digests(files if folder.is_file() else [folder / "config.json", *files]))
    except (*MALFORMED, SkipbenchError):  # loading the checkpoint says what is wrong
        return None


def _files_sha256(model: Model, *patterns: str) -> str | None:
    """Hash of the files of a checkpoint that have such names; of a GGUF file, of its header."""
    folder = checkpoint_place(model.path, model.revision)
    if folder is None:
        return None
    try:
        if folder.is_file():
            return hashed(_digest(str(folder), *_stamp(folder), head=True))  # holds the tokenizer
        if patterns == TEXT and not (folder / "tokenizer.json").is_file():
            patterns += VOCABULARY
        digests: list[Any] = _digests(sorted(p for name in patterns for p in folder.glob(name)))
        return hashed(digests)
    except (OSError, ValueError, SkipbenchError):
        return None


def checkpoint_place(path: str, revision: str | None) -> Path | None:
    """A checkpoint's folder or GGUF file: `path`, or its snapshot in the hub's cache; or None."""
    place = Path(path)
    if place.is_dir() or (is_gguf(path) and place.is_file()):
        return place
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    with contextlib.suppress(HFValidationError):
        cached = try_to_load_from_cache(path, "config.json", revision=revision)
        return Path(cached).parent if isinstance(cached, str) else None
    return None


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def indexed(index: Path) -> list[str]:
    """Files of weights in an index. Raises SkipbenchError for none, or files elsewhere."""
    with readable(index, "fetch the checkpoint again"):
        names = msgspec.json.decode(index.read_bytes(), type=_Index).weight_map.values()
    for name in names:  # may be links: the hub's cache has nothing else
        if not name or Path(name).name != name:
            raise SkipbenchError(f"{index} names {name!r}; wanted files in its own folder")
    return sorted({*names})


def _weight_files(folder: Path) -> list[Path]:
    """The files that are loaded, in the order of preference of transformers."""
    if folder.is_file():
        return [folder]
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return [folder / name]
        if (index := folder / f"{name}.index.json").is_file():
            return [folder / shard for shard in indexed(index)]
    return []


def _stamp(path: Path) -> tuple[int, int, int]:
    """Size, time and inode: another one, and the file was replaced since it was hashed."""
    info = path.stat()
    return info.st_size, info.st_mtime_ns, info.st_ino


def _digests(paths: Sequence[Path]) -> list[list[Any]]:
    """Name, size and hash of each of the files that exist."""
    return [[p.name, p.stat().st_size, _digest(str(p), *_stamp(p))] for p in paths if p.is_file()]


@functools.cache
def _digest(path: str, size: int, *stamp: int, head: bool = False) -> str:
    with open(path, "rb") as file:
        if head or size <= WHOLE:
            return hashlib.sha256(file.read(WHOLE)).hexdigest()
        sha = hashlib.sha256()
        if path.endswith(".safetensors"):
            sha.update(file.read(min(WHOLE, int.from_bytes(file.read(8), "little"))))
        for at in (*range(0, size - BLOCK, size // BLOCKS), size - BLOCK):
            sha.update(os.pread(file.fileno(), BLOCK, at))
    return sha.hexdigest()
