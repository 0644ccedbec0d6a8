"""`DraftPlan`: what a draft pass leaves out, and the weights that it reads.

A model of `L` layers has `S = 2L` sub-layers: `2i` is attention of layer `i`, `2i + 1` its MLP. The
text form names layers, not sub-layers: `attn:1,3-5;mlp:2` is a skip set, before it `int8` or `int4`
if the rest is read in fewer bits, head included. Empty is the whole model. Verification is always
the full model.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from skipbench.errors import SkipbenchError

VARIANTS = "int8", "int4"
"""Variants of the weights that an engine may make besides the model's own."""
_BLOCKS = re.compile(r"(attn|mlp):(\d{1,4}(?:-\d{1,4})?(?:,\d{1,4}(?:-\d{1,4})?)*)")
EXAMPLE = "'attn:1,3-5;mlp:2,4' or 'int8;attn:1,3'"


@dataclass(frozen=True)
class DraftPlan:
    """A cheaper pass of a model with `layers` layers, over the same K/V cache.

    >>> plan = DraftPlan.parse("attn:1,3;mlp:1", layers=4)
    >>> plan.attention, plan.mlp, plan.ratio
    ((1, 3), (1,), 0.375)
    >>> sorted(plan.skipped)  # attention of layer i is 2i, its MLP 2i + 1
    [2, 3, 6]
    >>> str(plan)
    'attn:1,3;mlp:1'
    >>> str(DraftPlan(4, plan.skipped, "int8"))
    'int8;attn:1,3;mlp:1'

    Raises SkipbenchError for an index outside `0..2 * layers - 1`.
    """

    layers: int
    skipped: frozenset[int] = frozenset()
    variant: str = ""
    """Of `VARIANTS`: the weights of the sub-layers that run, and of the head; empty: their own."""

    def __post_init__(self) -> None:
        if outside := sorted(s for s in self.skipped if not 0 <= s < 2 * self.layers):
            raise SkipbenchError(
                f"skip set names sub-layers {outside}, but a model of {self.layers} layers has 0 "
                f"to {2 * self.layers - 1} (attention of layer i is 2i, its MLP 2i + 1)"
            )

    @classmethod
    def of(cls, layers: int, skipped: Iterable[int] = ()) -> "DraftPlan":
        """Leaves sub-layers out: a skip set."""
        return cls(layers, frozenset(skipped))

    @classmethod
    def of_layers(cls, layers: int, skipped: Iterable[int]) -> "DraftPlan":
        """Skips whole layers: attention and MLP."""
        return cls.of(layers, (s for i in skipped for s in (2 * i, 2 * i + 1)))

    @classmethod
    def parse(cls, text: str, layers: int) -> "DraftPlan":
        """Reads the text form. Raises SkipbenchError for other text or unknown layers."""
        skipped, variant = set[int](), ""
        for part in filter(None, text.replace(" ", "").split(";")):
            if match := _BLOCKS.fullmatch(part):
                skipped.update(2 * i + (match[1] == "mlp") for i in _numbers(match[2], text))
            elif part in VARIANTS:
                variant = part
            else:
                fault = f"skip set {text!r}: cannot read {part!r}"
                raise SkipbenchError(f"{fault}; write it like {EXAMPLE}")
        return cls(layers, frozenset(skipped), variant)

    def __str__(self) -> str:
        kinds = {"attn": self.attention, "mlp": self.mlp}
        blocks = (f"{kind}:{','.join(map(str, of))}" for kind, of in kinds.items() if of)
        return ";".join(filter(None, [self.variant, *blocks]))

    @property
    def whole(self) -> bool:
        """True if every sub-layer runs as in the full model."""
        return not (self.skipped or self.variant)

    @property
    def attention(self) -> tuple[int, ...]:
        """Layers whose attention is skipped."""
        return _layers(self.skipped, 0)

    @property
    def mlp(self) -> tuple[int, ...]:
        """Layers whose MLP is skipped."""
        return _layers(self.skipped, 1)

    @property
    def ratio(self) -> float:
        """Share of the sub-layers that is skipped, `r` in SWIFT."""
        return len(self.skipped) / (2 * self.layers)


def _layers(sublayers: Iterable[int], kind: int) -> tuple[int, ...]:
    """Layers of the attention (kind 0) or MLP (1) blocks among sub-layers."""
    return tuple(sorted(s // 2 for s in sublayers if s % 2 == kind))


def _numbers(items: str, text: str) -> Iterable[int]:
    """`1,3-5` -> 1, 3, 4, 5."""
    for item in items.split(","):
        first, _, last = item.partition("-")
        if last and int(last) < int(first):
            raise SkipbenchError(
                f"skip set {text!r}: cannot read {item!r}; a range goes from low to high"
            )
        yield from range(int(first), int(last or first) + 1)
