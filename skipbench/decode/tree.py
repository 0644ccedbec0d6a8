"""Growing a draft tree node by node, the likeliest path first, as far as its price allows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import count
from typing import Any

Child = tuple[float, int, Any, Any]
"""Chance given that the parent is accepted, token, kind (for counters), and state for `expand`."""
Expand = Callable[[list[int], Any], Sequence[Child]]
"""Tokens after the pending one up to a node, and the node's state -> its children, the likeliest
first.
"""


@dataclass
class Tree:
    """Flat arrays over the nodes, parents before children, likelier paths before others.

    Attributes:
        tokens, parents: as in `Draft`.
        kinds: kind of every node, from `expand`.
        products: product of the chances along the path of every node.
        expected: expected number of accepted nodes.
    """

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    kinds: list[Any] = field(default_factory=list)
    products: list[float] = field(default_factory=list)
    expected: float = 0.0

    def add(self, token: int, parent: int, kind: Any, product: float) -> int:
        """Appends a node; returns its index."""
        self.tokens.append(token)
        self.parents.append(parent)
        self.kinds.append(kind)
        self.products.append(product)
        return len(self.tokens) - 1

    def first(self, size: int, expected: float) -> "Tree":
        """The tree of the first `size` nodes, of which `expected` are accepted."""
        shape = self.tokens[:size], self.parents[:size]
        return Tree(*shape, self.kinds[:size], self.products[:size], expected)

    def product(self, node: int) -> float:
        """Product of the chances along the path of a node; -1 is the pending token."""
        return self.products[node] if node >= 0 else 1.0

    def path(self, node: int) -> list[int]:
        """Tokens after the pending one up to a node."""
        return [*self.path(self.parents[node]), self.tokens[node]] if node >= 0 else []

    def tried(self, accepted: Sequence[int]) -> list[tuple[int, bool]]:
        """Nodes whose parent was accepted, and whether they were, too."""
        path = {-1, *accepted}
        return [(n, n in path) for n, parent in enumerate(self.parents) if parent in path]


def min_slopes(prices: Sequence[float]) -> list[float]:
    """By number of rows, the lowest price per row of any further rows: a path whose chance is worth
    less cannot make a larger tree pay.

    >>> min_slopes([0, 1.0, 1.5, 1.6])  # one row costs 1.0; two more together 0.6
    [0.5333333333333333, 0.30000000000000004, 0.10000000000000009, 0.0]
    """
    rows = range(len(prices))
    return [
        min(((prices[m] - prices[n]) / (m - n) for m in rows[n + 1 :]), default=0.0) for n in rows
    ]


class Growth:
    """A tree that grows node by node, the likeliest path first.

    >>> def expand(path, carried):  # after any token, 7 with chance 0.8 or 8 with chance 0.1
    ...     return [(0.8, 7, None, None), (0.1, 8, None, None)]
    >>> prices = [0.0, 1.0, 1.2, 1.4, 1.6, 1.8]  # a row after the first costs 0.2 passes
    >>> growth = Growth(None, expand, lambda p: p, prices, min_slopes(prices), depth=7)
    >>> tree = growth.best(rate=2.0)
    >>> tree.tokens, tree.parents, round(tree.expected, 2)  # 0.8 ** 5 is worth less than 0.4
    ([7, 7, 7, 7], [-1, 0, 1, 2], 2.36)
    """

    def __init__(
        self,
        root: Any,
        expand: Expand,
        calibrated: Callable[[float], float],
        prices: Sequence[float],
        slopes: Sequence[float],
        depth: int,
    ) -> None:
        """
        Args:
            root: state of the pending token for `expand`.
            expand: finds the children of a node.
            calibrated: the chance of a path, given the product of chances.
            prices: of 0, 1, ... rows verified, in passes of one row; they bound the nodes.
            slopes: `min_slopes(prices)`.
            depth: maximum tokens of a path.
        """
        self._expand, self._calibrated, self._depth = expand, calibrated, depth
        self._prices, self._slopes = prices, slopes
        self._tried = Tree()
        self._expected = [0.0]
        """Expected number of accepted nodes of the first 0, 1, ... tried ones."""
        self._paths: list[list[int]] = []
        # Of each node the next child to try: minus its product, a number that breaks ties, the
        # node, the child's rank, all children.
        self._heap: list[tuple[float, int, int, int, Sequence[Child]]] = []
        self._order = count()
        if depth > 0 and (children := expand([], root)):
            self._heap.append((-children[0][0], next(self._order), -1, 0, children))

    def best(self, rate: float) -> Tree:
        """The tree with the largest `expected tokens - rate * price`: nodes are tried in order of
        their chance, as far as they may pay at `rate`, tokens per pass of one row, and the best
        number of first ones is kept. A lower rate goes on where the last one stopped.
        """
        tree, heap, slopes = self._tried, self._heap, self._slopes
        limit = len(self._prices) - 2  # one row is the pending token's
        while heap and len(tree.tokens) < limit:
            chance = self._calibrated(-heap[0][0])
            if chance < rate * slopes[1 + len(tree.tokens)]:
                break
            self._expected.append(self._expected[-1] + chance)
            self._add()
        values = [e - rate * self._prices[n] for n, e in enumerate(self._expected, 1)]
        kept = values.index(max(values))
        return tree.first(kept, self._expected[kept])

    def _add(self) -> None:
        """Tries the likeliest child, and looks up its own."""
        heap, tree = self._heap, self._tried
        minus, _, parent, rank, siblings = heap[0]
        _, token, kind, carried = siblings[rank]
        node = tree.add(token, parent, kind, -minus)
        path = [*self._paths[parent], token] if parent >= 0 else [token]
        self._paths.append(path)
        if (rank := rank + 1) < len(siblings):
            product = siblings[rank][0] * tree.product(parent)
            heapreplace(heap, (-product, next(self._order), parent, rank, siblings))
        else:
            heappop(heap)
        if len(path) < self._depth and (children := self._expand(path, carried)):
            heappush(heap, (minus * children[0][0], next(self._order), node, 0, children))
