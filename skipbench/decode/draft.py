"""`Draft` and `Verification`: the values that pass between a method and the loop."""

from dataclasses import dataclass, field

from torch import Tensor

from skipbench.lm.rows import TokenRows


@dataclass(frozen=True)
class Draft:
    """Proposed tokens below the pending token: a chain, or a tree when `parent` says so.

    >>> tree = Draft([7, 8, 9], parent=[-1, -1, 0], steps=2)  # 7 or 8 come next, 9 follows 7
    >>> tree.parents(), tree.first_choices()
    ([-1, -1, 0], {0, 2})
    >>> Draft([7, 8, 9]).parents()
    [-1, 0, 1]

    Attributes:
        tokens: n proposed ids, parents before children.
        parent: index of each node's parent, -1 for the pending token; `None` for a chain.
        q: for the children of a node (-1: of the pending token), the distribution [V] they were
            drawn from, in the order of the nodes and without replacement. A node that is missing
            has children that are guesses, not samples.
        steps: forward passes of the drafting model; a guess that needed none counts one per token.
        num_verifiable: only the first so many nodes may be accepted, all when `None`; the rows
            after them are computed for the method itself (Lookahead's window).
        early_exit_states: for early exit, the states of the pending token and of the first nodes of
            a chain whose early sub-layers have run as the target's own: one list per row, [1, D]
            before the first and after every sub-layer. Verification continues after the last of
            them.
        sources: what proposed each node, for a method with several sources; empty where it has
            one.
    """

    tokens: list[int] = field(default_factory=list)
    parent: list[int] | None = None
    q: dict[int, Tensor] = field(default_factory=dict)
    steps: int = 0
    num_verifiable: int | None = None
    early_exit_states: list[list[Tensor]] = field(default_factory=list)
    sources: list[str] = field(default_factory=list)

    def parents(self) -> list[int]:
        """Parent of every node, also for a chain."""
        return list(range(-1, len(self.tokens) - 1)) if self.parent is None else self.parent

    def token_rows(self, start: int) -> TokenRows:
        """Rows of its verification: the pending token at cache row `start`, then the nodes."""
        if self.parent is None:
            return TokenRows.chain(start, 1 + len(self.tokens)).verified()
        return TokenRows.tree(start, (-1, *(parent + 1 for parent in self.parent))).verified()

    def first_choices(self) -> set[int]:
        """Nodes on the chain that follows the first child of every node."""
        chain, last = set[int](), -1
        for node, parent in enumerate(self.parents()[: self.num_verifiable]):
            if parent == last:
                chain.add(node)
                last = node
        return chain


@dataclass(frozen=True)
class Verification:
    """Result of one verification pass.

    Attributes:
        accepted: accepted nodes of the draft, in order, before any cut at EOS or at the token
            limit.
        bonus: the target's token after them.
        target_tokens: the target's most likely token after the pending token and after every
            node, n + 1 of them; 0 where its logits are not finite.
        hidden_states: the target's S + 1 hidden states [n + 1, D] of this pass, for methods that
            need them, else empty.
        top_tokens: the target's `needs_top_tokens` most likely tokens after the pending token and
            after every node, most likely first, n + 1 lists, for methods that need them, else
            empty.
    """

    draft: Draft
    accepted: list[int]
    bonus: int
    target_tokens: list[int]
    hidden_states: list[Tensor]
    top_tokens: list[list[int]] = field(default_factory=list)

    @property
    def last_row(self) -> int:
        """Row of the pass whose output became the bonus: that of the last accepted token, 0 for the
        pending one.
        """
        return self.accepted[-1] + 1 if self.accepted else 0
