"""`Shape`: the sizes of a decoder, and the parameters and bytes that follow, without weights."""

import re

from omegaconf import MISSING

from skipbench.config.configurable import Settings
from skipbench.errors import SkipbenchError

BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0}
# in 4 bits every 64 weights share a scale in float32
QUANTIZED = {"int8": 1.0, "fp4": 0.5625, "nf4": 0.5625}
ALIASES = {"llama3-1b": "llama3.2-1b", "llama3-3b": "llama3.2-3b"}
HEAD_DIM = 64  # of shapes given as LAYERSxHIDDEN


class Shape(Settings, frozen=True):
    """A decoder of Llama's form; `tied`: its head is the embedding."""

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

    @property
    def width(self) -> int:
        """Size of one head."""
        return self.head_dim or self.hidden // self.heads

    @property
    def layer_parameters(self) -> int:
        """Parameters of one layer: four projections of attention, three of the MLP, its norms."""
        attention = 2 * self.hidden * self.width * (self.heads + self.kv_heads)
        norms = 2 * self.hidden + (2 * self.width if self.family == "qwen3" else 0)
        return attention + 3 * self.hidden * self.intermediate + norms

    @property
    def parameters(self) -> int:
        tables = (1 if self.tied else 2) * self.vocab * self.hidden
        return tables + self.hidden + self.layers * self.layer_parameters

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Layers, parameters, and bytes of K/V per token in bfloat16: models that agree in these
        read the same bytes per pass.
        """
        return self.layers, self.parameters, self.cache_bytes("bfloat16", 1)

    def weight_bytes(self, dtype: str, quantization: str = "none") -> int:
        """Bytes of the weights; the embedding and the head keep `dtype`."""
        layers, full = self.layers * self.layer_parameters, BYTES[dtype]
        rest = self.parameters - layers
        return int(layers * QUANTIZED.get(quantization, full) + rest * full)

    def cache_bytes(self, dtype: str, rows: int) -> int:
        """Bytes of keys and values of `rows` tokens."""
        return int(2 * self.layers * self.kv_heads * self.width * rows * BYTES[dtype])


def square(text: str) -> Shape | None:
    """The shape of `24x256`, LAYERSxHIDDEN, in Llama's proportions; `None` for other text.

    Raises SkipbenchError for a hidden size that heads of 64 do not divide.
    """
    if not (found := re.fullmatch(r"(\d+)x(\d+)", text)):
        return None
    depth, size = map(int, found.groups())
    if depth < 1 or size < HEAD_DIM or size % HEAD_DIM:
        raise SkipbenchError(
            f"shape {text!r}: wanted LAYERSxHIDDEN with 1 layer or more and a multiple of "
            f"{HEAD_DIM}, as 24x256"
        )
    inner = -(-8 * size // 3 // HEAD_DIM) * HEAD_DIM  # two thirds of 4 D, rounded up
    return Shape(depth, size, size // HEAD_DIM, size // HEAD_DIM, inner, 32000, 4096)
