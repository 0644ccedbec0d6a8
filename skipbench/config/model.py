"""Schemas of `conf/model`."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from omegaconf import MISSING

from skipbench.config.architecture import Shape
from skipbench.config.configurable import Positive, Settings
from skipbench.config.paths import cache_folder
from skipbench.errors import SkipbenchError

Dtype = Literal["float32", "bfloat16", "float16"]


class Calibration(Settings, frozen=True):
    """Texts by which `sparsity` weighs the inputs, of the run's dataset by another seed: of a file
    some may be among those decoded. Sun et al.: 128 sequences of C4, each a context long.
    """

    rows: Positive = 128
    """Most rows of the dataset."""
    tokens: Positive = 2048
    """Tokens per row."""


class Model(Settings, frozen=True):
    FETCHED_BY: ClassVar[str] = ""  # name of an extension of kind `checkpoint`; empty: the hub
    name: str = MISSING
    """Its name in records and tables."""
    path: str = MISSING
    """A folder with a Hugging Face checkpoint, a GGUF file, or a hub id."""
    revision: str | None = None
    """Commit, branch or tag of the hub repository."""
    dtype: Dtype = "float32"
    """Precision of weights and of the cache."""
    device: str = "cpu"
    """cpu, cuda, cuda:N, or auto to spread the layers over several devices (extra `big`)."""
    allow_pickle: bool = False
    """Also loads .bin weights, which can run code. Code of the checkpoint itself is never run."""
    skip_sets: str | None = None
    """A JSON file of skip sets by method that comes with the checkpoint."""
    sets: dict[str, str | None] = {}
    """By method: the skip set published for this model, until a search here finds another."""
    quantization: Literal["none", "int8", "fp4", "nf4"] = "none"
    """Weights in fewer bits than `dtype`, for draft and target (bitsandbytes; extra `quant`)."""
    sparsity: str = "none"
    """`none`; by Wanda `wanda-0.5`, the share that goes, or `wanda-2:4`, 2 of every 4 stay.

    Draft and target are sparsified.
    """
    calibration: Calibration = Calibration()
    """Texts by which `sparsity` weighs the inputs."""
    gated: bool = False
    """The hub asks for an account and an accepted licence."""
    architecture: Shape | None = None
    """Sizes as the checkpoint's own config.json has them; loading compares the two."""
    strict: bool | None = False
    """Default of `engine.strict`; null: true where this machine can keep it."""
    settings: dict[str, Any] = {}
    """By method: values that differ for this model; the command line goes before."""


class HubModel(Model, frozen=True):
    """A checkpoint of a paper, in the precision of SWIFT (C) and CLaSp (4); Self-SD: bfloat16."""

    dtype: Dtype = "float16"
    device: str = "cuda"


class PlantedModel(Model, frozen=True):
    shape: str = "llama3-1b"
    """Architecture to make: that of a model of conf/model, or LAYERSxHIDDEN, such as 24x256."""
    redundant: float = 0.5
    """Share of sub-layers that no token needs, and so can be skipped."""
    seed: int = 0
    """Seed of the weights, the text, and the strengths of sub-layers."""
    dtype: Dtype = "bfloat16"


def is_gguf(path: str) -> bool:
    """True for the name of a GGUF file, there or not."""
    return path.endswith(".gguf")


def check_path(path: str, named: str = "model.path") -> None:
    """Raises SkipbenchError for a path, which the message calls `named`, that is no checkpoint here
    and cannot be an id on the hub.
    """
    folder = Path(path)
    if is_gguf(path):
        if not folder.is_file():
            raise SkipbenchError(f"{named}={path!r}: no such file")
    elif folder.is_dir():
        if not (folder / "config.json").is_file():
            names = sorted(entry.name for entry in folder.iterdir())
            below = [n for n in names if (folder / n / "config.json").is_file()]
            if give := [*below, *filter(is_gguf, names)][:5]:
                raise SkipbenchError(
                    f"{named}={path!r} is no checkpoint: it has no config.json, but holds "
                    f"{', '.join(give)}; give one of them"
                )
            held = f"it holds {', '.join(names[:5])}" if names else "it is empty"
            raise SkipbenchError(
                f"{named}={path!r} is no checkpoint: it has no config.json ({held}). Wanted: what "
                "`save_pretrained` writes, config.json, *.safetensors and the tokenizer's files"
            )
    elif path.startswith((".", "/", "~")) or path.count("/") != 1:
        fetch = "; `python -m skipbench data MODEL` fetches it"
        raise SkipbenchError(
            f"{named}={path!r} is neither a folder, nor a .gguf file, nor a hub id like "
            f"'owner/name'{fetch if path.startswith(str(cache_folder())) else ''}"
        )
