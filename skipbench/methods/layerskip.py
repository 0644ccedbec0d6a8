"""LayerSkip: Enabling Early Exit Inference and Self-Speculative Decoding, arXiv:2404.16710, section
4.3 (inference only).

The draft is the model's first E layers with its final norm and head. Its states and K/V are the
target's, so that verification runs the remaining layers only (the paper's KVQ cache). Meant for
checkpoints trained with layer dropout and an early-exit loss: on others the first layers predict
little.

| paper | here | |
|---|---|---|
| E | `exit_layer` | layers of the draft, 1 to L - 1 |
| d | `stop.max_steps` | speculated tokens per round |

Deviations from the paper and its published code, with their switches: docs/methods/layerskip.md.
"""

from skipbench.decode.drafting import SkipMethod
from skipbench.errors import SkipbenchError

PUBLISHED_EXIT = 8


class LayerSkip(SkipMethod):
    """Static early exit.

    >>> from skipbench.decode.stopping import Fixed
    >>> method = LayerSkip(name="layerskip", layers=6, exit_layer=4, stop=Fixed(max_steps=6))
    >>> str(method.skip), method.exit_sublayer
    ('attn:4,5;mlp:4,5', 8)
    """

    exit_layer: int | None = None
    """Layers that draft, 1 to L - 1; null for 8, or half of a model of 8 layers or fewer."""
    share: bool = True
    """Verification continues from the draft's early states; false computes them anew."""

    def __post_init__(self) -> None:
        super().__post_init__()
        layers, exit_layer = self.layers, self.exit_layer
        if exit_layer is None:
            exit_layer = PUBLISHED_EXIT if layers > PUBLISHED_EXIT else layers // 2
        if not 1 <= exit_layer < layers:
            raise SkipbenchError(
                f"layerskip: {exit_layer=}; a model of {layers} layers allows 1 to {layers - 1}"
            )
        if self.tree and self.share:
            raise SkipbenchError(
                f"layerskip: method.tree={list(self.tree)} needs method.share=false: the nodes of "
                "a tree have no early states to share"
            )
        if self.share:
            self.check_states_shared()
        self.skip = self.plan(range(2 * exit_layer, 2 * layers))
        self.exit_sublayer = 2 * exit_layer if self.share else None
