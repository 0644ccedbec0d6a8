"""SuffixDecoding: Extreme Speculative Decoding for Emerging AI Applications, arXiv:2411.04975.

The longest end of the text that occurred before, in the prompt, the output, or earlier outputs, is
looked up; the continuations of its occurrences make a tree, whose nodes are taken greedily by how
often they followed. The longer the match, the larger the tree.

| paper | here | |
|---|---|---|
| p | `length` | tokens of the matched end |
| MAX_SPEC(p) = alpha p | `round(factor * length)` | maximum nodes of the tree |
| C(N) | share of the occurrences that go on with a node, given its parent | |
| D(N) = product of C | `grow`'s product of chances | score by which nodes are taken |

REIMPLEMENTATION, CONSTANTS UNVERIFIED: the factor alpha and the limits are not those of the
published code. Occurrences are looked up in a table of pairs, not in a suffix tree.

Deviations from the paper and its published code, with their switches: docs/methods/suffix.md.
"""

from collections import Counter

from skipbench.config.configurable import Natural, Positive, PositiveFloat, Share
from skipbench.decode.draft import Draft, State, Verification
from skipbench.decode.method import Method
from skipbench.decode.sources import Match, TextIndex
from skipbench.decode.tree import Child, Growth


class Suffix(Method):
    """Drafts by copying after the longest match.

    >>> method = Suffix(name="suffix", factor=1)
    >>> method.begin(state := State(None, [1, 2, 3, 1, 2, 4, 1, 2]))
    >>> draft = method.propose(state, budget=7)  # 4 and 3 each followed 1, 2 once
    >>> draft.tokens, draft.parent
    ([4, 3], [-1, -1])
    """

    factor: PositiveFloat = 2.0
    """alpha, nodes of the tree per token of the match."""
    max_nodes: Positive = 24
    """Maximum nodes of the tree."""
    shortest: Positive = 2
    """Tokens that a match must have, 1 or more."""
    min_share: Share = 0.1
    """Minimum share of the occurrences, 0 to 1, multiplied along the path, of a node."""
    earlier: Natural = 0
    """Maximum tokens of earlier outputs that are looked up, too; 0 for none."""

    logged, carried = ("match",), ("text",)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.text = TextIndex(limit=self.earlier)

    def begin(self, state: State) -> None:
        super().begin(state)
        self.text.begin(state.tokens)

    def propose(self, state: State, budget: int) -> Draft:
        matches = self.text.find()
        length = matches[0][1] if matches else 0
        self.note(match=length)
        if length < self.shortest:
            return Draft()
        longest = [match for match in matches if match[1] == length]
        nodes = min(self.max_nodes, max(1, round(self.factor * length)))
        # no price: every row pays whose share is large enough
        flat, slopes = [0.0] * (nodes + 2), [self.min_share] * (nodes + 2)
        tree = Growth(longest, self._children, lambda p: p, flat, slopes, budget).best(1.0)
        return Draft(tree.tokens, tree.parents, steps=len(tree.tokens))

    def _children(self, path: list[int], matches: list[Match]) -> list[Child]:
        """Tokens after the occurrences, each with its share of them."""
        counts = Counter(self.text.text[at] for at, _ in matches).most_common()
        follow = self.text.follow
        return [(n / len(matches), token, None, follow(matches, token)) for token, n in counts]

    def adapt(self, state: State, verification: Verification) -> None:
        self.text.advance(state)
