"""The captured graphs of one key, and what a key is."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from skipbench.lm.cuda_graphs.buffers import GraphBuffers
from skipbench.lm.cuda_graphs.capture import Replay, Work


class Key(NamedTuple):
    """What is captured anew for another value."""

    rows: int  # of a pass, one of `ROW_STEPS`
    size: int  # cache rows that attention reads, a bucket
    own: bool  # products are our kernels'
    variant: str  # of the weights, empty for the model's own


@dataclass(frozen=True)
class Captured:
    """The graphs of a key.

    Attributes:
        buffers: of the row count, shared by all its keys, as `prepare` is.
        prepare: makes tables and paths of the rows that are loaded, by the work `inputs`.
        works: of the sub-layers, by number.
        sublayers: their replays, none before the first pass that needs one; an MLP's is shared by
            all buckets.
        whole: several sub-layers behind their preparation in one graph, by their numbers: all, and
            sets that are used often; the one used last at the end.
        uses: of sets without a graph.
    """

    key: Key
    buffers: GraphBuffers
    inputs: Work
    prepare: Replay
    works: dict[int, Work]
    sublayers: dict[int, Replay] = field(default_factory=dict)
    whole: dict[tuple[int, ...], Replay] = field(default_factory=dict)
    uses: Counter[tuple[int, ...]] = field(default_factory=Counter)
