"""Checks of a checkpoint's settings and files, and messages for failed loads."""

import importlib.util
import math
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
from skipbench.runs.reading import MOST_BYTES

# no pickled weights, which can run code
FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]
"""Files of a checkpoint that are fetched."""
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
    """Raises SkipbenchError unless a checkpoint's config has the sizes of `shape`.

    The context is left out: checkpoints are published with several limits on it.
    """
    if shape is None:
        return
    pairs = [(k, getattr(shape, k), getattr(config, v)) for k, v in FIELDS.items()]
    if wrong := [f"{k} {wanted}, not {found}" for k, wanted, found in pairs if wanted != found]:
        raise SkipbenchError(
            f"{path!r} is not the model that model.architecture describes: {'; '.join(wrong)}. "
            f"Use model=path model.path={path} for a checkpoint of your own"
        )


MAX_LAYERS = 4096
_SIZES = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads"),
    *("intermediate_size", "vocab_size", "max_position_embeddings", "head_dim"),
)


def check_sizes(path: str, config: Any) -> None:
    """Raises SkipbenchError for a configuration whose numbers no model can have."""
    found = {name: getattr(config, name, None) for name in (*_SIZES, "rms_norm_eps")}
    given: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    epsilon = given.pop("rms_norm_eps", 0.0)  # other norms have another name for it
    wrong = {name: value for name, value in given.items() if type(value) is not int or value < 1}
    if not wrong and given.get("num_hidden_layers", 0) > MAX_LAYERS:
        wrong = {"num_hidden_layers": given["num_hidden_layers"]}
    groups = given.get("num_key_value_heads", 1)
    if not wrong and given.get("num_attention_heads", 0) % groups:
        wrong = {"num_key_value_heads": groups}
    if not isinstance(epsilon, int | float) or not 0 <= epsilon < math.inf:
        wrong["rms_norm_eps"] = epsilon
    if not isinstance(config.tie_word_embeddings, bool):
        wrong["tie_word_embeddings"] = config.tie_word_embeddings
    if wrong:
        listed = ", ".join(f"{name}={value!r}" for name, value in wrong.items())
        raise SkipbenchError(
            f"the configuration of {path!r} has {listed}; wanted whole numbers from 1, at most "
            f"{MAX_LAYERS} layers, heads that divide into num_key_value_heads, a norm's epsilon "
            "from 0, and true or false for tied embeddings"
        )


MOST_JSON = 8 << 20  # bytes of a file beside the weights
LARGE_JSON = ("tokenizer.json", "vocab.json", "model.safetensors.index.json")
"""These have up to 64 MiB: a vocabulary of 262,144 tokens takes 33 MB."""


def missing_weights(folder: Path) -> list[str]:
    """The weight files that a checkpoint's index names, or its only one, and that are not there."""
    return [name for name in weight_names(folder) if not (folder / name).is_file()]


def weight_names(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    return indexed(index) if index.is_file() else ["model.safetensors"]


def check_files(path: str) -> None:
    """Raises SkipbenchError for a JSON file of a folder that is too large to be read, and an index
    of weights as `indexed`.
    """
    for file in sorted(Path(path).glob("*.json")):
        most = MOST_BYTES if file.name in LARGE_JSON else MOST_JSON
        if not file.is_file() or file.stat().st_size > most:
            raise SkipbenchError(f"{file} is no file of at most {most} bytes; fetch it again")
        if file.name.endswith(".index.json"):
            indexed(file)


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
        "there from the model that it was trained from, or use tokenizer.save_pretrained(FOLDER)"
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
    if model.tensor_parallel_size > 1 and device == "auto":  # no layers are spread
        device = "cuda"
    check_path(path)
    if model.deepened:  # where it is not here, this says so before weights are read
        load_extension("checkpoint", "deepened")
    if (is_gguf(path) or model.deepened) and (quantization != "none" or device == "auto"):
        gguf = f"model.path={path}, a GGUF file,"
        what = f"model.deepened={model.deepened}" if model.deepened else gguf
        raise SkipbenchError(
            f"{what} needs weights in model.dtype on one device; leave out model.quantization and "
            "model.device=auto"
        )
    if quantization != "none" and engine != "reference":
        raise SkipbenchError(
            f"model.quantization={quantization} needs engine=reference: engine={engine} "
            "computes with the weights itself"
        )
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
