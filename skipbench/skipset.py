"""Skip sets that are known by rule: plans of a draft pass that leave sub-layers out."""

import random
from collections.abc import Iterable

from skipbench.draft_plan import DraftPlan
from skipbench.errors import SkipbenchError


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
