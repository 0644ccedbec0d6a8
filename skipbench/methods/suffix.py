"""SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications, arXiv:2411.04975.

The longest end of the text that occurred before, in the prompt, the output, or earlier outputs, is
looked up; what followed its occurrences makes a tree, whose nodes are taken greedily by how often
they followed. The longer the match, the larger the tree.

| paper | here | |
|---|---|---|
| p | `length` | tokens of the matched end |
| MAX_SPEC(p) = alpha p | `round(factor * length)` | most nodes of the tree |
| C(N) | share of the occurrences that go on with a node, given its parent | |
| D(N) = product of C | `grow`'s product of chances | score by which nodes are taken |

REIMPLEMENTATION, CONSTANTS UNVERIFIED: the factor alpha and the limits are not those of the
published code. Occurrences are looked up in a table of pairs, not in a suffix tree.

Deviations from the paper and its published code, with their switches: docs/methods/suffix.md.
"""

from typing import Any

from skipbench.decode.method import Draft, Verification
from skipbench.decode.sources import Match, TextIndex
from skipbench.decode.state import State
from skipbench.decode.tree import Child, grow
from skipbench.errors import SkipbenchError


class Suffix:
    """Drafts by copying behind the longest match.

    Args:
        layers: L, decoder layers of the model.
        name: name of the method in records and tables.
        factor: alpha, nodes of the tree per token of the match.
        max_nodes: most nodes of the tree.
        shortest: tokens that a match must have, 1 or more.
        min_share: share of the occurrences, multiplied along the path, below which a node is left
            out, 0 to 1.
        earlier: most tokens of earlier outputs that are looked up, too; 0 for none.

    Raises:
        SkipbenchError: a number out of range.
    """

    def __init__(
        self,
        layers: int,
        name: str,
        factor: float = 2.0,
        max_nodes: int = 24,
        shortest: int = 2,
        min_share: float = 0.1,
        earlier: int = 0,
    ) -> None:
        if factor <= 0 or min(max_nodes, shortest) < 1 or not 0 <= min_share <= 1 or earlier < 0:
            raise SkipbenchError(
                f"suffix: {factor=}, {max_nodes=}, {shortest=}, {min_share=}, {earlier=}; wanted "
                "factor above 0, max_nodes and shortest of 1 or more, min_share from 0 to 1, "
                "earlier of 0 or more"
            )
        self.name, self.factor, self.max_nodes = name, factor, max_nodes
        self.shortest, self.min_share, self.earlier = shortest, min_share, earlier
        self.text = TextIndex()

    def begin(self, state: State) -> None:
        self.log: dict[str, list[Any]] = {"match": []}
        self.text.begin(state.tokens)

    def propose(self, state: State, budget: int) -> Draft:
        matches = self.text.find()
        length = matches[0][1] if matches else 0
        self.log["match"].append(length)
        if length < self.shortest:
            return Draft()
        longest = [match for match in matches if match[1] == length]
        nodes = min(self.max_nodes, max(1, round(self.factor * length)))
        # no price: every row pays whose share is large enough
        flat, slopes = [0.0] * (nodes + 2), [self.min_share] * (nodes + 2)
        tree = grow(longest, self._children, lambda p: p, flat, slopes, 1.0, budget)
        return Draft(tree.tokens, tree.parents, steps=len(tree.tokens))

    def _children(self, path: list[int], matches: list[Match]) -> list[Child]:
        """What followed the occurrences, by how many of them it followed."""
        counts: dict[int, int] = {}
        for at, _ in matches:
            counts[self.text.text[at]] = counts.get(self.text.text[at], 0) + 1
        ordered = sorted(counts.items(), key=lambda item: -item[1])
        follow = self.text.follow
        return [(n / len(matches), t, None, follow(matches, t)) for t, n in ordered]

    def adapt(self, state: State, verification: Verification) -> None:
        self.text.extend(state.tokens[self.text.tokens :])
        if state.finish is not None:
            self.text.keep(state.output, self.earlier)

    @property
    def state_dict(self) -> dict[str, Any]:
        """Earlier outputs."""
        return {"earlier": self.text.earlier} if self.earlier else {}

    @state_dict.setter
    def state_dict(self, state: dict[str, Any]) -> None:
        self.text.earlier = list(state["earlier"])
