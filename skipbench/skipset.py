"""`SkipSet`: the sub-layers that a draft leaves out; and the sets that are known by rule.

A model of `L` layers has `S = 2L` sub-layers: `2i` is attention of layer `i`, `2i + 1` its MLP. The
text form names layers, not sub-layers: `attn:1,3-5;mlp:2,4`, either part optional, empty for no
skipping.
"""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from skipbench.errors import SkipbenchError

FAINTEST, STRONGEST = 0.001, 0.02
"""Outputs of the redundant sub-layers of a deepened model, over those of the sub-layers copied."""
_PART = re.compile(r"(attn|mlp):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")


@dataclass(frozen=True)
class SkipSet:
    """Skipped sub-layers of a model with `layers` layers.

    >>> skip = SkipSet.parse("attn:1,3;mlp:1", layers=4)
    >>> skip.attention, skip.mlp, skip.ratio
    ((1, 3), (1,), 0.375)
    >>> sorted(skip.skipped)  # attention of layer i is 2i, its MLP 2i + 1
    [2, 3, 6]
    >>> str(skip)
    'attn:1,3;mlp:1'

    Raises SkipbenchError for an index outside `0..2 * layers - 1`.
    """

    layers: int
    skipped: frozenset[int]

    def __post_init__(self) -> None:
        if outside := sorted(s for s in self.skipped if not 0 <= s < 2 * self.layers):
            raise SkipbenchError(
                f"skip set names sub-layers {outside}, but a model of {self.layers} layers has 0 "
                f"to {2 * self.layers - 1} (attention of layer i is 2i, its MLP 2i + 1)"
            )

    @classmethod
    def of(cls, layers: int, skipped: Iterable[int] = ()) -> "SkipSet":
        return cls(layers, frozenset(skipped))

    @classmethod
    def of_layers(cls, layers: int, skipped: Iterable[int]) -> "SkipSet":
        """Skips whole layers: attention and MLP."""
        return cls.of(layers, (s for i in skipped for s in (2 * i, 2 * i + 1)))

    @classmethod
    def parse(cls, text: str, layers: int) -> "SkipSet":
        """Reads `attn:1,3-5;mlp:2`. Raises SkipbenchError for other text or unknown layers."""
        skipped = set[int]()
        for part in filter(None, text.replace(" ", "").split(";")):
            if (match := _PART.fullmatch(part)) is None:
                raise SkipbenchError(
                    f"skip set {text!r}: cannot read {part!r}; write it like 'attn:1,3-5;mlp:2,4'"
                )
            kind = 0 if match[1] == "attn" else 1
            for item in match[2].split(","):
                first, _, last = item.partition("-")
                if last and int(last) < int(first):
                    raise SkipbenchError(
                        f"skip set {text!r}: cannot read {item!r}; a range goes from low to high"
                    )
                skipped |= {2 * i + kind for i in range(int(first), int(last or first) + 1)}
        return cls(layers, frozenset(skipped))

    def __str__(self) -> str:
        kinds = {"attn": self.attention, "mlp": self.mlp}
        return ";".join(f"{kind}:{','.join(map(str, of))}" for kind, of in kinds.items() if of)

    @property
    def attention(self) -> tuple[int, ...]:
        """Layers whose attention is skipped."""
        return tuple(sorted(s // 2 for s in self.skipped if s % 2 == 0))

    @property
    def mlp(self) -> tuple[int, ...]:
        """Layers whose MLP is skipped."""
        return tuple(sorted(s // 2 for s in self.skipped if s % 2 == 1))

    @property
    def ratio(self) -> float:
        """Share of the sub-layers that is skipped, `r` in SWIFT."""
        return len(self.skipped) / (2 * self.layers)


def fixed_set(
    kind: str,
    layers: int,
    ratio: float,
    seed: int = 0,
    attention: float | None = None,
    mlp: float | None = None,
) -> SkipSet:
    """The fixed strategies of Self-SD Table 8 and SWIFT Figure 2.

    `uniform` spreads the skipped layers evenly over the inner layers, keeping the first and the
    last; `first`, `middle` and `last` skip one block of neighbours; `random` draws with `seed`.
    With a `ratio` alone whole layers are skipped, by `random` single sub-layers; with the shares
    `attention` and `mlp` as many blocks of each kind, placed by the same rule.

    Raises SkipbenchError for an unknown kind, a share that skips none or all, or only one share.
    """
    draw = random.Random(seed)

    def placed(total: int, share: float) -> Iterable[int]:
        count = round(total * share)
        if not 0 < count < total:
            raise SkipbenchError(
                f"ratio={share} skips {count} of {total} layers; choose a ratio that skips some "
                "and not all"
            )
        starts = {"first": 0, "middle": (total - count) // 2, "last": total - count}
        if kind in starts:
            return range(starts[kind], starts[kind] + count)
        if kind == "random":
            return draw.sample(range(total), count)
        if kind != "uniform":
            known = "uniform, first, middle, last, random"
            raise SkipbenchError(f"unknown fixed set {kind=}; known: {known}")
        inner = max(total - 2, 1)
        count = min(count, inner)
        return [1 + int((i + 0.5) * inner / count) for i in range(count)]

    match attention, mlp:
        case None, None if kind == "random":
            return SkipSet.of(layers, placed(2 * layers, ratio))
        case None, None:
            return SkipSet.of_layers(layers, placed(layers, ratio))
        case (None, _) | (_, None):
            raise SkipbenchError(
                f"{attention=}, {mlp=}: wanted both shares, of attention and of MLP blocks, or none"
            )
        case of_attention, of_mlp:
            both = placed(layers, of_attention), placed(layers, of_mlp)
            return SkipSet.of(layers, [2 * i + n for n, part in enumerate(both) for i in part])


def planted_set(layers: int, share: float, seed: int) -> SkipSet:
    """The sub-layers that are redundant in a `planted` model: `share` of all, drawn from all layers
    but the first and the last.

    Whole layers as far as the number goes, so that methods that skip layers can find them too; an
    odd number ends with the attention of one more. Raises SkipbenchError for a share that leaves
    none, or does not fit between the first and the last layer.
    """
    count = round(2 * layers * share)
    if not 0 < count <= 2 * (layers - 2):
        raise SkipbenchError(
            f"model.redundant={share} of {2 * layers} sub-layers is {count}; wanted 1 to "
            f"{max(2 * (layers - 2), 0)}, since the first and the last layer are kept"
        )
    order = random.Random(seed).sample(range(1, layers - 1), layers - 2)
    return SkipSet.of(layers, [s for i in order for s in (2 * i, 2 * i + 1)][:count])


class DeepenedLayer(NamedTuple):
    """A copy of layer `own`, with the sizes of both outputs, 1.0 for those of the checkpoint."""

    own: int
    attention: float
    mlp: float


def deepened_layers(layers: int, share: float, seed: int) -> list[DeepenedLayer]:
    """The layers of a model with known redundant sub-layers: `share` of its own layers become two.

    Of the two layers one attention and one MLP are redundant: both of the first, both of the
    second, or the MLP of the first and the attention of the second. The first and the last
    layer of the result are the model's own. A quarter of the redundant sub-layers adds exactly
    nothing, the others between `FAINTEST` and `STRONGEST` of what the own one adds, in equal
    ratios.

    Raises SkipbenchError for a share that is not above 0 and at most 1, or adds no layer.
    """
    count = round(layers * share)
    if not 0 < share <= 1 or count < 1:
        raise SkipbenchError(
            f"model.deepened={share} of {layers} layers; wanted above 0, at most 1, and one layer "
            "or more"
        )
    rng = random.Random(seed)
    doubled = set(rng.sample(range(layers), count))
    nothing = count // 2
    faint = 2 * count - nothing
    ratio = (STRONGEST / FAINTEST) ** (1 / max(faint - 1, 1))
    sizes = [0.0] * nothing + [FAINTEST * ratio**i for i in range(faint)]
    rng.shuffle(sizes)
    deeper = []
    for own in range(layers):
        pairs = [(1.0, 1.0)]
        if own in doubled:
            attention, mlp = sizes.pop(), sizes.pop()
            after, before = [*pairs, (attention, mlp)], [(attention, mlp), *pairs]
            pairs = rng.choice([after, before, [(1.0, mlp), (attention, 1.0)]])
            pairs = after if own == 0 else before if own == layers - 1 else pairs
        deeper += [DeepenedLayer(own, *pair) for pair in pairs]
    return deeper


def deepened_set(layers: int, share: float, seed: int) -> SkipSet:
    """The redundant sub-layers of `deepened_layers`, in the deepened model's numbering."""
    deeper = deepened_layers(layers, share, seed)
    sizes = [size for layer in deeper for size in (layer.attention, layer.mlp)]
    return SkipSet.of(len(deeper), [s for s, size in enumerate(sizes) if size != 1.0])
