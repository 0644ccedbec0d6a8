"""Schemas of `conf/model`."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from omegaconf import MISSING

from skipbench.config.architecture import Shape
from skipbench.errors import SkipbenchError


class Dtype(StrEnum):
    """Precision of weights and cache."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Quantization(StrEnum):
    """Weights in fewer bits than `dtype`, through bitsandbytes."""

    none = "none"
    int8 = "int8"
    fp4 = "fp4"
    nf4 = "nf4"


@dataclass(frozen=True)
class Calibration:
    """Texts by which `sparsity` weighs the inputs: at most so many rows of the run's dataset, each
    cut behind so many tokens.

    They are drawn with another seed than the rows that are decoded: of a generator they are others,
    of a file some may be the same. Sun et al. take 128 sequences of C4, as long as the model's
    context.
    """

    rows: int = 128
    """Most rows of the dataset."""
    tokens: int = 2048
    """Tokens per row."""


@dataclass(frozen=True)
class Model:
    name: str = MISSING
    """Its name in records and tables."""
    path: str = MISSING
    """A folder with a Hugging Face checkpoint, or a hub id."""
    revision: str | None = None
    """Commit, branch or tag of the hub repository."""
    dtype: Dtype = Dtype.float32
    """Precision of weights and of the cache."""
    device: str = "cpu"
    """cpu, cuda, cuda:N, or auto to spread the layers over several devices (extra `big`)."""
    allow_pickle: bool = False
    """Also loads .bin weights, which can run code. Code of the checkpoint itself is never run."""
    bodies: str | None = None
    """Fingerprints of the answers seen in training (.npy), by which mini datasets label their
    rows.
    """
    skip_sets: str | None = None
    """A JSON file of skip sets by method that comes with the checkpoint."""
    sets: dict[str, str | None] = field(default_factory=dict)
    """By method: the skip set that was published for this model, used until a search here finds
    another.
    """
    quantization: Quantization = Quantization.none
    """Weights in fewer bits, for draft and target (extra `quant`)."""
    sparsity: str = "none"
    """`none`; by Wanda `wanda-0.5`, the share that goes, or `wanda-2:4`, 2 of every 4 stay. Draft
    and target are sparsified.
    """
    calibration: Calibration = field(default_factory=Calibration)
    """Texts by which `sparsity` weighs the inputs."""
    gated: bool = False
    """The hub asks for an account and an accepted licence."""
    architecture: Shape | None = None
    """Sizes as the checkpoint's own config.json has them; loading compares the two."""
    settings: dict[str, Any] = field(default_factory=dict)
    """By method: the values that differ for this model; the files of `conf/method` read them, and
    the command line goes before.
    """


@dataclass(frozen=True)
class HubModel(Model):
    """A checkpoint of a paper: on a GPU, in the half precision of their tables (SWIFT C, CLaSp 4;
    Self-SD used bfloat16).
    """

    dtype: Dtype = Dtype.float16
    device: str = "cuda"


@dataclass(frozen=True)
class PlantedModel(Model):
    shape: str = "llama3-1b"
    """Architecture of the random model: a model of conf/model, or LAYERSxHIDDEN, such as 24x256."""
    redundant: float = 0.5
    """Share of sub-layers that change the output little, and so can be skipped."""
    seed: int = 0
    """Seed of the weights and of the choice of redundant sub-layers."""
    dtype: Dtype = Dtype.bfloat16


def check_path(path: str) -> None:
    """Raises SkipbenchError for a path of a checkpoint that is no folder here and cannot be an id
    on the hub.
    """
    if not Path(path).is_dir() and (path.startswith((".", "/")) or path.count("/") != 1):
        raise SkipbenchError(
            f"model.path={path!r} is neither a folder nor a hub id like 'owner/name'"
        )
