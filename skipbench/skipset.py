"""Skip sets that are known by rule: plans of a draft pass that leave sub-layers out."""

import random
from collections.abc import Iterable
from typing import NamedTuple

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError

FAINTEST, STRONGEST = 0.001, 0.02
"""Outputs of the redundant sub-layers of a deepened model, over those of the sub-layers copied."""


def fixed_set(
    kind: str,
    layers: int,
    ratio: float,
    seed: int = 0,
    attention: float | None = None,
    mlp: float | None = None,
) -> DraftPlan:
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
            return DraftPlan.of(layers, placed(2 * layers, ratio))
        case None, None:
            return DraftPlan.of_layers(layers, placed(layers, ratio))
        case (None, _) | (_, None):
            raise SkipbenchError(
                f"{attention=}, {mlp=}: wanted both shares, of attention and of MLP blocks, or none"
            )
        case of_attention, of_mlp:
            both = placed(layers, of_attention), placed(layers, of_mlp)
            return DraftPlan.of(layers, [2 * i + n for n, part in enumerate(both) for i in part])


def planted_set(layers: int, share: float, seed: int) -> DraftPlan:
    """The sub-layers that no token of a `planted` model needs: `share` of all, drawn from all
    layers but the first and the last.

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
    return DraftPlan.of(layers, [s for i in order for s in (2 * i, 2 * i + 1)][:count])


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


def deepened_set(layers: int, share: float, seed: int) -> DraftPlan:
    """The redundant sub-layers of `deepened_layers`, in the deepened model's numbering."""
    deeper = deepened_layers(layers, share, seed)
    sizes = [size for layer in deeper for size in (layer.attention, layer.mlp)]
    return DraftPlan.of(len(deeper), [s for s, size in enumerate(sizes) if size != 1.0])
