"""Token Recycling: Turning Trash into Treasure: Accelerating Inference of Large Language Models
with Token Recycling, arXiv:2408.08696.

A matrix holds, for every token, the target's k most likely successors as last verified. The draft
is a tree of fixed shape filled from it, rank by rank; every verified row, of accepted and rejected
nodes alike, refreshes the matrix, which goes from prompt to prompt. A smaller tree has the nodes
that are accepted most often, and can be as large as the measured price of rows allows.

| paper | here | |
|---|---|---|
| adjacency matrix M [V, k] | `successors` | k most likely tokens after a token |
| k | `TOP` | 8 |
| static tree | `TEMPLATE` | 80 nodes, depth 6, template 2.2.2 of the published code |
| | `CHANCES`, `SIZES` | (ours) order of the nodes, and how many of them pay |

Deviations from the paper and its published code, with their switches: docs/methods/recycling.md.
"""

import math
from typing import Annotated

from msgspec import Meta

from skipbench.config.configurable import Positive
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.method import Method
from skipbench.decode.priced import Priced
from skipbench.decode.sources import Successors

TOP = 8
# Children per path of ranks, of the paths that have any: the published template.
CHILDREN = {
    "": 8,
    **{"0": 8, "1": 4, "2": 3, "3": 2, "4": 1, "5": 1, "6": 1, "7": 1},
    **{"00": 8, "01": 3, "02": 2, "03": 1, "04": 1, "05": 1, "06": 1, "07": 1},
    **{"10": 2, "11": 1, "20": 1, "30": 1, "40": 1, "50": 1},
    **{"000": 5, "001": 2, "002": 1, "003": 1, "004": 1, "010": 1, "020": 1},
    **{"100": 1, "200": 1, "300": 1},
    **{"0000": 3, "0001": 1, "0002": 1, "0010": 1, "0100": 1, "1000": 1},
    **{"00000": 2, "00010": 1},
}
CHANCES = (0.38, 0.086, 0.063, 0.042, 0.021, 0.016, 0.007, 0.007)
"""Share of the nodes of each rank that is accepted where the parent is: on `dataset=tuning`
(docs/methods/README.md).
"""
PRODUCTS = {
    f"{path}{rank}": math.prod(CHANCES[int(r)] for r in f"{path}{rank}")
    for path, children in CHILDREN.items()
    for rank in range(children)
}
NODES = sorted(PRODUCTS, key=PRODUCTS.__getitem__, reverse=True)
TEMPLATE = [(NODES.index(path[:-1]) if path[1:] else -1, int(path[-1])) for path in NODES]
"""`(parent, rank)` of every node of the static tree, the likeliest first."""


SIZES = {4: (1.324, 3.1), 8: (1.403, 5.2), 16: (1.598, 9.6), 31: (1.774, 18.5)}
"""Tokens and mean rows per round by number of nodes, counted as `CHANCES`."""


class Recycling(Priced, Method):
    """Drafts from successors that were seen before.

    >>> method = Recycling(name="recycling", nodes=8)
    >>> method.begin(state := State(None, [3, 1, 5]))
    >>> method.successors.update(-1, 5, top=[9, 2])
    >>> method.propose(state, budget=7).tokens
    [9, 2]
    """

    nodes: Annotated[int, Meta(ge=0, le=len(TEMPLATE))] = 80
    """Maximum nodes of the static tree, the likeliest ones; 0: as many of `SIZES` as the price of
    rows allows.
    """
    memory: Positive = 8192
    """Tokens whose successors are kept, those verified last; the published code keeps all."""

    needs_top_tokens = TOP
    logged, carried = ("filled",), ("successors",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.successors = Successors(self.memory, pairs=False)
        self.needs_latency = not (self.nodes or self.row_prices)

    def begin(self, state: State) -> None:
        super().begin(state)
        self._nodes = self.nodes or self.size_by_price(state, SIZES)

    def propose(self, state: State, budget: int) -> Draft:
        """Leaves out nodes whose successors are not known yet, and their descendants."""
        self._pending, get = state.pending, self.successors.get
        tokens, parents = list[int](), list[int]()
        # node of the template -> node of the draft, its depth and its successors
        placed = {-1: (-1, 0, get(-1, state.pending)[0])}
        for node, (above, rank) in enumerate(TEMPLATE[: self._nodes]):
            parent, depth, top = placed.get(above, (-1, 0, []))
            if depth < budget and rank < len(top):
                placed[node] = (len(tokens), depth + 1, get(-1, top[rank])[0])
                tokens.append(top[rank])
                parents.append(parent)
        self.note(filled=len(tokens))
        return Draft(tokens, parents, steps=len(tokens))

    def adapt(self, state: State, verification: Verification) -> None:
        draft, top = verification.draft, verification.top_tokens
        self.successors.learn(-1, self._pending, draft.tokens, draft.parents(), top)
