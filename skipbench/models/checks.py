"""Checks of a checkpoint's settings and files, and messages for failed loads."""

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from skipbench.config.architecture import Shape
from skipbench.config.extensions import load as load_extension
from skipbench.config.model import Model, check_path, is_gguf
from skipbench.config.paths import hub_offline, hub_unreachable
from skipbench.errors import SkipbenchError
from skipbench.runs.fingerprint import checkpoint_place, indexed

# no pickled weights, which can run code
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]  # that are fetched
FIELDS = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "intermediate": "intermediate_size",
    "vocab": "vocab_size",
    "tied": "tie_word_embeddings",
    "family": "model_type",
}


def check_shape(path: str, config: Any, shape: Shape | None) -> None:
    """Raises SkipbenchError unless a checkpoint's config has the sizes of `shape`, but its context:
    checkpoints are published with several limits on it.
    """
    if shape is None:
        return
    pairs = [(k, getattr(shape, k), getattr(config, v)) for k, v in FIELDS.items()]
    if wrong := [f"{k} {wanted}, not {found}" for k, wanted, found in pairs if wanted != found]:
        raise SkipbenchError(
            f"{path!r} is not the model that model.architecture describes: {'; '.join(wrong)}. "
            f"Use model=path model.path={path} for a checkpoint of your own"
        )


def missing_weights(folder: Path) -> list[str]:
    """The weight files that a checkpoint's index names, or its only one, and that are not there."""
    return [name for name in weight_names(folder) if not (folder / name).is_file()]


def weight_names(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    return indexed(index) if index.is_file() else ["model.safetensors"]


def folder_of(path: str) -> str:
    """`path`; of a GGUF file, the folder that it is converted to."""
    return str(load_extension("checkpoint", "gguf")(path)) if is_gguf(path) else path


# Every tokenizer has one of these files.
TOKENIZERS = (
    *("tokenizer.json", "tokenizer.model", "tekken.json", "vocab.json", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model"),
)


def check_tokenizer(path: str) -> str:
    """The path. Raises SkipbenchError for a folder without a tokenizer."""
    folder = Path(path)
    if not folder.is_dir() or any((folder / name).is_file() for name in TOKENIZERS):
        return path
    raise SkipbenchError(
        f"model.path={path!r} has no tokenizer: copy tokenizer.json and tokenizer_config.json "
        "there from the model that it was trained from"
    )


def check_access(path: str, revision: str | None, gated: bool) -> None:
    """Raises SkipbenchError for a path that names nothing, and for a gated model that this machine
    has neither in the cache nor a token for.
    """
    check_path(path)
    if gated and checkpoint_place(path, revision) is None:
        from huggingface_hub import get_token

        if get_token() is None:
            raise SkipbenchError(
                f"{path!r} is gated: accept its licence at https://huggingface.co/{path}, then "
                "`hf auth login` (or HF_TOKEN=...); this machine has no token"
            )


def check_reachable(path: str, revision: str | None) -> None:
    """Raises SkipbenchError where the hub, which has the checkpoint, cannot be reached."""
    if hub_offline() or hub_unreachable():
        why = "HF_HUB_OFFLINE is set" if hub_offline() else "the hub cannot be reached"
        raise SkipbenchError(
            f"{path!r} at revision {revision or 'main'} is not in the hub's cache, and {why}. "
            "Where there is a network, `python -m skipbench data MODEL` fetches it; "
            "model.path=FOLDER takes a local checkpoint"
        )


@contextmanager
def explained(path: str, revision: str | None = None) -> Iterator[None]:
    """Raises any error of the libraries that read a checkpoint, which check no file, as a
    SkipbenchError that says why; also a panic of tokenizers, which is no `Exception`.
    """
    try:
        yield
    except SkipbenchError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        if not Path(path).exists():
            check_reachable(path, revision)
        text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise SkipbenchError(f"cannot load the model in {path!r}: {text}") from error


def check_form(model: Model, engine: str) -> None:
    """Raises SkipbenchError where the settings of a checkpoint contradict each other, or need a
    package that is missing.
    """
    path, quantization, device = model.path, model.quantization, model.device
    check_path(path)
    if quantization != "none" and engine != "reference":
        raise SkipbenchError(f"model.quantization={quantization} needs engine=reference")
    if quantization == "int8" and device == "cpu":
        # there (bitsandbytes 0.50.2) a row's logits moved by 0.3 with the number of rows beside it
        raise SkipbenchError(
            "model.quantization=int8 needs a GPU; use model.device=cuda or auto, or fp4 or nf4"
        )
    needed = {"bitsandbytes": "quant"} if quantization != "none" else {}
    if needed or not device.startswith(("cpu", "cuda")):
        needed["accelerate"] = "big"
    for package, extra in needed.items():
        if importlib.util.find_spec(package) is None:
            raise SkipbenchError(
                f"model.device={device} with quantization={quantization} needs {package}: "
                f"pip install 'skipbench[{extra}]'"
            )
