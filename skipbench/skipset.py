"""`SkipSet`: the sub-layers that a draft leaves out.

A model of `L` layers has `S = 2L` sub-layers: `2i` is attention of layer `i`, `2i + 1` its MLP. The
text form names layers, not sub-layers: `attn:1,3-5;mlp:2,4`, either part optional, empty for no
skipping.
"""

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

from skipbench.errors import SkipbenchError

_PART = re.compile(r"(attn|mlp):(\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*)")


@dataclass(frozen=True)
class SkipSet:
    """Skipped sub-layers of a model with `layers` layers.

    Raises:
        SkipbenchError: an index lies outside `0..2 * layers - 1`.
    """

    layers: int
    skipped: frozenset[int]

    def __post_init__(self) -> None:
        outside = sorted(s for s in self.skipped if not 0 <= s < 2 * self.layers)
        if outside:
            raise SkipbenchError(
                f"skip set names sub-layers {outside}, but a model of {self.layers} layers "
                f"has 0 to {2 * self.layers - 1} "
                f"(attention of layer i is 2i, its MLP 2i + 1)"
            )

    @classmethod
    def of(cls, layers: int, skipped: Iterable[int] = ()) -> "SkipSet":
        return cls(layers, frozenset(skipped))

    @classmethod
    def parse(cls, text: str, layers: int) -> "SkipSet":
        """Reads `attn:1,3-5;mlp:2`. Raises SkipbenchError for other text or for a layer that the
        model lacks.
        """
        skipped = set[int]()
        for part in text.replace(" ", "").split(";"):
            if not part:
                continue
            match = _PART.fullmatch(part)
            if match is None:
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
        parts = [
            f"{n}:{','.join(map(str, of))}"
            for n, of in (("attn", self.attention), ("mlp", self.mlp))
            if of
        ]
        return ";".join(parts)

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


def _skip_count(total: int, ratio: float) -> int:
    count = round(total * ratio)
    if not 0 < count < total:
        raise SkipbenchError(
            f"ratio={ratio} skips {count} of {total} layers; choose a ratio that skips some "
            "and not all"
        )
    return count


def fixed_set(kind: str, layers: int, ratio: float, seed: int = 0) -> SkipSet:
    """The fixed strategies of Self-SD Table 8 and SWIFT Figure 2, in whole layers but for `random`.

    `uniform` spreads the skipped layers evenly over the inner layers, keeping the first and the
    last; `first`, `middle` and `last` skip one block of neighbours; `random` draws single
    sub-layers with `seed`.
    """
    if kind == "random":
        count = _skip_count(2 * layers, ratio)
        return SkipSet.of(layers, random.Random(seed).sample(range(2 * layers), count))
    count = _skip_count(layers, ratio)
    match kind:
        case "uniform":
            inner = max(layers - 2, 1)
            count = min(count, inner)
            chosen = (
                {1 + int((i + 0.5) * inner / count) for i in range(count)} if layers > 2 else {1}
            )
        case "first":
            chosen = set(range(count))
        case "middle":
            chosen = set(range((layers - count) // 2, (layers - count) // 2 + count))
        case "last":
            chosen = set(range(layers - count, layers))
        case _:
            raise SkipbenchError(
                f"unknown fixed set {kind=}; known: uniform, first, middle, last, random"
            )
    return SkipSet.of(layers, [s for i in chosen for s in (2 * i, 2 * i + 1)])


def planted_set(layers: int, share: float, seed: int) -> SkipSet:
    """The sub-layers that are redundant in a `planted` model: `share` of all, drawn from all layers
    but the first and the last.

    Whole layers as far as the number goes, so that methods that skip layers can find them too; an
    odd number ends with the attention of one more.

    Raises:
        SkipbenchError: a share that leaves none, or does not fit between the first and the last
            layer.
    """
    count = round(2 * layers * share)
    if not 0 < count <= 2 * (layers - 2):
        raise SkipbenchError(
            f"model.redundant={share} of {2 * layers} sub-layers is {count}; wanted 1 to "
            f"{max(2 * (layers - 2), 0)}, "
            f"since the first and the last layer are kept"
        )
    order = random.Random(seed).sample(range(1, layers - 1), layers - 2)
    return SkipSet.of(layers, [s for i in order for s in (2 * i, 2 * i + 1)][:count])
