"""Schemas of `conf/model`."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from omegaconf import MISSING


class Dtype(Enum):
    """Precision of weights and cache."""

    float32 = "float32"
    bfloat16 = "bfloat16"
    float16 = "float16"


class Quantization(Enum):
    """Weights in fewer bits than `dtype`, through bitsandbytes."""

    none = "none"
    int8 = "int8"
    fp4 = "fp4"
    nf4 = "nf4"


@dataclass
class Calibration:
    """Texts by which `sparsity` weighs the inputs: at most so many rows of the run's dataset, each cut behind so many tokens.

    They are drawn with another seed than the rows that are decoded: of a generator they are others, of a file some may be the
    same. Sun et al. take 128 sequences of C4, as long as the model's context.
    """

    rows: int = 128
    tokens: int = 2048


@dataclass
class Architecture:
    """Sizes of a checkpoint as its own config.json has them; loading compares the two."""

    layers: int = MISSING
    hidden: int = MISSING
    heads: int = MISSING
    kv_heads: int = MISSING
    intermediate: int = MISSING
    vocab: int = MISSING
    context: int = MISSING
    head_dim: int | None = None
    tied: bool = False
    family: str = "llama"


@dataclass
class Model:
    name: str = MISSING
    path: str = MISSING
    revision: str | None = None
    dtype: Dtype = Dtype.float32
    device: str = "cpu"
    allow_pickle: bool = False
    bodies: str | None = None
    skip_sets: str | None = None
    sets: dict[str, str | None] = field(default_factory=dict)
    """By method: the skip set that was published for this model, used until a search here finds another."""
    quantization: Quantization = Quantization.none
    sparsity: str = "none"
    """`none`; by Wanda `wanda-0.5`, the share that goes, or `wanda-2:4`, 2 of every 4 stay. Draft and target are sparsified."""
    calibration: Calibration = field(default_factory=Calibration)
    gated: bool = False
    architecture: Architecture | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    """By method: the values that differ for this model; the files of `conf/method` read them, and the command line goes before."""


@dataclass
class HubModel(Model):
    """A checkpoint of a paper: on a GPU, in the half precision of their tables (SWIFT C, CLaSp 4; Self-SD used bfloat16)."""

    dtype: Dtype = Dtype.float16
    device: str = "cuda"


@dataclass
class PlantedModel(Model):
    shape: str = "llama3-1b"
    redundant: float = 0.5
    seed: int = 0
    dtype: Dtype = Dtype.bfloat16
