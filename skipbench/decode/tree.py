"""Growing a draft tree node by node, the likeliest path first, as far as its price allows."""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

Child = tuple[float, int, Any, Any]
"""Chance given that the parent is accepted, token, kind (for counters), and state for `expand`."""
Expand = Callable[[list[int], Any], Sequence[Child]]
"""Tokens below the pending one up to a node, and the node's state -> its children, the likeliest
first.
"""


@dataclass
class Tree:
    """Flat arrays over the nodes, parents before children, likelier paths before others.

    Attributes:
        tokens, parents: as in `Draft`.
        kinds: what `expand` gave per node.
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

    def product(self, node: int) -> float:
        """Product of the chances along the path of a node; -1 is the pending token."""
        return self.products[node] if node >= 0 else 1.0

    def path(self, node: int) -> list[int]:
        """Tokens below the pending one up to a node."""
        return [*self.path(self.parents[node]), self.tokens[node]] if node >= 0 else []

    def cut(self, nodes: int, expected: float) -> None:
        """Keeps the first `nodes` nodes."""
        for part in (self.tokens, self.parents, self.kinds, self.products):
            del part[nodes:]
        self.expected = expected

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
    last = len(prices) - 1
    return [
        min((prices[m] - prices[n]) / (m - n) for m in range(n + 1, last + 1)) if n < last else 0.0
        for n in range(last + 1)
    ]


def grow(
    root: Any,
    expand: Expand,
    calibrated: Callable[[float], float],
    prices: Sequence[float],
    slopes: Sequence[float],
    rate: float,
    depth: int,
) -> Tree:
    """Grows the tree with the largest `expected tokens - rate * price`: nodes are tried in order
    of their chance, and the best number of first ones is kept.

    >>> def expand(path, carried):  # after any token, 7 with chance 0.8 or 8 with chance 0.1
    ...     return [(0.8, 7, None, None), (0.1, 8, None, None)]
    >>> prices = [0.0, 1.0, 1.2, 1.4, 1.6, 1.8]  # a row after the first costs 0.2 passes
    >>> tree = grow(None, expand, lambda p: p, prices, min_slopes(prices), rate=2.0, depth=7)
    >>> tree.tokens, tree.parents, round(tree.expected, 2)  # 0.8 ** 5 is worth less than 0.4
    ([7, 7, 7, 7], [-1, 0, 1, 2], 2.36)

    Args:
        root: state of the pending token for `expand`.
        expand: finds the children of a node.
        calibrated: the chance of a path, given the product of chances.
        prices: of 0, 1, ... rows verified, in passes of one row; they bound the nodes.
        slopes: `min_slopes(prices)`.
        rate: tokens per pass of one row at present.
        depth: maximum tokens of a path.
    """
    tree = Tree()
    limit = len(prices) - 2  # one row is the pending token's
    paths: list[list[int]] = []
    heap: list[tuple[float, int, int, int, Sequence[Child]]] = []
    count = 0  # of the heap's entries, so that equal chances never compare what they carry
    best, kept, kept_expected, expected = -rate * prices[1], 0, 0.0, 0.0
    children = expand([], root) if depth > 0 else ()
    if children:
        heap.append((-children[0][0], 0, -1, 0, children))
    while heap and len(tree.tokens) < limit:
        minus, _, parent, rank, siblings = heapq.heappop(heap)
        product = -minus
        chance = calibrated(product)
        if chance < rate * slopes[1 + len(tree.tokens)]:
            break
        _, token, kind, carried = siblings[rank]
        node = tree.add(token, parent, kind, product)
        path = [*paths[parent], token] if parent >= 0 else [token]
        paths.append(path)
        expected += chance
        value = expected - rate * prices[node + 2]
        if value > best:
            best, kept, kept_expected = value, node + 1, expected
        if rank + 1 < len(siblings):
            count += 1
            chance = tree.product(parent) * siblings[rank + 1][0]
            entry = (-chance, count, parent, rank + 1, siblings)
            heapq.heappush(heap, entry)
        if len(path) < depth:
            children = expand(path, carried)
            if children:
                count += 1
                heapq.heappush(heap, (-product * children[0][0], count, node, 0, children))
    tree.cut(kept, kept_expected)
    return tree
