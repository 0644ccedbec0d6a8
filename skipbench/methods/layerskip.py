"""LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding, arXiv:2404.16710, section
4.3 (inference only).

The draft is the model's first E layers with its own final norm and head. Its states and K/V are the
target's own, so that verification runs the remaining layers only (the paper's KVQ cache). Meant for
checkpoints trained with layer dropout and an early-exit loss: on others the first layers predict
little.

| paper | here | |
|---|---|---|
| E | `exit_layer` | layers of the draft, 1 to L - 1 |
| d | `stop.max_steps` | speculated tokens per round |

Deviations from the paper and its published code, with their switches: docs/methods/layerskip.md.
"""

from collections.abc import Sequence

from skipbench.decode.drafting import Drafter
from skipbench.decode.stopping import StopRule
from skipbench.errors import SkipbenchError
from skipbench.methods.fixed import FixedSet
from skipbench.skipset import SkipSet

PUBLISHED_EXIT = 8


def layerskip(
    layers: int,
    name: str,
    stop: StopRule,
    exit_layer: int | None = None,
    share: bool = True,
    tree: Sequence[int] = (),
) -> FixedSet:
    """Static early exit.

    Args:
        layers: L, decoder layers of the model.
        name: name of the method in records and tables.
        stop: when a chain of draft steps ends; chosen by `stop@method.stop`.
        exit_layer: layers that draft; null for 8, or half of a model of 8 layers or fewer.
        share: verification goes on from the draft's early states; false computes them anew.
        tree: children per node for a confidence up to 0.5, up to 0.8, up to 0.95 and above, the
            first choice included, such as [10, 5, 3, 1]; empty drafts a chain.

    Raises:
        SkipbenchError: an exit beyond the model, or a tree over shared layers.
    """
    if exit_layer is None:
        exit_layer = PUBLISHED_EXIT if layers > PUBLISHED_EXIT else layers // 2
    if not 1 <= exit_layer < layers:
        raise SkipbenchError(
            f"layerskip: {exit_layer=}; a model of {layers} layers allows 1 to {layers - 1}"
        )
    if tree and share:
        raise SkipbenchError(
            f"layerskip: method.tree={list(tree)} needs method.share=false: the nodes of a "
            "tree have no early states to share"
        )
    skip = SkipSet.of(layers, range(2 * exit_layer, 2 * layers))
    return FixedSet(
        name, skip, Drafter(stop, tree), exit_sublayer=2 * exit_layer if share else None
    )
